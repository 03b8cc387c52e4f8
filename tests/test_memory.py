"""What the host says an image takes is what boards say, and what it says of fitting is what they do."""

import math
import re
import struct
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import random_models
from app_library import SANITIZE, kernel_set
from architectures import ARCHITECTURES
from oracles import random_pixels
from test_app_link import Raw
from test_architectures import classifier
from test_m55 import MISSING

from converters import device_image, keras_to_int8
from converters.device_image import DeviceImage, Preprocessing
from converters.errors import UserError
from converters.neural_art.compiled import read_compiled
from converters.neural_art.section import CompiledNetwork
from converters.neural_art.solver import recover
from converters.neural_art.writer import write_network
from converters.tflite_model import add_headroom
from pipeline import fitting, models
from pipeline.models import ModelSpec
from pipeline.targets import client
from pipeline.targets.boards import BOARDS, KERNELS, open_board
from pipeline.targets.link import Refused
from pipeline.targets.memory import (
    MIB,
    BoardMemory,
    Placement,
    Shortage,
    board_memory,
    fit,
    place,
    requirements,
)
from pipeline.targets.target import NPU, Region

FIXTURES = {p.stem: p for p in sorted((Path(__file__).parent / "fixtures").glob("*.tflite"))}
RANDOM = range(200, 208)
NETWORKS = (*FIXTURES, *(body.__name__ for body in ARCHITECTURES), *(f"random {seed}" for seed in RANDOM))


@cache
def image_of(network: str) -> DeviceImage:
    bodies = {body.__name__: body for body in ARCHITECTURES}
    if network in FIXTURES:
        tflite = FIXTURES[network].read_bytes()
    elif network in bodies:
        tflite = classifier(bodies[network])
    else:
        tflite = random_models.build(int(network.split()[1]))
    return DeviceImage.read(device_image.build(add_headroom(tflite, 4), Preprocessing()))


def assert_equals_board(board: client.Board, kernels: str) -> None:
    """Every row that depends on the network, before and after samples came; and how many samples fit."""
    image, info = board.image, board.info
    need, memory = requirements(image, kernels), BoardMemory.of(info)
    placed = place(need, memory)
    assert isinstance(placed, Placement) and placed.capacity == info.capacity
    for count in (0, min(3, info.capacity)):
        if count:
            shape = (image.input.height, image.input.width, image.input.channels)
            board.write_samples(0, random_pixels(count, shape, 0), np.zeros(count))
        rows = board.refresh().memory
        expected = need.rows(info.threads, count)
        assert {row: rows[row] for row in expected} == expected
    assert rows["weights"] + rows["model"] + 1040 == need.image == len(image.raw)


@pytest.mark.parametrize("network", NETWORKS)
def test_native_rows(network):
    with kernel_set("portable"):
        board = open_board("native", image_of(network).raw, threads=3, memory=64, sanitize=SANITIZE)
    try:
        assert board.info.runner == "int8 portable"
        assert_equals_board(board, "portable")
    finally:
        board.close()


@pytest.mark.skipif(bool(MISSING), reason=f"needs a Cortex-M55: apt-get install {' '.join(MISSING)}")
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("network", NETWORKS)
def test_emulated_rows(network, kernels):
    board = open_board("qemu_an547", image_of(network).raw, kernels=kernels, memory=16)
    try:
        assert BoardMemory.of(board.info).kernels == kernels
        assert_equals_board(board, kernels)
    finally:
        board.close()


@pytest.mark.skipif(bool(MISSING), reason=f"needs a Cortex-M55: apt-get install {' '.join(MISSING)}")
def test_what_is_known_of_the_emulated_board_before_it_starts():
    board = open_board("qemu_an547", image_of("tiny").raw)
    assert BoardMemory.of(board.info) == board_memory("qemu_an547")
    board.close()


def test_what_is_known_of_the_native_board_before_it_starts():
    with kernel_set("portable"):
        board = open_board("native", image_of("tiny").raw, sanitize=SANITIZE)
    assert BoardMemory.of(board.info) == board_memory("native")
    board.close()


