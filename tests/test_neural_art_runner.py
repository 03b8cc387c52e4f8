"""Training through runners/neural_art on a simulated NPU (tests/ll_aton): equal to the twin and to the int8 board."""

from __future__ import annotations

import itertools
import random
import struct
import subprocess
import zlib
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from app_library import SANITIZE
from npu_builds import MIXES, NETWORKS, NpuBuild, make_build, network, network_source, npu_board, with_entries
from oracles import random_pixels
from test_app_image import sections, with_crc
from tiny_model import SHAPE, tiny_tflite

from converters import device_image
from converters.device_image import DeviceImage, InputSpec, Preprocessing
from converters.errors import UserError
from converters.neural_art.compiled import network_id
from converters.neural_art.layouts import Blocked, Deep, Inflated, Plain
from converters.neural_art.section import SectionEntry
from converters.tflite_model import read_weights
from pipeline.targets import client
from pipeline.targets.boards import ROOT, _tool, open_board
from pipeline.targets.client import Board, CannotTrace
from pipeline.targets.memory import BoardMemory, Placement, fit, place, requirements
from pipeline.targets.target import NEAREST, NPU, STOCHASTIC, Region, Target, Update
from pipeline.targets.twin import Twin

STEPS, Q, MU, BATCH, SAMPLES = 20, 2, 2, 8, 20


