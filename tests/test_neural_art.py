"""Weights in compiled networks: layouts, recovery, checks, the NART section, and the front end of convert."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_builds import bytes_in_order
from tiny_model import tiny_tflite
from tiny_run import write_fashion_mnist

from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.neural_art import profile, section, solver
from converters.neural_art.checks import check
from converters.neural_art.compiled import network_id, read_compiled
from converters.neural_art.layouts import FAMILIES, Blocked, Box, Deep, Inflated, Piece, Plain, covers, valid
from converters.neural_art.solver import Ambiguous, Filter, fitting, probe_model, recover
from converters.neural_art.writer import COMPILERS, Build, Layer, layers_of, write_compiled, write_network
from converters.tflite_model import add_headroom, read_graph, read_weights, trainable_segments, write_weights
from pipeline import convert
from pipeline.targets.memory import NPU_BOARDS
from pipeline.targets.target import Region

FIXTURES = Path(__file__).parent / "fixtures"
NETWORKS = ("resnet18_w8_32", "mobilenet_v2_035_32")


def network(name: str) -> bytes:
    return add_headroom((FIXTURES / f"{name}.tflite").read_bytes(), 4)


def random_weights(dims, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-127, 128, dims, np.int8)


# --- layouts ------------------------------------------------------------------------------------------------------


def by_loops(piece: Piece, values: np.ndarray) -> np.ndarray:
    return bytes_in_order(piece, values).astype(np.int8)


@st.composite
def pieces(draw, family=None, least: int = 1) -> Piece:
    """A whole filter, or a box of one, in any layout."""
    family = family or draw(st.sampled_from(FAMILIES))
    no, ni = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    nh, nw = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    if family is Inflated:
        no = 1
    if family is Deep:
        nh = nw = 1
    ni += max(0, math.ceil(least / (no * nh * nw)) - ni)
    dims = no, nh, nw, ni
    layout = {
        Plain: st.just(Plain()),
        Blocked: st.builds(Blocked, st.integers(1, no), st.integers(1, ni)),
        Deep: st.builds(
            Deep,
            st.integers(1, no),
            st.integers(1, ni),
            st.sampled_from(solver.GROUPS),
            st.sampled_from((1, *solver.MULTIPLES)),
        ),
        Inflated: st.builds(Inflated, st.integers(1, 8)),
    }[family]
    start, whole = (0, 0, 0, 0), dims
    if draw(st.booleans()):
        start = tuple(draw(st.integers(0, 3)) if n > 1 or family is not Deep else 0 for n in dims)
        start = (0 if family is Inflated else start[0], *start[1:])
        whole = tuple(s + n + draw(st.integers(0, 2)) for s, n in zip(start, dims, strict=True))
    return Piece(whole, Box(start, dims), draw(layout))


@given(pieces())
def test_layouts_are_what_their_loops_write(piece):
    values = random_weights(piece.box.dims)
    buffer = np.zeros(piece.size, np.int8)
    piece.scatter(buffer, values)
    assert valid(piece.layout, piece.box.dims)
    assert np.array_equal(buffer, by_loops(piece, values))
    assert np.array_equal(piece.gather(buffer), values)


@given(pieces())
def test_every_weight_has_a_byte_of_its_own_and_the_rest_is_zero(piece):
    offsets = piece.offsets()
    assert offsets.shape == piece.box.dims
    assert len(np.unique(offsets)) == piece.live and offsets.min() >= 0 and offsets.max() < piece.size
    assert piece.live + piece.pad + piece.structural_zeros == piece.size
    assert len(piece.zeros()) == piece.pad + piece.structural_zeros
    filter_ = np.arange(math.prod(piece.filter)).reshape(piece.filter)
    assert np.array_equal(piece.weights(), filter_[piece.box.slices])


@pytest.mark.parametrize(
    ("dims", "layout", "size"),
    [
        ((32, 1, 1, 32), Deep(16, 32), 1026),
        ((128, 1, 1, 128), Deep(16, 128), 16392),
        ((256, 1, 1, 256), Deep(16, 128), 65568),
        ((5, 1, 1, 256), Deep(5, 128), 1284),
        ((1024, 1, 1, 1024), Deep(16, 128), 1049088),
        ((1, 3, 3, 8), Inflated(8), 576),
    ],
)
def test_sizes_are_those_of_public_builds(dims, layout, size):
    assert Piece(dims, Box.whole(dims), layout).size == size


# --- write, then recover ------------------------------------------------------------------------------------------


def same_map(found: list[Piece], written: list[Piece]) -> bool:
    """Whether each weight of a filter has the same byte in the same buffer."""
    return [(p.box, p.size) for p in found] == [(p.box, p.size) for p in written] and all(
        np.array_equal(a.offsets(), b.offsets()) for a, b in zip(found, written, strict=True)
    )


def recovered(folder: Path, layers: list[Layer]) -> list[list[Piece]]:
    """The pieces that the search finds for each filter of a written build; other random weights where they repeat."""
    for seed in range(4):
        filled = [replace(x, values=random_weights(x.values.shape, 100 * seed + n)) for n, x in enumerate(layers)]
        write_compiled(folder, Build(layers=tuple(filled)))
        filters = [Filter(f"filter {n}", n, x.values) for n, x in enumerate(filled)]
        try:
            entries = solver.search(read_compiled(folder), filters, range(len(filters)))
        except Ambiguous:
            continue
        return [[e.piece for e in entries if e.segment == n] for n in range(len(layers))]
    raise AssertionError("four sets of random weights were ambiguous")


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_written_is_recovered(family, data, tmp_path_factory):
    layers = []
    for _ in range(data.draw(st.integers(1, 3))):
        piece = data.draw(pieces(family, least=150))
        piece = Piece(piece.box.dims, Box.whole(piece.box.dims), piece.layout)
        kind = "DEPTHWISE_CONV_2D" if family is Inflated else "CONV_2D"
        layers.append(Layer(kind, np.zeros(piece.filter, np.int8), (piece,)))
    found = recovered(tmp_path_factory.mktemp("build"), layers)
    for mine, layer in zip(found, layers, strict=True):
        assert same_map(mine, list(layer.pieces)), f"{mine} {layer.pieces}"


@settings(max_examples=40)
@given(data=st.data())
def test_submasks_are_recovered(data, tmp_path_factory):
    dims = tuple(data.draw(st.integers(*span)) for span in ((8, 24), (2, 7), (2, 7), (3, 16)))
    axis = data.draw(st.integers(0, 3))
    cut = data.draw(st.integers(1, dims[axis] - 1))
    parts = []
    for first, extent in ((0, cut), (cut, dims[axis] - cut)):
        start, inner = [0, 0, 0, 0], list(dims)
        start[axis], inner[axis] = first, extent
        layout = Blocked(data.draw(st.integers(1, inner[0])), data.draw(st.integers(1, inner[3])))
        parts.append(Piece(dims, Box(tuple(start), tuple(inner)), data.draw(st.sampled_from((Plain(), layout)))))
    layer = Layer("CONV_2D", np.zeros(dims, np.int8), tuple(parts))
    assert same_map(recovered(tmp_path_factory.mktemp("build"), [layer])[0], parts)


def test_slices_without_a_telling_name_are_recovered(tmp_path):
    dims = (8, 5, 5, 6)
    parts = tuple(Piece(dims, Box((0, h, 0, 0), (8, n, 5, 6)), Plain()) for h, n in ((0, 3), (3, 2)))
    write_compiled(tmp_path, Build(layers=(Layer("CONV_2D", random_weights(dims), parts),)))
    info = tmp_path / "network_c_info.json"
    info.write_text(info.read_text().replace("submask", "part"))
    entries = solver.search(read_compiled(tmp_path), [Filter("f", 0, random_weights(dims))], [0])
    assert [e.piece for e in entries] == list(parts)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_networks_are_recovered_whole(name, compiler, tmp_path):
    tflite = network(name)
    info = write_network(tmp_path, tflite, Build(COMPILERS[compiler]))
    compiled = read_compiled(tmp_path)
    found = recover(compiled, tflite)
    segments = trainable_segments(read_graph(tflite))
    buffers = [b["name"] for b in info["buffers"] if "_weights" in b["name"]]
    assert [e.buffer.name for e in found.entries] == buffers
    weights = read_weights(tflite, segments)
    starts = np.cumsum([0] + [s.count for s in segments])
    image = next(tmp_path.glob("*WEIGHTS.raw")).read_bytes()
    seen = np.zeros(len(weights), int)
    for e in found.entries:
        index = starts[e.segment] + e.piece.weights()
        at = e.buffer.address - found.pools[0].address + e.piece.offsets()
        assert np.array_equal(np.frombuffer(image, np.int8)[at], weights[index])
        np.add.at(seen, index, 1)
    assert (seen == 1).all()
    findings = check(compiled, found)
    assert findings.cpu == () and bool(findings.warnings) == (compiler == "4.0")


@pytest.mark.parametrize("scope", ["head", "depthwise", "second-half"])
def test_a_part_of_the_network_is_recovered(scope, tmp_path):
    tflite = network("mobilenet_v2_035_32")
    write_network(tmp_path, tflite)
    found = recover(read_compiled(tmp_path), tflite, scope)
    assert [f.values.size for f in found.filters] == [s.count for s in trainable_segments(read_graph(tflite), scope)]


def test_equal_filters_are_in_doubt_even_if_only_one_is_trained(tmp_path):
    tflite = network("mobilenet_v2_035_32")
    values = filter_values(tflite, 13)
    tflite = with_filter(tflite, 16, values)
    write_network(tmp_path, tflite)
    with pytest.raises(Ambiguous, match=r"block_4_depthwise.*block_5_depthwise.*the same bytes"):
        recover(read_compiled(tmp_path), tflite, "first-half")
    recover(read_compiled(tmp_path), tflite, "head")


# --- repeated weights and the probe -------------------------------------------------------------------------------


def with_filter(tflite: bytes, number: int, values: np.ndarray) -> bytes:
    segments = trainable_segments(read_graph(tflite))
    weights = read_weights(tflite, segments)
    first = sum(s.count for s in segments[:number])
    weights[first : first + segments[number].count] = values.ravel()
    return write_weights(tflite, segments, weights)


def filter_values(tflite: bytes, number: int) -> np.ndarray:
    return solver.filters_of(read_graph(tflite), trainable_segments(read_graph(tflite)))[number].values


def build_with_probe(tmp_path: Path, tflite: bytes) -> tuple[object, tuple[object, bytes]]:
    """A network and its probe, compiled in the same way."""
    probe, layers = probe_model(tflite, 7), layers_of(tflite)
    write_network(tmp_path / "real", tflite, Build(layers=layers))
    write_network(tmp_path / "probe", probe, Build(layers=layers))
    return read_compiled(tmp_path / "real"), (read_compiled(tmp_path / "probe"), probe)


def test_the_probe_settles_layouts_of_constant_weights(tmp_path):
    tflite = network("resnet18_w8_32")
    tflite = with_filter(tflite, 6, np.full_like(filter_values(tflite, 6), 3))
    compiled, probe = build_with_probe(tmp_path, tflite)
    with pytest.raises(Ambiguous, match=r"stage2_block1_conv2.*Conv2D_18_weights.*plain.*blocked.*--compiled-probe"):
        recover(compiled, tflite)
    found = recover(compiled, tflite, probe=probe)
    assert [e.piece for e in found.of(6)] == list(layers_of(tflite)[6].pieces)


def test_the_probe_settles_which_of_two_equal_filters_a_buffer_holds(tmp_path):
    tflite = network("resnet18_w8_32")
    tflite = with_filter(tflite, 2, filter_values(tflite, 1))
    compiled, probe = build_with_probe(tmp_path, tflite)
    with pytest.raises(Ambiguous, match=r"stage1_block1_conv1.*stage1_block1_conv2.*the same bytes.*Conv2D_3_weights"):
        recover(compiled, tflite)
    found = recover(compiled, tflite, probe=probe)
    assert [found.of(n)[0].buffer.name for n in (1, 2)] == ["Conv2D_3_weights", "Conv2D_6_weights"]


def test_a_probe_of_another_build_is_refused(tmp_path):
    tflite = network("resnet18_w8_32")
    compiled, probe = build_with_probe(tmp_path, tflite)
    write_network(tmp_path / "other", probe[1], Build(layers=tuple(plain(x) for x in layers_of(tflite))))
    with pytest.raises(
        UserError, match=r"the probe's layout of .*plain in buffer 'Conv2D_18_weights'.*bytes are wrong"
    ):
        recover(compiled, tflite, probe=(read_compiled(tmp_path / "other"), probe[1]))
    mobile = network("mobilenet_v2_035_32")
    with pytest.raises(UserError, match="the probe is not of this network"):
        recover(compiled, tflite, probe=(probe[0], mobile))


def plain(layer: Layer) -> Layer:
    dims = layer.values.shape
    return replace(layer, pieces=(Piece(dims, Box.whole(dims), Plain()),))


def test_a_probe_has_random_weights_and_nothing_else_new():
    tflite = network("resnet18_w8_32")
    probe = probe_model(tflite, 3)
    segments = trainable_segments(read_graph(tflite))
    weights = read_weights(probe, segments)
    assert probe == probe_model(tflite, 3) != probe_model(tflite, 4)
    assert write_weights(probe, segments, read_weights(tflite, segments)) == tflite
    assert weights.min() == -127 and weights.max() == 127


def network_source(info: dict, convolutions: str = "") -> str:
    """The tables of a generated network source that say what a c_info.json says of pools and buffers."""
    lines = [' * GIT_DESCRIPTION "STAI-3.0.0-1"']
    for p in info["memory_pools"]:
        rights = {"ACC_READ": "READ_ONLY", "ACC_WRITE": "READ_WRITE"}[p["rights"]]
        lines.append(
            f"/* index={p['id']} file postfix={p['fname'].split('.')[1]} name={p['name']} offset={int(p['address']):#x}"
            f"  absolute_mode size={p['size_bytes']} {rights} THROUGHPUT=HIGH cacheable=OFF read_power=1  */"
        )
    lines += [convolutions, "const LL_Buffer_InfoTypeDef *LL_ATON_Input_Buffers_Info_network(void)"]
    addresses = {p["id"]: int(p["address"]) for p in info["memory_pools"]}
    for b in info["buffers"]:
        kind = "DataType_INT8" if b["format"] == "STAI_FORMAT_S8" else "DataType_FXP"
        start, address = b["offset_start"], addresses[b["mpool_id"]]
        lines.append(
            f'    {{\n      .name = "{b["name"]}",\n      .addr_base = {{(unsigned char *)({address:#x}UL) /* */}},\n'
            f"      .offset_start = {start},\n      .offset_end = {start + b['size_bytes']},\n"
            f"      .is_param = {int(b['is_param'])},\n      .batch = {b['batch']},\n      .type = {kind},\n"
            f"      .nbits = {b['nbits']},\n    }},"
        )
    return "\n".join(lines)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_source_alone_is_enough_for_the_map(name, tmp_path):
    tflite = network(name)
    info = write_network(tmp_path, tflite)
    whole = recover(read_compiled(tmp_path), tflite)
    (tmp_path / "network_c_info.json").unlink()
    (tmp_path / "network.c").write_text(network_source(info))
    compiled = read_compiled(tmp_path)
    found = recover(compiled, tflite)
    assert [(e.segment, e.piece, e.buffer.address) for e in found.entries] == [
        (e.segment, e.piece, e.buffer.address) for e in whole.entries
    ]
    assert compiled.version == "3.0.0-1" and found.pools[0].rights == "ACC_READ"
    with pytest.raises(UserError, match=r"lacks network_c_info.json"):
        check(compiled, found)


@pytest.mark.parametrize("layout", [Blocked(8, 8), Blocked(5, 7), Plain()])
def test_the_network_source_settles_what_it_says(layout, tmp_path):
    dims = (16, 3, 3, 16)
    piece = Piece(dims, Box.whole(dims), layout)
    layer = Layer("CONV_2D", np.full(dims, 5, np.int8), (piece,))
    write_compiled(tmp_path, Build(layers=(layer,)))
    kernels, depth = (layout.outputs, layout.inputs) if isinstance(layout, Blocked) else (8, 16)
    (tmp_path / "network.c").write_text(
        "const LL_Buffer_InfoTypeDef *LL_ATON_Input_Buffers_Info_network(void)\n"
        "static const LL_Convacc_InitTypeDef Conv2D_0_init3 = {\n"
        f" .deepmode = 0,\n .nKernels = {kernels},\n .batchDepth = {depth},\n}};"
    )
    found = solver.search(read_compiled(tmp_path), [Filter("f", 0, layer.values)], [0])
    assert same_map([found[0].piece], [piece])


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.fixture
def resnet(tmp_path) -> tuple[Path, bytes, dict]:
    tflite = network("resnet18_w8_32")
    return tmp_path, tflite, write_network(tmp_path, tflite)


def change(folder: Path, at: int, values: bytes) -> None:
    raw = folder / "network_atonbuf.WEIGHTS.raw"
    data = bytearray(raw.read_bytes())
    data[at : at + len(values)] = values
    raw.write_bytes(data)


def buffer_of(info: dict, name: str) -> dict:
    return next(b for b in info["buffers"] if b["name"] == name)


def rewrite(folder: Path, info: dict) -> None:
    (folder / "network_c_info.json").write_text(json.dumps(info))


def refusal(folder: Path, tflite: bytes, **options) -> str:
    with pytest.raises(UserError) as error:
        compiled = read_compiled(folder)
        check(compiled, recover(compiled, tflite), **options)
    text = str(error.value)
    assert text.endswith((".", "?")) and "Traceback" not in text
    return text


def test_a_flipped_byte_is_refused(resnet):
    folder, tflite, info = resnet
    start = buffer_of(info, "Conv2D_18_weights")["offset_start"]
    raw = (folder / "network_atonbuf.WEIGHTS.raw").read_bytes()
    change(folder, start + 77, bytes([raw[start + 77] ^ 4]))
    text = refusal(folder, tflite)
    assert "stage2_block1_conv2" in text and "'Conv2D_18_weights'" in text
    assert "blocked outputs=8 inputs=8 with 1 of 2304 bytes wrong, first a weight at offset 77" in text


def test_swapped_blocks_are_refused(resnet):
    folder, tflite, info = resnet
    start = buffer_of(info, "Conv2D_18_weights")["offset_start"]
    raw = (folder / "network_atonbuf.WEIGHTS.raw").read_bytes()
    change(folder, start, raw[start + 576 : start + 1152] + raw[start : start + 576])
    text = refusal(folder, tflite)
    assert "stage2_block1_conv2" in text and "'Conv2D_18_weights'" in text and "nearest is blocked" in text


def test_a_pad_byte_that_is_not_zero_is_refused(tmp_path):
    tflite = network("resnet18_w8_32")
    info = write_network(tmp_path, tflite)
    buffer = buffer_of(info, "Gemm_60_weights_transposed_60")
    assert buffer["size_bytes"] == 642
    change(tmp_path, buffer["offset_start"] + 641, b"\x09")
    text = refusal(tmp_path, tflite)
    assert "logits" in text and "1 of 642 bytes wrong, first a byte that has to be zero at offset 641" in text


def test_a_structural_zero_that_is_not_zero_is_refused(tmp_path):
    tflite = network("mobilenet_v2_035_32")
    info = write_network(tmp_path, tflite)
    buffer = next(b for b in info["buffers"] if "inflated" in b["name"])
    change(tmp_path, buffer["offset_start"] + 1, b"\x01")
    text = refusal(tmp_path, tflite)
    assert buffer["name"] in text and "a byte that has to be zero at offset 1" in text and "inflated depth=8" in text


def test_a_byte_between_buffers_is_refused(resnet):
    folder, tflite, info = resnet
    scale = next(b for b in info["buffers"] if "off_bias" in b["name"] and b["size_bytes"] % 16)
    change(folder, scale["offset_start"] + scale["size_bytes"], b"\x01")
    assert f"byte {scale['offset_start'] + scale['size_bytes']} of pool 'weights'" in refusal(folder, tflite)


def test_a_missing_buffer_is_refused(resnet):
    folder, tflite, info = resnet
    info["buffers"].remove(buffer_of(info, "Gemm_60_weights_transposed_60"))
    rewrite(folder, info)
    text = refusal(folder, tflite)
    assert "logits" in text and "one is missing" in text


def test_a_filter_that_is_held_twice_is_refused(tmp_path):
    dims = (8, 3, 3, 8)
    layer = Layer("CONV_2D", random_weights(dims), (Piece(dims, Box.whole(dims), Plain()),))
    write_compiled(tmp_path, Build(layers=(layer, layer)))
    with pytest.raises(UserError, match=r"'Conv2D_0_weights' and 'Conv2D_3_weights' both hold them"):
        solver.search(read_compiled(tmp_path), [Filter("f", 0, layer.values)], [0])


def test_a_part_of_a_filter_that_is_missing_is_refused(tmp_path):
    dims = (8, 5, 5, 6)
    parts = tuple(Piece(dims, Box((0, h, 0, 0), (8, n, 5, 6)), Plain()) for h, n in ((0, 3), (3, 2)))
    info = write_compiled(tmp_path, Build(layers=(Layer("CONV_2D", random_weights(dims), parts),)))
    del info["buffers"][1]
    rewrite(tmp_path, info)
    with pytest.raises(UserError, match=r"'f', 8x5x5x6, .*only plain of 0:8,0:3,0:5,0:6 in buffer.* fit; no other"):
        solver.search(read_compiled(tmp_path), [Filter("f", 0, random_weights(dims))], [0])


def test_overlapping_parameters_are_refused(resnet):
    folder, tflite, info = resnet
    scale = next(b for b in info["buffers"] if "mul_scale" in b["name"])
    scale["offset_start"] = buffer_of(info, "Conv2D_18_weights")["offset_start"] + 8
    rewrite(folder, info)
    assert f"'Conv2D_18_weights' and '{scale['name']}' overlap" in refusal(folder, tflite)


def test_an_activation_over_parameters_is_refused(resnet):
    folder, tflite, info = resnet
    buffer = buffer_of(info, "Conv2D_3_out_0")
    buffer["offset_start"] = 0x34200000 - 0x34350000 + 64
    rewrite(folder, info)
    text = refusal(folder, tflite)
    assert "'Conv2D_3_out_0' overlaps parameter buffer 'Conv2D_0_weights' at 0x34200040" in text


def test_an_activation_in_the_pool_of_the_weights_is_refused(resnet):
    folder, tflite, info = resnet
    buffer_of(info, "Conv2D_3_out_0").update(mpool_id=1, offset_start=0x100000)
    rewrite(folder, info)
    assert "together with activation buffer 'Conv2D_3_out_0'" in refusal(folder, tflite)


def test_a_trainable_layer_on_the_cpu_is_refused(tmp_path):
    tflite = network("resnet18_w8_32")
    layers = list(layers_of(tflite))
    layers[6] = replace(layers[6], mapping="NODE_SW")
    write_network(tmp_path, tflite, Build(layers=tuple(layers)))
    text = refusal(tmp_path, tflite)
    assert "'Conv2D_18'" in text and "stage2_block1_conv2" in text and "NODE_SW" in text
    compiled = read_compiled(tmp_path)
    check(compiled, recover(compiled, tflite, "head"))  # which does not train that layer


def test_nodes_of_the_cpu_are_listed(tmp_path):
    tflite = network("resnet18_w8_32")
    write_network(tmp_path, tflite, Build(cpu=("Softmax", "Quantize")))
    compiled = read_compiled(tmp_path)
    assert check(compiled, recover(compiled, tflite)).cpu == ("Softmax_21 (Softmax)", "Quantize_22 (Quantize)")


@pytest.mark.parametrize("version", ["1.0.0-1", "7.1.0", ""])
def test_an_unknown_compiler_is_refused_unless_allowed(version, tmp_path):
    tflite = network("resnet18_w8_32")
    write_network(tmp_path, tflite, Build(replace(COMPILERS["3.0"], core=version)))
    text = refusal(tmp_path, tflite)
    assert (version or "unknown version") in text and "--any-npu-compiler" in text
    compiled = read_compiled(tmp_path)
    assert "is unknown" in check(compiled, recover(compiled, tflite), any_version=True).warnings[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rights": "ACC_WRITE"}, "'weights' (0x34200000) with rights ACC_WRITE"),
        ({"weights_address": 0x70380000}, "'weights' (0x70380000), which is not RAM"),
    ],
)
def test_weights_have_to_lie_in_a_ram_pool_of_their_own(changes, said, tmp_path):
    tflite = network("resnet18_w8_32")
    write_network(tmp_path, tflite, Build(**changes))
    assert said in refusal(tmp_path, tflite)


def test_a_virtual_pool_is_refused(resnet):
    folder, tflite, info = resnet
    pool = info["memory_pools"][0]
    info["memory_pools"].append(pool | {"id": 3, "name": "both", "fname": "", "subpools": [1]})
    for b in info["buffers"]:
        b["mpool_id"] = 3 if b["is_param"] else 2
    rewrite(folder, info)
    assert "pool 'both' (0x34200000), a virtual pool" in refusal(folder, tflite)


def test_what_is_missing_in_a_directory_is_named(resnet):
    folder, tflite, _ = resnet
    raw = folder / "network_atonbuf.WEIGHTS.raw"
    whole = raw.read_bytes()
    raw.write_bytes(whole[:1000])
    assert "no raw file holds" in refusal(folder, tflite)
    raw.unlink()
    assert "lacks the memory file of pool 'weights', network_atonbuf.WEIGHTS.raw" in refusal(folder, tflite)
    raw.write_bytes(whole)
    (folder / "other_c_info.json").write_text("{}")
    assert "several *c_info.json" in refusal(folder, tflite)
    (folder / "other_c_info.json").unlink()
    (folder / "network_c_info.json").unlink()
    assert "neither network_c_info.json nor network.c" in refusal(folder, tflite)


def test_another_network_is_refused(resnet):
    folder, _, _ = resnet
    assert "are not explained" in refusal(folder, network("mobilenet_v2_035_32"))


@pytest.fixture(scope="module")
def small_build(tmp_path_factory) -> tuple[Path, bytes, dict]:
    """tiny.tflite with random weights: the smallest network with every part of a c_info.json."""
    folder, tflite = tmp_path_factory.mktemp("small"), probe_model(tiny_tflite(), 1)
    return folder, tflite, write_network(folder, tflite, Build(cpu=("Softmax",)))


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_c_info_is_refused_in_a_sentence(small_build, seed):
    folder, tflite, whole = small_build
    rng, info, places = random.Random(seed), json.loads(json.dumps(whole)), []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(info)
    node, key = rng.choice(places)
    if rng.random() < 0.3:
        del node[key]
    else:
        node[key] = rng.choice([None, -1, 0, 1, "x", [], {}, 1 << 40, 3.5, True, "12"])
    rewrite(folder, info)
    try:
        compiled = read_compiled(folder)
        found = recover(compiled, tflite)
        check(compiled, found)
        section.unpack(section.pack(section.from_map(found)))
    except UserError as error:
        assert len(str(error)) > 20
    rewrite(folder, whole)


@settings(max_examples=40)
@given(data=st.data())
def test_no_wrong_byte_goes_unseen(small_build, data):
    """One changed byte anywhere in the memory file is refused, unless it is one of a scale or a bias."""
    folder, tflite, info = small_build
    raw = folder / "network_atonbuf.WEIGHTS.raw"
    whole = raw.read_bytes()
    at, flip = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    others = [b for b in info["buffers"] if b["is_param"] and b["nbits"] > 8]
    harmless = any(b["offset_start"] <= at < b["offset_start"] + b["size_bytes"] for b in others)
    change(folder, at, bytes([whole[at] ^ flip]))
    try:
        if harmless:
            recover(read_compiled(folder), tflite)
        else:
            refusal(folder, tflite)
    finally:
        raw.write_bytes(whole)


# --- the section --------------------------------------------------------------------------------------------------


def section_of(folder: Path, tflite: bytes) -> section.Section:
    return section.from_map(recover(read_compiled(folder), tflite))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_section_comes_back_as_it_was(name, tmp_path):
    tflite = network(name)
    write_network(tmp_path, tflite, Build(cacheable="CACHEABLE_ON"))
    mine = section_of(tmp_path, tflite)
    data = section.pack(mine)
    counts = [s.count for s in trainable_segments(read_graph(tflite))]
    assert section.unpack(data, counts) == mine and mine.pools[0].cacheable
    assert mine.crc == zlib.crc32((tmp_path / "network_atonbuf.WEIGHTS.raw").read_bytes())
    assert len(data) == 4 * (section.HEADER_WORDS + section.POOL_WORDS + section.ENTRY_WORDS * len(mine.entries))
    with pytest.raises(UserError, match="segment 3 has"):
        section.unpack(data, [c + (n == 3) for n, c in enumerate(counts)])
    with pytest.raises(UserError, match="its segments are not those"):
        section.unpack(data, counts[:-1])


@given(pieces())
def test_any_piece_comes_back_from_a_section(piece):
    piece = Piece(piece.box.dims, Box.whole(piece.box.dims), piece.layout)
    pool = section.SectionPool(0x34200000, piece.size + 16, False)
    mine = section.Section(123, (pool,), (section.SectionEntry(0, 0, 16, piece),))
    assert section.unpack(section.pack(mine)) == mine


SMALL = section.Section(
    5,
    (section.SectionPool(0x34200000, 4096, False),),
    (
        section.SectionEntry(0, 0, 0, Piece((8, 5, 5, 4), Box((0, 0, 0, 0), (8, 3, 5, 4)), Blocked(4, 2))),
        section.SectionEntry(0, 0, 480, Piece((8, 5, 5, 4), Box((0, 3, 0, 0), (8, 2, 5, 4)), Plain())),
        section.SectionEntry(1, 0, 800, Piece((16, 1, 1, 32), Box.whole((16, 1, 1, 32)), Deep(16, 32))),
        section.SectionEntry(2, 0, 1328, Piece((1, 3, 3, 8), Box.whole((1, 3, 3, 8)), Inflated(8))),
    ),
)


@settings(max_examples=600)
@given(
    st.integers(0, len(section.pack(SMALL)) // 4 - 1),
    st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1), st.sampled_from([2**31, 2**32 - 1])),
)
def test_a_hostile_section_is_refused_or_sound(word, value):
    data = bytearray(section.pack(SMALL))
    struct.pack_into("<I", data, 4 * word, value)
    try:
        found = section.unpack(bytes(data))
    except UserError:
        return
    taken = np.zeros(found.pools[0].size, int)
    for e in found.entries:
        taken[e.offset : e.offset + e.piece.size] += 1
        assert e.piece.offsets().max() < e.piece.size
    assert taken.max() <= 1
    for n in range(3):
        group = [e.piece for e in found.entries if e.segment == n]
        assert covers(group, group[0].filter)


@given(st.binary(max_size=300))
def test_noise_is_no_section(data):
    with pytest.raises(UserError, match="the NART section is damaged"):
        section.unpack(data)


def test_a_truncated_section_is_refused():
    data = section.pack(SMALL)
    for end in (0, 3, 15, 16, 31, 32, len(data) - 4, len(data) - 1):
        with pytest.raises(UserError, match="the NART section is damaged"):
            section.unpack(data[:end])


# --- the compiler's input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", profile.VARIANTS)
@pytest.mark.parametrize("size", [1, 300_000, 500_000, 1_835_008])
def test_weights_have_a_pool_of_their_own(variant, size):
    pools = profile.memory_pools(size, variant)
    assert [p.rights for p in pools] == ["ACC_READ", *["ACC_WRITE"] * (len(pools) - 1)] and len(pools) > 1
    assert pools[0].size >= size
    ordered = sorted(pools, key=lambda p: p.address)
    assert all(a.address + a.size <= b.address for a, b in itertools.pairwise(ordered))
    assert all(p.address >= 0x34100000 and p.address + p.size <= 0x343C0000 for p in pools)
    read = json.loads(profile.mpool_file(pools))["memory"]["mempools"]
    assert read[0]["prop"]["constants_preferred"] == "true" and read[0]["offset"]["value"] == "0x34200000"


def test_a_network_that_is_too_large_needs_the_dk():
    with pytest.raises(UserError, match=r"1,835,009 bytes.*--variant dk"):
        profile.memory_pools(1_835_009, "nucleo")
    assert profile.memory_pools(1_835_009, "dk")[0].address == 0x90000000
    with pytest.raises(UserError, match="narrower"):
        profile.memory_pools(1 << 26, "dk")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_estimate_of_parameters_is_enough(name, tmp_path):
    tflite = network(name)
    write_network(tmp_path, tflite)
    estimate = profile.parameter_bytes(read_graph(tflite))
    used = (tmp_path / "network_atonbuf.WEIGHTS.raw").stat().st_size
    assert used <= estimate <= 2 * used


def test_the_profile_leaves_out_what_training_cannot_have():
    options = json.loads(profile.profile_file())["Profiles"][profile.PROFILE]["options"]
    assert "--all-buffers-info" in options
    assert not any(o in options for o in ("virtual", "epoch-controller", "mvei"))


# --- convert --npu ------------------------------------------------------------------------------------------------

FAKE_COMPILER = """#!{python}
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from converters.neural_art.writer import Build, layers_of, write_network
assert sys.argv[1] == "generate"
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert Path(options["--st-neural-art"].split("@")[1]).is_file() and options["--target"] == "stm32n6"
tflite = Path(options["--model"]).read_bytes()
write_network(Path(options["--output"]), tflite, Build(cpu=("Softmax",)))
"""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "fm"
    write_fashion_mnist(folder, train=100, test=100)
    return folder


def run_convert(tmp_path: Path, data_dir: Path, model: Path, *more: object):
    arguments = [
        "--tflite",
        model,
        "--data-dir",
        data_dir,
        "--name",
        "n",
        "--out",
        tmp_path,
        "--allow-drop",
        100,
        *more,
    ]
    return CliRunner().invoke(convert.main, [str(a) for a in arguments])


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "stedgeai"
    root = str(Path(convert.__file__).parents[1])
    command.write_text(FAKE_COMPILER.format(python=sys.executable, path=[root]))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return command


def test_convert_says_what_to_do_without_the_compiler_and_takes_what_it_made(tmp_path, data_dir, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    model = FIXTURES / "resnet18_w8_32.tflite"
    result = run_convert(tmp_path, data_dir, model, "--npu", "neural_art")
    folder = tmp_path / "n" / "neural_art"
    assert result.exit_code == 1 and "Traceback" not in result.output
    said = result.stderr.splitlines()[-1]
    assert said.startswith("error: stedgeai") and f"--compiled {folder}/compiled" in said
    assert "stedgeai generate --model ../n.tflite --target stm32n6" in said
    assert {p.name for p in folder.iterdir()} == {"n.probe.tflite", profile.MPOOL_FILE, profile.PROFILE_FILE}
    write_network(folder / "compiled", (tmp_path / "n" / "n.tflite").read_bytes())
    result = run_convert(tmp_path, data_dir, model, "--npu", "neural_art", "--compiled", folder / "compiled")
    assert result.exit_code == 0, result.output
    assert re.search(r"block1_conv2.* Conv2D_18_weights +blocked outputs=8 inputs=8 +2,304  0\n", result.output)
    assert "on the CPU: nothing" in result.output and "network of unknown identity" in result.output
    command = f"pipeline.firmware --board stm32n6 --variant nucleo --kernels mve --npu {folder / 'compiled'} --st-npu"
    assert command in result.output.splitlines()[-1]
    tflite = (tmp_path / "n" / "n.tflite").read_bytes()
    found = section.unpack((folder / "n.nart").read_bytes(), [s.count for s in trainable_segments(read_graph(tflite))])
    assert found.pools[0].address == 0x34200000
    image = DeviceImage.read((folder / "n.zimg").read_bytes())
    assert image.npu.section == found and image.tflite == tflite


def test_convert_decides_whether_a_compiled_network_fits(tmp_path, data_dir, fake_compiler, monkeypatch):
    """By the board's memory in a build for the NPU, whatever the int8 runner would need there."""
    model, npu = FIXTURES / "resnet18_w8_32.tflite", ("--npu", "neural_art")
    result = run_convert(tmp_path, data_dir, model, *npu, "--board", "qemu_an547")
    assert result.exit_code == 1 and "qemu_an547 has no Neural-ART NPU: use --board stm32n6" in result.stderr
    small = replace(NPU_BOARDS["stm32n6"], regions=(Region(0, 4096),) * 3 + (Region(3, 0),))
    for board, fits in ((NPU_BOARDS["stm32n6"], True), (small, False)):
        monkeypatch.setitem(NPU_BOARDS, "stm32n6", board)
        result = run_convert(tmp_path, data_dir, model, *npu, "--board", "stm32n6")
        assert result.exit_code == (0 if fits else 1), result.output
        assert ("does not fit the board stm32n6: one sample takes 3,074 bytes" in result.stderr) != fits
    compiled, source = tmp_path / "n" / "neural_art" / "compiled", "#include <x>\n/* LL_ATON_Input_Buffers_Info_ */\n"
    (compiled / "network.c").write_text(source)
    monkeypatch.undo()
    result = run_convert(tmp_path, data_dir, model, *npu, "--compiled", compiled)
    id = network_id(source.encode())
    assert f"network {id:08x}: firmware with another one refuses the image; activations take 32,768" in result.output
    assert DeviceImage.read((compiled.parent / "n.zimg").read_bytes()).npu.section.network == id