@pytest.mark.parametrize("network", ["tiny", "resnet18_w8_64", "mobilenet_v2_035_64"])
def test_it_fits_exactly_where_the_board_takes_it(network):
    """As many threads as 1 MiB is enough for, and one more, which host and board refuse."""
    image = image_of(network)
    need = requirements(image, "portable")
    memory = BoardMemory("native", "portable", 1, (Region(0, MIB),) * 3, {})
    threads = [n for n in range(1, 65) if fit(need, replace(memory, workers=n)) is None]
    limit = max(threads, default=0)
    assert threads == list(range(1, limit + 1))
    if limit:
        with kernel_set("portable"):
            board = open_board("native", image.raw, threads=limit, memory=1, sanitize=SANITIZE)
        assert_equals_board(board, "portable")
        board.close()
    if limit < 64:
        with pytest.raises(UserError, match="does not fit the board native"):
            open_board("native", image.raw, threads=limit + 1, memory=1, sanitize=SANITIZE)
        assert refusal(image.raw, limit + 1) == 13


def refusal(image: bytes, threads: int) -> int:
    """The code with which a native board of 1 MiB refuses an image that the host would not have sent."""
    raw = Raw("--memory", "1", "--threads", str(threads))
    try:
        raw.command(client.LOAD_BEGIN, struct.pack("<II", len(image), zlib.crc32(image)))
        for at in range(0, len(image), 60_000):
            raw.command(client.LOAD_DATA, struct.pack("<I", at) + image[at : at + 60_000])
        raw.command(client.LOAD_END)
    except Refused as refused:
        return refused.code
    finally:
        raw.transport.close()
    return 0


def test_the_board_refuses_what_the_host_would_not_send():
    assert refusal(bytes(2 * MIB), 1) == 5


def small(image: int, work: int) -> BoardMemory:
    """An invented board with memories of its own for image, work and samples."""
    regions = (Region(0, image), Region(1, work), Region(2, 64 * 1024))
    return BoardMemory("small", "mve", 1, regions, {0: "PSRAM", 1: "SRAM", 2: "NOR"})


def test_sentences_say_what_by_how_much_and_where():
    need = requirements(image_of("tiny"), "mve")
    assert fit(need, small(need.image, need.work(1))) is None
    assert fit(need, small(need.image - 1, need.work(1))) == (
        f"the network does not fit the board small: the image takes {need.image:,} bytes, 1 more than the "
        f"{need.image - 1:,} that are there for it in PSRAM; use a smaller network or input: the image may have at "
        f"most {need.image - 1:,} bytes (it has {need.image:,}), activations and scratch {need.work(1):,} (they have "
        f"{need.work(1):,})."
    )
    sentence = fit(need, small(need.image, need.work(1) - 64))
    assert f"take {need.work(1):,} bytes, 64 more than" in sentence and "in SRAM" in sentence
    room = (64 * 1024 - 128) // need.sample
    board = small(need.image, need.work(1))
    assert place(need, board).capacity == room and fit(need, board, room) is None
    assert f"at most {room} samples of {need.sample} bytes fit." in fit(need, board, room + 1)


def test_a_damaged_plan_is_a_sentence():
    raw = bytearray(image_of("tiny").raw)
    image = DeviceImage.read(bytes(raw))
    words = image.plan.copy()
    words[5] = len(words)  # the first op lies beyond the end
    object.__setattr__(image, "plan", words)
    with pytest.raises(UserError, match="plan is inconsistent"):
        requirements(image, "mve")


# -- Built-in networks -----------------------------------------------------------------------------------------------

TRAINED = [
    (ModelSpec("resnet18", 32, 3, 10, width=8, stem="small"), "resnet18_w8_32"),
    (ModelSpec("mobilenet_v2", 64, 3, 10, alpha=0.35), "mobilenet_v2_035_64"),
]


def test_the_dk_takes_what_its_psram_takes():
    spec = ModelSpec("mobilenet_v2", 64, 3, 10, alpha=1.0)
    with pytest.raises(UserError, match="978,560 more than the 1,835,008"):
        fitting.check(spec, board_memory("stm32n6"))
    fitting.check(spec, board_memory("stm32n6-dk"))


@pytest.mark.parametrize(("spec", "fixture"), TRAINED)
def test_an_untrained_network_takes_what_the_trained_one_does(spec, fixture):
    trained = requirements(image_of(fixture), "words")
    guess = fitting.estimate(spec, "words")
    assert (guess.weights, guess.activations, guess.op_scratch) == (
        trained.weights, trained.activations, trained.op_scratch,
    )  # fmt: skip
    assert abs(guess.image - trained.image) < 0.05 * trained.image


