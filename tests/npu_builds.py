"""Networks as the Neural-ART compiler would leave them, for the simulated NPU of tests/ll_aton.

What the simulation executes is told by lists of places that are made here by loops over bytes (`bytes_in_order`), not
by the arithmetic of converters/neural_art/layouts.py or of the firmware.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from app_library import SANITIZE
from tiny_run import FIXTURES

from converters import device_image
from converters.device_image import DeviceImage, Preprocessing
from converters.neural_art.compiled import read_compiled
from converters.neural_art.layouts import Blocked, Box, Deep, Dims, Inflated, Layout, Piece, Plain
from converters.neural_art.section import CompiledNetwork, Section, SectionEntry, SectionPool
from converters.neural_art.solver import filters_of, recover
from converters.neural_art.writer import Build, Layer, typical, write_network
from converters.plan import compile_plan
from converters.tflite_model import (
    add_headroom,
    check_trainable,
    io_spec,
    read_graph,
    trainable_segments,
    write_weights,
)
from pipeline.targets.boards import build_native
from pipeline.targets.client import Board
from pipeline.targets.link import Link
from pipeline.targets.transports import ProcessTransport

NETWORKS = ("resnet18_w8_32", "mobilenet_v2_035_32")
_MAGIC = 0x5355504E  # tests/ll_aton/network.c


def bytes_in_order(piece: Piece, values: np.ndarray) -> np.ndarray:
    """The bytes of a buffer, as a compiler would write them: loop in loop; int64, 0 where no weight is."""
    out: list[int] = []
    no, nh, nw, ni = piece.box.dims
    match piece.layout:
        case Plain():
            out = list(values.ravel())
        case Blocked(outputs, inputs):
            for o in range(0, no, outputs):
                for i in range(0, ni, inputs):
                    out += list(values[o : o + outputs, :, :, i : i + inputs].ravel())
        case Deep(outputs, inputs, group, multiple):
            for o in range(0, no, outputs):
                for i in range(0, ni, inputs):
                    frame = values[o : o + outputs, 0, 0, i : i + inputs]
                    for g in range(0, len(frame), group):
                        out += list(frame[g : g + group].T.ravel())
                    out += [0] * (-frame.size % multiple)
        case Inflated(depth):
            for c in range(ni):
                for h in range(nh):
                    for w in range(nw):
                        out += [int(values[0, h, w, c]) if j == c % depth else 0 for j in range(depth)]
    return np.array(out, np.int64)


# --- layouts to try -----------------------------------------------------------------------------------------------


def _whole(dims: Dims, layout: Layout) -> tuple[Piece, ...]:
    return (Piece(dims, Box.whole(dims), layout),)


def _blocked(number: int, dims: Dims) -> Layout:
    outputs, inputs = ((8, 8), (5, 3), (16, 24), (1, 7))[number % 4]
    return Blocked(min(outputs, dims[0]), min(inputs, dims[3]))


def _deep(number: int, dims: Dims) -> Layout:
    outputs, inputs, group, multiple = ((16, 128, 8, 3), (14, 20, 8, 4), (6, 5, 4, 16), (40, 9, 32, 3))[number % 4]
    return Deep(min(outputs, dims[0]), min(inputs, dims[3]), group, multiple)


def _plain_mix(kind: str, number: int, dims: Dims) -> tuple[Piece, ...]:
    return _whole(dims, Plain())


def _typical_mix(kind: str, number: int, dims: Dims) -> tuple[Piece, ...]:
    return typical(kind, dims)


def _blocked_mix(kind: str, number: int, dims: Dims) -> tuple[Piece, ...]:
    return _whole(dims, _blocked(number, dims))


def _deep_mix(kind: str, number: int, dims: Dims) -> tuple[Piece, ...]:
    return _whole(dims, _deep(number, dims) if dims[1] == dims[2] == 1 else Plain())


def _inflated_mix(kind: str, number: int, dims: Dims) -> tuple[Piece, ...]:
    depth = (8, 3, 1, 4, 2)[number % 5]
    return _whole(dims, Inflated(depth) if kind == "DEPTHWISE_CONV_2D" else _blocked(number, dims))


def _submask_mix(kind: str, number: int, dims: Dims) -> tuple[Piece, ...]:
    """Two or three boxes of each filter, along one axis or two, in layouts of their own."""
    first = next(axis for axis in (1, 0, 3, 2) if dims[axis] > 1)
    cuts = {first: max(1, dims[first] - dims[first] // 3)}
    if dims[3] > 8 and number % 2:
        cuts[3] = dims[3] // 2
    boxes = [Box.whole(dims)]
    for axis, cut in cuts.items():
        boxes = [part for box in boxes for part in _halves(box, axis, cut)]
    return tuple(Piece(dims, box, _of_box(kind, number + n, box.dims)) for n, box in enumerate(boxes))


def _halves(box: Box, axis: int, cut: int) -> tuple[Box, Box]:
    start, dims = list(box.start), list(box.dims)
    start[axis], dims[axis] = box.start[axis] + cut, box.dims[axis] - cut
    lower = list(box.dims)
    lower[axis] = cut
    return Box(box.start, tuple(lower)), Box(tuple(start), tuple(dims))


def _of_box(kind: str, number: int, dims: Dims) -> Layout:
    if kind == "DEPTHWISE_CONV_2D":
        return Inflated((4, 8, 2)[number % 3])
    if dims[1] == dims[2] == 1 and number % 3:
        return _deep(number, dims)
    return _blocked(number, dims) if number % 2 else Plain()


MIXES: dict[str, Callable[[str, int, Dims], tuple[Piece, ...]]] = {
    "plain": _plain_mix,
    "typical": _typical_mix,
    "blocked": _blocked_mix,
    "deep": _deep_mix,
    "inflated": _inflated_mix,
    "submask": _submask_mix,
}


# --- builds -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NpuBuild:
    """A compiled network: its device image, and the file that the simulated NPU executes."""

    image: bytes
    network: Path
    places: np.ndarray  # int64 [d]: the byte in the pool of each weight, by loops

    def with_section(self, section: Section) -> bytes:
        """The image with another map, which the host does not check."""
        read = DeviceImage.read(self.image)
        changed = device_image._read_sections(self.image, "the image")[1]
        changed["NART"] = device_image.pack(section)
        assert read.npu is not None
        return device_image._pack(changed, read.runner)


@cache
def network(name: str) -> bytes:
    return add_headroom((FIXTURES / f"{name}.tflite").read_bytes(), 4)


def make_build(
    folder: Path,
    tflite: bytes,
    mix: str,
    *,
    cacheable: bool = False,
    solve: bool = True,
    address: int = Build.weights_address,
) -> NpuBuild:
    """solve: recover the map from the bytes, as convert does; else it is what was written. address: of the weights."""
    graph = read_graph(tflite)
    segments = trainable_segments(graph)
    filters = filters_of(graph, segments)
    layers = tuple(
        Layer(s.op, f.values, MIXES[mix](s.op, n, f.dims))
        for n, (s, f) in enumerate(zip(segments, filters, strict=True))
    )
    build = Build(layers=layers, cacheable="CACHEABLE_ON" if cacheable else "CACHEABLE_UNDEF", weights_address=address)
    info = write_network(folder, tflite, build)
    (folder / "network.c").write_text(network_source(tflite))
    buffers = [b for b in info["buffers"] if b["is_param"] and b["nbits"] == 8]
    compiled = read_compiled(folder)
    pool = next(p for p in compiled.pools.values() if p.name == "weights")
    written = iter(buffers)
    entries, places = [], []
    for number, layer in enumerate(layers):
        dims = layer.values.shape
        of_filter = np.full(layer.values.size, -1, np.int64)
        numbers = np.arange(1, layer.values.size + 1).reshape(dims)
        for piece in layer.pieces:
            offset = next(written)["offset_start"]
            entries.append(SectionEntry(number, 0, offset, piece))
            content = bytes_in_order(piece, numbers[piece.box.slices])
            (at,) = np.nonzero(content)
            of_filter[content[at] - 1] = offset + at
        assert (of_filter >= 0).all()
        places.append(of_filter)
    npu = CompiledNetwork.of(compiled, recover(compiled, tflite)) if solve else None
    if npu is None:
        blob = compiled.memory[pool.address].tobytes()
        npu = CompiledNetwork(Section(0, (SectionPool(pool.address, len(blob), cacheable),), tuple(entries)), blob)
    image = device_image.build(tflite, Preprocessing(), meta={"name": mix}, npu=npu)
    all_places = np.concatenate(places)
    assert npu.section.network == (compiled.id if solve else 0)
    path = folder / "network.npu"
    path.write_bytes(_network_file(tflite, npu, all_places))
    return NpuBuild(image, path, all_places)


def network_source(tflite: bytes, before: str = "") -> str:
    """What stands for the generated source: another one for each network, but for the trainable weights."""
    words = compile_plan(read_graph(tflite)).to_bytes().hex()
    return f'{before}#include "ll_aton_NN_interface.h"\n/* LL_ATON_Input_Buffers_Info_Default */\n/* {words} */\n'


def _network_file(tflite: bytes, npu: CompiledNetwork, places: np.ndarray) -> bytes:
    graph = check_trainable(tflite, "the model")
    plan, io, segments = compile_plan(graph).to_bytes(), io_spec(graph), trainable_segments(graph)
    empty = write_weights(tflite, segments, np.zeros(len(places), np.int8))
    in_model = np.concatenate([s.offset + np.arange(s.count) for s in segments])
    pool = npu.section.pools[0]
    head = struct.pack(
        "<10I", _MAGIC, npu.section.network, pool.address, len(npu.blob), int(pool.cacheable),
        int(np.prod(io.input_shape)), io.classes,
        len(plan) // 4, len(empty), len(places),
    )  # fmt: skip
    return head + plan + np.stack([in_model, places], 1).astype("<u4").tobytes() + empty + npu.blob


@contextmanager
def npu_board(build: NpuBuild, image: bytes | None = None, **settings: str) -> Iterator[Board]:
    """A native board with the simulated NPU.

    image: another than that of the build. settings: ignore, arithmetic, differences, see tests/ll_aton/README.md.
    """
    names = {f"LL_ATON_STAND_IN_{name.upper()}": value for name, value in settings.items()}
    names["LL_ATON_STAND_IN"] = str(build.network)
    program = build_native("zo_board", "-DLL_ATON_STAND_IN=ON", sanitize=SANITIZE)
    os.environ.update(names)
    try:
        transport = ProcessTransport([str(program), "--threads", "1", "--memory", "64"])
    finally:
        for name in names:
            del os.environ[name]
    board = Board(Link(transport), image or build.image, describe_end=transport.describe_end)
    try:
        yield board
    finally:
        board.close()


def with_entries(build: NpuBuild, change: Callable[[int, SectionEntry], SectionEntry]) -> bytes:
    """The image with a map whose entries were changed."""
    npu = DeviceImage.read(build.image).npu
    assert npu is not None
    entries = tuple(change(n, e) for n, e in enumerate(npu.section.entries))
    return build.with_section(replace(npu.section, entries=entries))