def test_convert_runs_the_compiler(tmp_path, data_dir, fake_compiler):
    model = FIXTURES / "mobilenet_v2_035_32.tflite"
    result = run_convert(tmp_path, data_dir, model, "--npu", "neural_art", "--variant", "dk", "--train", "depthwise")
    assert result.exit_code == 0, result.output
    assert "inflated depth=8" in result.output and "on the CPU: Softmax_53 (Softmax)" in result.output


def test_convert_compiles_the_probe_where_weights_repeat(tmp_path, data_dir, fake_compiler):
    model = tmp_path / "constant.tflite"
    tflite = (FIXTURES / "resnet18_w8_32.tflite").read_bytes()
    model.write_bytes(with_filter(tflite, 6, np.full_like(filter_values(tflite, 6), 3)))
    result = run_convert(tmp_path, data_dir, model, "--npu", "neural_art")
    assert result.exit_code == 0, result.output
    assert "the weights repeat" in result.output and (tmp_path / "n" / "neural_art" / "n.nart").is_file()
    compiled = tmp_path / "n" / "neural_art" / "compiled"
    result = run_convert(tmp_path, data_dir, model, "--npu", "neural_art", "--compiled", compiled)
    assert result.exit_code == 1 and "--compiled-probe" in result.stderr
    probe = compiled.with_name("compiled_probe")
    result = run_convert(
        tmp_path, data_dir, model, "--npu", "neural_art", "--compiled", compiled, "--compiled-probe", probe
    )
    assert result.exit_code == 0, result.output


