"""Compiled directories without the compiler: filters in layouts of one's choice, as it would leave them. For tests.

Buffers begin at multiples of 16 bytes, everything between and inside them that is no parameter is zero. Scales and
biases lie among the weights, one epoch reads each layer, activations alternate between two buffers of their own pool.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.neural_art.layouts import Blocked, Box, Deep, Dims, Inflated, Layout, Piece, Plain, covers
from converters.neural_art.solver import filters_of
from converters.tflite_model import read_graph, trainable_segments

ALIGN = 16


@dataclass(frozen=True)
class Compiler:
    """How a version of the compiler calls itself and its files."""

    core: str
    atonn: str
    raw: str = "network_atonbuf.{pool}.raw"
    info: str = "network_c_info.json"


COMPILERS = {
    "2.1": Compiler("2.1.0-1", "1.1.0-1"),
    "3.0": Compiler("3.0.0-1", "1.1.3-1"),
    "10.2": Compiler("2.2.0-1", "1.1.1-1", "my_network_atonbuf.{pool}.raw", "my_network_c_info.json"),
    "4.0": Compiler("4.0.0-1", "1.2.0-1"),
    "workspace": Compiler("3.0.0-1", "1.1.3-1", "atonbuf.{pool}.raw", "c_info.json"),
}


@dataclass(frozen=True)
class Layer:
    """A filter to be written: its op, its weights, int8 [O, H, W, I], and the pieces that hold each of them once."""

    kind: str  # "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"
    values: np.ndarray
    pieces: tuple[Piece, ...]
    mapping: str = "NODE_HW"


@dataclass(frozen=True)
class Build:
    """Where things go. cpu: kinds of node that a CPU epoch at the end computes."""

    compiler: Compiler = COMPILERS["3.0"]
    weights_address: int = 0x34200000
    weights_size: int = 3 * 448 << 10
    activations_address: int = 0x34350000
    rights: str = "ACC_READ"
    cacheable: str = "CACHEABLE_UNDEF"
    subpools: tuple[int, ...] = ()
    cpu: tuple[str, ...] = ()
    seed: int = 0
    layers: tuple[Layer, ...] = field(default=())


def typical(kind: str, dims: Dims) -> tuple[Piece, ...]:
    """A filter in the layouts that public builds have for such shapes; what a compiler would choose may differ."""
    outputs, rows, columns, inputs = dims
    layout: Layout = Plain()
    if kind == "DEPTHWISE_CONV_2D":
        layout = Inflated(next(b for b in (8, 4, 3, 2, 1) if inputs % b == 0))
    elif rows == columns == 1 and inputs > 24:
        layout = Deep(min(16, outputs), min(128, inputs))
    elif rows > 3:
        boxes = [Box((0, h, 0, 0), (outputs, min(3, rows - h), columns, inputs)) for h in range(0, rows, 3)]
        return tuple(Piece(dims, box, Plain()) for box in boxes)
    elif rows * columns > 1 and inputs > 8:
        layout = Blocked(min(8, outputs), 8)
    return (Piece(dims, Box.whole(dims), layout),)


def layers_of(tflite: bytes) -> tuple[Layer, ...]:
    """All trainable filters of a network, in typical layouts."""
    segments = trainable_segments(read_graph(tflite))
    return tuple(
        Layer(s.op, f.values, typical(s.op, f.dims))
        for s, f in zip(segments, filters_of(read_graph(tflite), segments), strict=True)
    )


def write_compiled(folder: Path, build: Build) -> dict[str, Any]:
    """Write a pool's raw file and the c_info.json into a folder, which is made; returns the latter.

    Asserts that each layer's pieces hold each of its weights once and that all of it fits into the pool.
    """
    rng = np.random.default_rng(build.seed)
    pool, buffers, nodes = bytearray(), [], []
    activations = [_buffer("Input_0_out_0", [1], 1024, 0, 2)]

    def place(buffer: dict[str, Any], data: bytes) -> int:
        pool.extend(bytes(-len(pool) % ALIGN))
        buffers.append(buffer | {"offset_start": len(pool), "is_param": True, "mpool_id": 1})
        pool.extend(data)
        return len(buffers) - 1

    for number, layer in enumerate(build.layers):
        dims = layer.values.shape
        assert covers(list(layer.pieces), dims), "pieces do not hold every weight once"
        outputs = dims[3] if layer.kind == "DEPTHWISE_CONV_2D" else dims[0]
        stem = f"Gemm_{3 * number}" if layer.kind == "FULLY_CONNECTED" else f"Conv2D_{3 * number}"
        weights = []
        for piece in layer.pieces:
            data = np.zeros(piece.size, np.int8)
            piece.scatter(data, layer.values[piece.box.slices])
            name = stem + _suffix(layer.kind, piece, len(buffers))
            o, h, w, i = piece.box.dims
            depth = getattr(piece.layout, "depth", getattr(piece.layout, "inputs", i))
            weights.append(place(_buffer(name, [o, i, h, w], piece.size, int(depth), 0), data.tobytes()))
        extra = []
        for name, bits in (("mul_scale", 16), ("off_bias", 32)):
            values = rng.integers(1, 1 << (bits - 2), outputs, np.int64).astype(f"<i{bits // 8}").tobytes()
            parameter = _buffer(f"{stem}_{name}_{len(buffers)}", [outputs, 1, 1], len(values), 16, 0)
            extra.append(place(parameter | {"format": "STAI_FORMAT_Q", "nbits": bits}, values))
        size = 4096 * (number % 2 + 1)
        activations.append(_buffer(f"{stem}_out_0", [1], size, 0, 2) | {"offset_start": 8192 * (number % 2 + 1)})
        nodes.append((stem, layer, weights, extra))
    buffers += [a | {"is_param": False, "mpool_id": 2} for a in activations]
    for n, buffer in enumerate(buffers):
        buffer["id"] = n + 1
    assert len(pool) <= build.weights_size, f"{len(pool)} bytes do not fit"
    info = {
        "json_schema_version": "2.0",
        "environment": {
            "tools": [
                {"name": "ST.EdgeAI.Core", "version": build.compiler.core, "arguments": "", "environment": []},
                {"name": "ATONN Compiler", "version": build.compiler.atonn, "arguments": "", "environment": []},
            ]
        },
        "memory_pools": _pools(build, len(pool)),
        "buffers": buffers,
        "graphs": [{"id": 1, "name": "network", "nodes": _nodes(build, nodes), "edges": []}],
        "memory_footprint": {"weights": len(pool), "activations": 1 << 15},
        "ec_blobs_info": [],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / build.compiler.raw.format(pool="WEIGHTS")).write_bytes(pool)
    (folder / build.compiler.info).write_text(json.dumps(info, indent=1))
    return info


def write_network(folder: Path, tflite: bytes, build: Build | None = None) -> dict[str, Any]:
    """write_compiled of a whole network in typical layouts, or in those of build.layers with the network's weights."""
    build = build or Build()
    filters = filters_of(read_graph(tflite), trainable_segments(read_graph(tflite)))
    layers = build.layers or layers_of(tflite)
    layers = tuple(replace(layer, values=f.values) for layer, f in zip(layers, filters, strict=True))
    return write_compiled(folder, replace(build, layers=layers))