def apply(spec: ModelSpec, options: str) -> ModelSpec:
    """The network that these options of pipeline.convert make."""
    words = options.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    size = int(given.get("--input-size", spec.input_size))
    stem = given.get("--stem", models.default_stem(size))
    width, alpha = int(given.get("--width", spec.width)), float(given.get("--alpha", spec.alpha))
    return ModelSpec(spec.name, size, spec.channels, spec.classes, width, stem, alpha)


@pytest.mark.parametrize(
    ("spec", "board", "count"),
    [
        (ModelSpec("resnet18", 64, 3, 10, width=12, stem="small"), small(MIB, 40_000), 2),
        (ModelSpec("resnet18", 72, 3, 10, width=8, stem="standard"), small(MIB, 10_000), 1),  # the input is larger
        (ModelSpec("resnet18", 32, 3, 10, width=16, stem="small"), small(300_000, MIB), 1),  # it is the weights
        (ModelSpec("mobilenet_v2", 96, 3, 10, alpha=0.75), small(2 * MIB, 160_000), 2),
    ],
    ids=["arena", "input", "weights", "mobilenet"],
)
def test_options_that_are_suggested_fit(spec, board, count):
    """With other weights and ranges than were tried; one of them as a training leaves it, with fake quantisation."""
    with pytest.raises(UserError, match=r"does not fit the board small: .* Nothing was trained") as refused:
        fitting.check(spec, board)
    suggested = re.findall(r"(--[^()]*) \([\d,]+ bytes of image", str(refused.value))
    assert len(suggested) == count, str(refused.value)
    for options in suggested:
        smaller = apply(spec, options)
        assert smaller != spec
        noise = np.random.default_rng(1).uniform(-1, 1, (4, smaller.input_size, smaller.input_size, 3))
        model, calibration = models.build(smaller), noise.astype(np.float32)
        if "--width" in options and count == 1:
            tflite = keras_to_int8.to_tflite(keras_to_int8.quantize_aware(model, calibration))
        else:
            tflite = keras_to_int8.post_training(model, calibration)
        image = DeviceImage.read(device_image.build(add_headroom(tflite, 4), Preprocessing()))
        assert fit(requirements(image, board.kernels), board) is None, options


@pytest.mark.parametrize(("spec", "fixture"), TRAINED)
def test_a_compiled_network_takes_no_more_than_was_expected(spec, fixture, tmp_path):
    """Before it was trained; the layouts are those of public builds."""
    tflite = DeviceImage.read(image_of(fixture).raw).tflite
    write_network(tmp_path / "compiled", tflite)
    compiled = read_compiled(tmp_path / "compiled")
    npu = CompiledNetwork.of(compiled, recover(compiled, tflite))
    need = requirements(DeviceImage.read(device_image.build(tflite, Preprocessing(), npu=npu)), "words")
    guess = fitting.estimate(spec, NPU)
    assert (guess.weights, guess.sample, guess.kernels) == (need.weights, need.sample, need.kernels)
    assert need.blob <= guess.blob < 2 * need.blob and need.image <= guess.image < 3 * need.image


def test_a_network_with_too_many_weights_for_the_npu_is_not_trained():
    spec, board = ModelSpec("resnet18", 32, 3, 10, width=8, stem="small"), board_memory("stm32n6", NPU, 60_000)
    with pytest.raises(UserError) as refused:
        fitting.check(spec, board)
    found = re.search(
        r"memory file takes .* this fits: (--width \d) \(([\d,]+) bytes of parameters", str(refused.value)
    )
    assert found and int(found[2].replace(",", "")) <= 60_000
    assert fit(fitting.estimate(apply(spec, found[1]), NPU), board) is None


def test_where_no_option_fits_the_bounds_are_said():
    spec = ModelSpec("resnet18", 32, 3, 10, width=2, stem="small")
    with pytest.raises(UserError, match=r"the image may have at most 1,000 bytes"):
        fitting.check(spec, small(1000, 1000))


def test_a_shortage_is_in_proportion_to_what_is_there():
    need = requirements(image_of("tiny"), "mve")
    found = place(need, small(need.image // 2, need.work(1)))
    assert isinstance(found, Shortage) and math.isclose(found.there / found.needed, 0.5, rel_tol=0.01)
    assert all(isinstance(place(need, board_memory(name)), Placement) for name in BOARDS)