def test_convert_says_why_the_compiler_failed(tmp_path, data_dir, fake_compiler):
    fake_compiler.write_text("#!/bin/sh\necho 'E102: no such option'\nexit 3\n")
    result = run_convert(tmp_path, data_dir, FIXTURES / "resnet18_w8_32.tflite", "--npu", "neural_art")
    assert result.exit_code == 1
    assert "exit code 3 (E102: no such option)" in result.stderr and "compiled.log" in result.stderr


@pytest.mark.parametrize("option", [("--variant", "dk"), ("--compiled", "."), ("--any-npu-compiler",)])
def test_options_of_the_npu_need_it(tmp_path, data_dir, option):
    result = run_convert(tmp_path, data_dir, FIXTURES / "tiny.tflite", *option)
    assert result.exit_code == 2 and re.search(r"has no meaning without .*--npu", result.output)


@settings(max_examples=30)
@given(dims=st.tuples(st.integers(1, 12), st.integers(1, 2), st.integers(1, 2), st.integers(1, 12)))
def test_every_layout_is_among_the_candidates_as_a_permutation(dims):
    """Whatever parameters a layout has, some candidate puts every weight where it does."""
    no, nh, nw, ni = dims
    layouts = [Plain(), *(Blocked(o, i) for o in range(1, no + 1) for i in range(1, ni + 1))]
    if nh == nw == 1:
        spans = itertools.product(range(1, no + 1), range(1, ni + 1), (1, 4, 8), (1, 3))
        layouts += [Deep(*span) for span in spans]
    wanted = {(p.size, p.offsets().tobytes()) for p in (Piece(dims, Box.whole(dims), x) for x in layouts)}
    for size in {size for size, _ in wanted}:
        found = set()
        for grid in solver.candidates(dims, size):
            parameters = solver.parameter_arrays(grid)
            for values in zip(*parameters, strict=True) if parameters else [()]:
                found.add(Piece(dims, Box.whole(dims), type(grid)(*map(int, values))).offsets().tobytes())
        assert {offsets for n, offsets in wanted if n == size} <= found


def test_fitting_finds_nothing_in_other_bytes():
    f = Filter("f", 0, random_weights((4, 3, 3, 4)))
    data = random_weights((144,), 9)
    assert fitting(f, Box.whole(f.dims), data) == []
