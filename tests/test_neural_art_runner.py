"""Training through runners/neural_art on a simulated NPU (tests/ll_aton): equal to the twin and to the int8 board."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from app_library import SANITIZE
from npu_builds import MIXES, NETWORKS, NpuBuild, make_build, network, npu_board, with_entries
from oracles import random_pixels
from test_app_image import sections, with_crc
from tiny_model import SHAPE, tiny_tflite

from converters import device_image
from converters.device_image import DeviceImage, InputSpec, Preprocessing
from converters.errors import UserError
from converters.neural_art.layouts import Blocked, Deep, Inflated, Plain
from converters.neural_art.section import SectionEntry
from converters.tflite_model import read_weights
from pipeline.targets import client
from pipeline.targets.boards import open_board
from pipeline.targets.client import Board, CannotTrace
from pipeline.targets.target import NEAREST, STOCHASTIC, Target, Update
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


def refusal(build: NpuBuild, image: bytes) -> str:
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


def test_another_network_in_the_firmware(builds, tmp_path):
    other = make_build(tmp_path / "compiled", tiny_tflite(), "plain")
    assert "input or output of 3,072 bytes, the image's has 297" in refusal(builds(NETWORKS[0], "plain"), other.image)


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
        assert memory["packed"] == memory["activations"] == 0
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
