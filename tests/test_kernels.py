"""Every set of kernels that this machine can run gives the same losses, probes and updates as the portable one.

That the numbers are right is test_runner.py's business (and test_random_models.py's and test_architectures.py's, which
run every set too); here it is probes, blocks, threads and scales that no converter makes.
"""

import numpy as np
import pytest
from app_library import SANITIZE, kernel_set, kernel_sets
from oracles import random_pixels, tflm_reference
from test_runner import build_network, edited
from tiny_run import FIXTURES

from converters import device_image
from converters.device_image import Preprocessing
from converters.tflite_model import add_headroom
from pipeline.targets.boards import open_board
from pipeline.targets.target import NEAREST, STOCHASTIC, Update


def boards(tflite: bytes, threads: int = 1, **options):
    """(name, board) for every set; the portable one comes last."""
    image = device_image.build(add_headroom(tflite, 4), Preprocessing(), **options)
    for name in kernel_sets():
        with kernel_set(name):
            board = open_board("native", image, threads=threads, sanitize=SANITIZE)
        assert board.info.runner == f"int8 {name}"
        yield name, board
        board.close()


def train(board, samples: int = 37) -> list:
    """What a few steps say of themselves: every number that a run depends on."""
    spec = board.image.input
    pixels = random_pixels(samples, (spec.height, spec.width, spec.channels), seed=11)
    board.write_samples(0, pixels, np.arange(samples) % board.image.classes)
    said = []
    for step in range(3):
        board.select(range(step, samples))  # blocks of other sizes each time
        seeds = (step, step + (7 << 40))
        said += [board.loss(), *(board.probe(seed, 3) for seed in seeds), board.probe_plus(5, 4), board.loss()]
        said.append(board.update(Update((NEAREST, STOCHASTIC)[step % 2], step, seeds, (90_000, -70_000))))
        said.append(board.logits().tobytes())
    return [*said, board.weights_crc()]


def test_the_best_set_is_the_default(monkeypatch):
    monkeypatch.delenv("ZO_KERNELS", raising=False)
    board = open_board(
        "native", device_image.build(add_headroom(FIXTURES_BYTES[0], 4), Preprocessing()), sanitize=SANITIZE
    )
    board.close()
    assert board.info.runner == f"int8 {kernel_sets()[0]}"


FIXTURES_BYTES = [path.read_bytes() for path in sorted(FIXTURES.glob("*.tflite"))]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tflite", FIXTURES_BYTES, ids=[path.stem for path in sorted(FIXTURES.glob("*.tflite"))])
def test_training_is_the_same_with_every_set(tflite, threads):
    said = {name: train(board) for name, board in boards(tflite, threads)}
    for name in said:
        assert said[name] == said["portable"], name


@pytest.mark.parametrize("scope", ["head", "depthwise", "second-half"])
def test_weights_that_are_not_trained_are_not_probed(scope):
    tflite = next(p for p in sorted(FIXTURES.glob("*.tflite")) if "mobilenet" in p.stem).read_bytes()
    said = {name: train(board) for name, board in boards(tflite, train=scope)}
    for name in said:
        assert said[name] == said["portable"], name


@pytest.mark.parametrize("name", ["conv_5x3_stride_3x2", "depthwise_multiplier_stride", "depthwise_dilated", "mean"])
def test_probes_of_unusual_windows(name):
    said = {kernels: train(board) for kernels, board in boards(build_network(name))}
    for kernels in said:
        assert said[kernels] == said["portable"], kernels


def scaled(kinds: tuple[str, ...], factor: float):
    """The output scale of these ops times a factor: shifts that trained networks never have."""
    from ai_edge_litert import schema_py_generated as schema

    wanted = {getattr(schema.BuiltinOperator, kind) for kind in kinds}

    def edit(model, sub) -> None:
        codes = [code.builtinCode for code in model.operatorCodes]
        for op in sub.operators:
            if codes[op.opcodeIndex] in wanted and op.outputs[0] not in sub.outputs:
                quantization = sub.tensors[op.outputs[0]].quantization
                quantization.scale = [quantization.scale[0] * factor]

    return edit


FACTORS = (-14, -7, -2, 7, 13, 24)
# The converter refuses what 2^24 makes of an ADD.
SCALED = [(name, 2.0**f) for name in ("conv_same", "conv_1x1", "depthwise", "mean") for f in FACTORS]
SCALED += [("add_of_different_scales", 2.0**f) for f in FACTORS[:-1]]


@pytest.mark.parametrize(("name", "factor"), SCALED)
def test_scales_of_any_size(name, factor):
    """Shifts to the left, by nothing, by more than the fast formulas take: as TFLM has it, wherever that is defined."""
    kinds = ("DEPTHWISE_CONV_2D",) if name == "depthwise" else ("CONV_2D",)
    tflite = edited(build_network(name), scaled(kinds, factor))
    said = {}
    for kernels, board in boards(tflite):
        said[kernels] = train(board)
        if kernels == "portable" and factor > 2.0**-7:  # beyond, TFLM's own shift overflows
            inputs = board.image.quantize_pixels(random_pixels(9, (11, 9, 3), seed=3))
            board.write_samples(0, random_pixels(9, (11, 9, 3), seed=3), np.zeros(9))
            board.select(range(9))
            np.testing.assert_array_equal(board.logits(), tflm_reference(board.read_tflite(), inputs))
    for kernels in said:
        assert said[kernels] == said["portable"], kernels


def test_little_memory_means_small_blocks_and_the_same_numbers():
    """Packed weights and blocks are for boards with memory to spare; without, the portable kernels do it in place."""
    tflite = next(p for p in sorted(FIXTURES.glob("*.tflite")) if p.stem == "resnet18_w8_32").read_bytes()
    image = device_image.build(add_headroom(tflite, 4), Preprocessing())
    said, runners, activations = [], set(), set()
    for memory in (1, 2, 4, 512):
        board = open_board("native", image, threads=1, memory=memory, sanitize=SANITIZE)
        said.append(train(board))
        runners.add(board.info.runner)
        activations.add(board.refresh().memory["activations"])
        board.close()
    assert all(numbers == said[0] for numbers in said)
    assert runners == {f"int8 {kernel_sets()[0]}", "int8 portable"}
    assert len(activations) > 2 or kernel_sets() == ("portable",)