def train(target: Target, spec: InputSpec, steps: int = STEPS) -> list[tuple[int, ...]]:
    """Losses, counts and checksum of each step: all that training sees of a target."""
    pixels = random_pixels(SAMPLES, (spec.height, spec.width, spec.channels), 3)
    target.write_samples(0, pixels, np.arange(SAMPLES) % 10)
    seen = []
    for step in range(steps):
        target.select([(BATCH * step + k) % SAMPLES for k in range(BATCH)])
        seeds = [1000 * step + j for j in range(Q)]
        probes = [target.probe(seed, MU) for seed in seeds]
        differences = [p.plus.loss - p.minus.loss for p in probes]
        scale = max(1, *map(abs, differences))
        coefficients = [60_000 * d // scale for d in differences]
        result = target.update(Update(STOCHASTIC, step, tuple(seeds), tuple(coefficients)))
        losses = [side for p in probes for side in (p.plus, p.minus)] + [target.loss()]
        numbers = [n for loss in losses for n in (loss.loss, loss.correct)]
        seen.append((*numbers, result.changed, result.at_rail, result.weights_crc))
    return seen


def int8_image(name: str) -> DeviceImage:
    return DeviceImage.read(device_image.build(network(name), Preprocessing()))


@cache
def expected(name: str) -> list[tuple[int, ...]]:
    """What the int8 board sees of a training."""
    image = int8_image(name)
    board = open_board("native", image.raw, threads=1, sanitize=SANITIZE)
    try:
        return train(board, image.input)
    finally:
        board.close()


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    made: dict[tuple, NpuBuild] = {}

    def get(name: str, mix: str, **options) -> NpuBuild:
        key = (name, mix, *options.items())
        if key not in made:
            made[key] = make_build(tmp_path_factory.mktemp("npu") / "compiled", network(name), mix, **options)
        return made[key]

    return get


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_the_int8_board(name, mix, builds):
    build = builds(name, mix)
    with npu_board(build) as board:
        assert train(board, board.image.input) == expected(name)
        adapted = board.read_tflite()
        info = board.refresh()
        weights = read_weights(adapted, board.image.segments)
        assert info.runner == "neural_art" and info.weights_crc == expected(name)[-1][-1]
        assert board.image.with_weights(weights) == adapted != board.image.tflite


@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_the_twin(name):
    """All mixes equal the int8 board; that equals the twin."""
    image = int8_image(name)
    twin = Twin(image, threads=2)
    assert train(twin, image.input) == expected(name)
    twin.close()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pool_that_the_npu_caches(name, builds):
    with npu_board(builds(name, "typical", cacheable=True)) as board:
        assert train(board, board.image.input) == expected(name)


def test_the_image_is_loaded_again_in_place(builds):
    name = NETWORKS[0]
    with npu_board(builds(name, "typical")) as board:
        train(board, board.image.input, 2)
        assert board.reset_weights() == int8_image_crc(name)
        assert train(board, board.image.input) == expected(name)


def int8_image_crc(name: str) -> int:
    return zlib.crc32(int8_image(name).get_weights().tobytes())


# -- what is left out or wrong is seen ---------------------------------------------------------------------------------


def differs(build: NpuBuild, name: str, image: bytes | None = None, **options) -> str:
    """What ends a training that cannot go well, or "numbers" where it goes on with others."""
    try:
        with npu_board(build, image, **options) as board:
            steps = 3
            return "nothing" if train(board, board.image.input, steps) == expected(name)[:steps] else "numbers"
    except UserError as error:
        return str(error)


@pytest.mark.parametrize(
    ("ignore", "cacheable", "seen"),
    [
        ("first weights", False, "holds no weight and has changed"),
        ("weights", False, "numbers"),
        ("input", False, "numbers"),
        ("output", False, "numbers"),
        ("npu", True, "holds no weight and has changed"),
        ("nonsense", True, "nothing"),
    ],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_cache_maintenance_left_out(name, ignore, cacheable, seen, builds):
    assert seen in differs(builds(name, "typical", cacheable=cacheable), name, ignore=ignore)


@pytest.mark.parametrize(
    ("name", "mix", "written", "instead"),
    [
        ("mobilenet_v2_035_32", "inflated", Inflated, lambda layout: Plain()),
        ("mobilenet_v2_035_32", "inflated", Inflated, lambda layout: Inflated(layout.depth - 1)),
        ("resnet18_w8_32", "deep", Deep, lambda layout: replace(layout, multiple=1)),
        ("mobilenet_v2_035_32", "deep", Deep, lambda layout: replace(layout, multiple=1)),
    ],
)
def test_a_byte_without_a_weight_is_written(name, mix, written, instead, builds):
    """By a map that is sound but wrong for one filter, the last that has zeros where the wrong layout has weights."""
    build = builds(name, mix)
    wrong = {}
    for number, e in enumerate(DeviceImage.read(build.image).npu.section.entries):
        if isinstance(e.piece.layout, written) and e.piece.size > e.piece.live:
            other = replace(e.piece, layout=instead(e.piece.layout))
            if np.intersect1d(other.offsets(), e.piece.zeros()).size:
                wrong = {number: other}

    def change(number: int, e: SectionEntry) -> SectionEntry:
        return replace(e, piece=wrong.get(number, e.piece))

    assert "holds no weight and has changed" in differs(build, name, with_entries(build, change))


@pytest.mark.parametrize("mix", ["blocked", "submask"])
@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_are_swapped(name, mix, builds):
    """Two buffers of one size; the weights stay in place, only their order in the map is another."""
    build = builds(name, mix)
    entries = DeviceImage.read(build.image).npu.section.entries
    pairs = itertools.combinations(range(len(entries)), 2)
    live = {n for n, e in enumerate(entries) if e.piece.size == e.piece.live}
    a, b = next((a, b) for a, b in pairs if {a, b} <= live and entries[a].piece.size == entries[b].piece.size)
    offsets = {a: entries[b].offset, b: entries[a].offset}
    swapped = with_entries(build, lambda n, e: replace(e, offset=offsets.get(n, e.offset)))
    assert differs(build, name, swapped) == "numbers"


def test_a_block_of_another_size(builds):
    build = builds(NETWORKS[0], "blocked")
    entries = DeviceImage.read(build.image).npu.section.entries
    first = next(n for n, e in enumerate(entries) if isinstance(e.piece.layout, Blocked))

    def change(number: int, e: SectionEntry) -> SectionEntry:
        return replace(e, piece=replace(e.piece, layout=Plain())) if number == first else e

    assert differs(build, NETWORKS[0], with_entries(build, change)) == "numbers"


# -- what a board refuses ----------------------------------------------------------------------------------------------


def refusal(build: NpuBuild, image: bytes | None) -> str:
    with pytest.raises(UserError) as error, npu_board(build, image):
        pass
    return str(error.value)


def test_weights_at_another_address(builds):
    build = builds(NETWORKS[0], "plain")
    section = DeviceImage.read(build.image).npu.section
    pool = replace(section.pools[0], address=0x34350000)
    said = refusal(build, build.with_section(replace(section, pools=(pool,))))
    assert "compiled for weights at 0x34350000, the board has them at 0x34200000" in said


def test_a_pool_of_another_size(builds):
    build = builds(NETWORKS[0], "plain")
    section = DeviceImage.read(build.image).npu.section
    pool = replace(section.pools[0], size=section.pools[0].size + 1)
    with (
        pytest.raises(UserError, match=r"map of the weights is inconsistent \(entry 0, check 16\)"),
        npu_board(build, build.with_section(replace(section, pools=(pool,)))),
    ):
        pass


def test_another_network_in_the_firmware(builds, monkeypatch):
    """Of the same sizes: the host refuses before a byte is sent, and the board does when it has all of it."""
    build, other = (builds(name, "plain") for name in NETWORKS)
    ids = [DeviceImage.read(b.image).npu.section.network for b in (build, other)]
    said = f"compiled network {ids[1]:08x}, the board's firmware has {ids[0]:08x}"
    assert 0 not in ids and ids[0] != ids[1] and said in refusal(build, other.image)
    with npu_board(build) as board:
        assert board.info.network == ids[0]
    monkeypatch.setattr(Board, "_check", lambda self: None)
    assert said in refusal(build, other.image)
    with pytest.raises(UserError) as error, npu_board(build, other.image):
        pass
    assert error.value.__cause__.code == 33


@pytest.mark.parametrize("unknown", ["image", "firmware"])
def test_a_network_that_nobody_named_is_taken(unknown, builds, tmp_path):
    """Of the image or of the firmware: then sizes are compared."""
    build = builds(NETWORKS[0], "plain")
    nameless = build.with_section(replace(DeviceImage.read(build.image).npu.section, network=0))
    if unknown == "firmware":
        words = bytearray(build.network.read_bytes())
        words[4:8] = bytes(4)  # tests/ll_aton/network.c
        build = replace(build, network=tmp_path / "network.npu")
        build.network.write_bytes(words)
    with npu_board(build, nameless if unknown == "image" else None) as board:
        assert (board.info.network == 0) == (unknown == "firmware")
        assert train(board, board.image.input, 2) == expected(NETWORKS[0])[:2]
    other = make_build(tmp_path / "compiled", tiny_tflite(), "plain")
    nameless = other.with_section(replace(DeviceImage.read(other.image).npu.section, network=0))
    assert "input or output of 3,072 bytes, the image's has 297" in refusal(build, nameless)


@pytest.mark.parametrize(
    "source",
    [
        network_source(tiny_tflite(), "/* made in /home/a */\n"),
        "a; [b] \\n ${c} LL_ATON_Input_Buffers_Info_x é\n",
        "#include <x>\n;LL_ATON_Input_Buffers_Info_x\n#include <y>\n",
    ],
)
def test_cmake_and_converter_give_a_network_the_same_id(source, tmp_path):
    """Whatever its lines end in, and whatever stands before the first #include."""
    (tmp_path / "stai_network.c").write_text("#include <x>\n")
    (tmp_path / "network.c").write_bytes(source.encode())
    script = tmp_path / "id.cmake"
    script.write_text(
        f"include({ROOT}/tflm_app/runners/neural_art/identity.cmake)\n"
        f"neural_art_id(id {tmp_path}/stai_network.c {tmp_path}/network.c)\nmessage(STATUS ${{id}})\n"
    )
    said = subprocess.run([_tool("cmake"), "-P", str(script)], capture_output=True, text=True, check=True).stdout
    id = network_id(source.encode())
    assert said.strip() == f"-- 0x{id:08x}"
    assert id == network_id(source.replace("\n", "\r\n").encode())
    assert id != network_id(source.encode() + b" ")
    if "#include" in source:
        assert id == network_id(b"/* elsewhere */" + source[source.index("#include") :].encode())


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_compiled_network_needs_is_known(name, builds):
    """Every row that depends on it, and how many samples fit; the rows of the weights' pool are of a region apart."""
    with npu_board(builds(name, "typical")) as board:
        need, memory = requirements(board.image, NPU), BoardMemory.of(board.info)
        assert memory.kernels == NPU and [r.number for r in memory.regions] == [0, 0, 0, 3]
        assert memory.regions[3].size == 4 * 448 << 10
        placed = place(need, memory)
        assert isinstance(placed, Placement) and placed.capacity == board.info.capacity
        board.write_samples(0, np.zeros((3, 32, 32, 3)), np.zeros(3))
        rows = board.refresh().memory
        expected_rows = need.rows(1, 3)
        assert {row: rows[row] for row in expected_rows} == expected_rows


@pytest.mark.parametrize(
    ("region", "says"), [(0, "the image takes"), (2, "one sample takes"), (3, "memory file takes")]
)
def test_a_compiled_network_that_does_not_fit(region, says, builds):
    """Exactly what is there is enough, one byte less is not; a sentence says what to do."""
    need = requirements(DeviceImage.read(builds(NETWORKS[0], "typical").image), NPU)
    sizes = [need.image, 0, need.sample + 128, need.blob]
    memory = BoardMemory("small", NPU, 1, tuple(Region(n, size) for n, size in enumerate(sizes)), {})
    assert fit(need, memory) is None
    sizes[region] -= 1
    why = fit(need, replace(memory, regions=tuple(Region(n, size) for n, size in enumerate(sizes))))
    assert says in why and "1 more than the" in why and "use a smaller network or input" in why


def test_the_host_refuses_a_compiled_network_before_it_is_sent(builds, monkeypatch):
    sent = []
    command = Board._command
    monkeypatch.setattr(
        Board, "_command", lambda self, kind, *a, **k: sent.append(kind) or command(self, kind, *a, **k)
    )
    monkeypatch.setattr(
        client, "requirements", lambda image, kernels: replace(requirements(image, kernels), blob=1 << 30)
    )
    assert "memory file takes 1,073,741,824 bytes" in refusal(builds(NETWORKS[0], "plain"), None)
    assert sent == [client.HELLO]


def test_images_and_boards_of_different_runners(builds):
    build = builds(NETWORKS[0], "plain")
    assert "made for runner 1, the board has runner 2" in refusal(build, int8_image(NETWORKS[0]).raw)
    with pytest.raises(UserError, match="made for runner 2, the board has runner 1"):
        open_board("native", build.image, threads=1, sanitize=SANITIZE)


def test_single_ops_cannot_be_traced_or_profiled(builds):
    with npu_board(builds(NETWORKS[0], "plain")) as board:
        train(board, board.image.input, 1)
        with pytest.raises(CannotTrace):
            board.trace(0, 10)
        with pytest.raises(UserError, match="only runs whole networks"):
            board.profile_ops()
        assert board.profile_phases()["forward"] > 0


def test_frames_split_an_image_anywhere(builds):
    """Head and weights go to different memory, wherever frames begin and end."""
    build = builds(NETWORKS[0], "deep")
    rng = random.Random(1)
    with npu_board(build) as board:
        raw = board.image.for_board()
        for _ in range(5):
            cuts = sorted({0, len(raw), *rng.sample(range(len(raw)), 8), *rng.sample(range(300), 20)})
            board._command(client.LOAD_BEGIN, struct.pack("<II", len(raw), zlib.crc32(raw)))
            for start, end in itertools.pairwise(cuts):
                for at in range(start, end, 60_000):
                    piece = raw[at : min(end, at + 60_000)]
                    board._command(client.LOAD_DATA, struct.pack("<I", at) + piece)
            board._command(client.LOAD_END)
            assert board.refresh().image_crc == zlib.crc32(raw)
            assert board.read(0, len(raw)) == raw and board.read_tflite() == board.image.tflite


@pytest.mark.parametrize("name", NETWORKS)
def test_the_weights_are_on_the_board_once(name, builds):
    image = DeviceImage.read(builds(name, "typical").image)
    with npu_board(builds(name, "typical")) as board:
        memory = board.info.memory
        assert memory["packed"] == memory["scratch"] == 0
        assert memory["activations"] == image.npu.activations == 32768  # the compiler's own, see writer.py
        sent = len(image.for_board())
        assert memory["weights"] + memory["model"] <= sent < len(image.npu.blob) + 8000 < len(image.raw)


def test_no_word_of_an_image_makes_the_board_misbehave(tmp_path):
    """Words of sections and table replaced, under a valid CRC: refused, or it trains; or it trains by a map that is
    sound and wrong, which the simulation notices. Never more than that (test_sanitizers.py)."""
    build = make_build(tmp_path / "compiled", tiny_tflite(), "inflated", solve=False)
    image, rng = DeviceImage.read(build.image), random.Random(2)
    raw = image.for_board()
    spans = sections(raw)
    targets = [at + 4 * i for tag in (b"TRAN", b"NART") for at, size in [spans[tag]] for i in range(size // 4)]
    targets += [spans[tag][0] + 4 * rng.randrange(spans[tag][1] // 4) for tag in (b"LOSS", b"INPT") for _ in range(10)]
    targets += [at for at in range(16, 32 + 16 * len(spans), 4)]
    pixels = random_pixels(2, SHAPE, 0)
    ends: Counter[str] = Counter()
    waiting = [(at, rng.choice(EDGES)) for at in targets for _ in range(2)]
    while waiting:
        with npu_board(build) as board:
            while waiting:
                at, value = waiting.pop()
                data = bytearray(raw)
                data[at : at + 4] = value.to_bytes(4, "little")
                end = end_of(board, with_crc(data), pixels)
                ends[end] += 1
                if end == "noticed":
                    break
    assert ends["refused"] > 100 and ends["trained"] > 5, ends


EDGES = [0, 1, 2, 3, 4, 7, 8, 64, 127, 255, 256, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 64, 2**32 - 1]


def end_of(board: Board, image: bytes, pixels: np.ndarray) -> str:
    """What becomes of a board that is to load an image, probe and update."""
    try:
        board._command(client.LOAD_BEGIN, struct.pack("<II", len(image), zlib.crc32(image)))
        board._command(client.LOAD_DATA, bytes(4) + image)
        board._command(client.LOAD_END)
    except UserError:
        return "refused"
    try:
        board._command(client.PIXELS, bytes(4) + pixels.tobytes())
        board._command(client.LABELS, struct.pack("<IHH", 0, 0, 1))
        board._command(client.SELECT, struct.pack("<II", 0, 1))
        board.probe(5, 1)
        board.update(Update(NEAREST, 1, (9,), (1 << 18,)))
        return "trained"
    except UserError as error:
        if "the board is gone" not in str(error):
            return "trained"  # as far as its mu, labels or pixels let it
        assert "exit code 70" in str(error) and "holds no weight" in str(error), error
        return "noticed"


# -- the NPU's arithmetic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_the_arithmetic_of_the_npu_is_within_1_of_tflite(name, builds, tmp_path):
    """Op by op on the same inputs; training in it ends where TFLite's does not, and probes restore the weights."""
    build, path = builds(name, "typical"), tmp_path / "differences"
    with npu_board(build, arithmetic="both", differences=str(path)) as board:
        assert train(board, board.image.input, 2) == expected(name)[:2]
    compared, by_1, by_more = map(int, path.read_text().split())
    print(f"{name}: {by_1 / compared:.2%} of {compared:,} outputs differ by 1, {by_more} by more")
    assert 0 < by_1 < 0.02 * compared and by_more == 0
    with npu_board(build, arithmetic="npu") as board:
        seen = train(board, board.image.input, 3)
        assert seen != expected(name)[:3]
        crc = board.weights_crc()
        board.probe(5, 4)
        assert board.weights_crc() == crc == seen[-1][-1]
