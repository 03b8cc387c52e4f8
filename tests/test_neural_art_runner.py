"""Training through runners/neural_art on a simulated NPU (tests/ll_aton): equal to the twin and to the int8 board."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from app_library import SANITIZE
from npu_builds import MIXES, NETWORKS, NpuBuild, make_build, network, npu_board
from oracles import random_pixels

from converters import device_image
from converters.device_image import DeviceImage, InputSpec, Preprocessing
from converters.tflite_model import read_weights
from pipeline.targets.boards import open_board
from pipeline.targets.target import STOCHASTIC, Target, Update
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
    """What the int8 board sees of a training, and the twin of its first steps."""
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