def _suffix(kind: str, piece: Piece, number: int) -> str:
    (o0, h0, w0, i0), (o, h, w, i) = piece.box.start, piece.box.dims
    if piece.box.dims != piece.filter:
        return f"_weights_submask_{o0}_{i0}_{h0}_{w0}_{o}_{i}_{h}_{w}_{number}"
    if isinstance(piece.layout, Inflated) and piece.layout.depth > 1:
        return f"_weights_inflated_{number}"
    return f"_weights_transposed_{number}" if kind == "FULLY_CONNECTED" else "_weights"


def _buffer(name: str, shape: list[int], size: int, depth: int, pool: int) -> dict[str, Any]:
    return {
        "name": name, "shape": shape, "size_bytes": size, "batch": depth, "format": "STAI_FORMAT_S8", "nbits": 8,
        "mpool_id": pool, "offset_start": 0, "alignment": 1, "flags": "", "epochs": {"start": 0, "end": 1},
        "qmn": {"m": 7, "n": 0, "sign": 1}, "shape_map": [],
    }  # fmt: skip


def _pools(build: Build, used: int) -> list[dict[str, Any]]:
    both = {"alignment": 8, "offset_start": 0, "attributes": {}, "buffers": []}
    return [
        both | {"id": 1, "name": "weights", "address": str(build.weights_address), "size_bytes": build.weights_size,
                "used_size_bytes": used, "rights": build.rights, "cacheable": build.cacheable,
                "fname": "atonbuf.WEIGHTS.raw", "subpools": list(build.subpools)},
        both | {"id": 2, "name": "activations", "address": str(build.activations_address), "size_bytes": 448 << 10,
                "used_size_bytes": 1 << 15, "rights": "ACC_WRITE", "cacheable": "CACHEABLE_UNDEF",
                "fname": "atonbuf.ACTIVATIONS.raw", "subpools": []},
    ]  # fmt: skip


def _nodes(build: Build, layers: Sequence[tuple[str, Layer, list[int], list[int]]]) -> list[dict[str, Any]]:
    def node(name: str, kind: str, mapping: str, inputs: Sequence[int] = (), inner: Sequence[Any] = ()) -> dict:
        description = f"Node kind={kind}" if kind else ""
        return {"id": 0, "name": name, "description": description, "mapping": mapping, "inputs": list(inputs),
                "outputs": [], "scratchs": [], "subgraph_nodes": list(inner)}  # fmt: skip

    epochs = []
    for n, (stem, layer, weights, extra) in enumerate(layers):
        ids, others = [w + 1 for w in weights], [e + 1 for e in extra]
        inner = [
            node(stem, "Conv", layer.mapping, ids),
            node(f"{stem}_mul_scale", "Mul", "NODE_HW", others[:1]),
            node(f"{stem}_off_bias", "Add", "NODE_HW", others[1:]),
        ]
        epochs.append(node(f"epoch_{n}", "", layer.mapping, ids + others, inner))
    ends = [*build.cpu, "Return"]
    for kind in ends:
        name = "__NN__RETURN__" if kind == "Return" else f"{kind}_{len(epochs)}"
        epochs.append(node(f"epoch_{len(epochs)}", "", "NODE_SW", (), [node(name, kind, "NODE_SW")]))
    return epochs
