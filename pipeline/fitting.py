"""Whether a built-in network will fit a board, before it is trained, and which options would fit.

An untrained network is quantised on noise: seconds (half a minute for 45 million weights), where training takes minutes
or hours. Its image has the same tensors, and so the same bytes but for its description and, with Helium kernels,
scratch that depends on scales.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from converters import device_image
from converters.device_image import DeviceImage, Preprocessing
from converters.errors import UserError
from converters.neural_art.profile import parameter_bytes
from converters.neural_art.section import ENTRY_WORDS, HEADER_WORDS, POOL_WORDS
from converters.tflite_model import add_headroom, read_graph
from pipeline import models
from pipeline.models import ModelSpec, default_stem
from pipeline.targets.memory import (
    LABEL_BYTES,
    LOSS_TABLE_BYTES,
    BoardMemory,
    Requirements,
    Shortage,
    bounds,
    fit,
    place,
    requirements,
)
from pipeline.targets.target import NPU

MOST_TRIES = 6  # of one option: each takes a second or a few
LEAST_SIZE, SIZE_STEP, ALPHA_STEP = 32, 8, 0.05


def estimate(spec: ModelSpec, kernels: str, mu_max: int = 4) -> Requirements:
    """What a built-in network will need once it is trained."""
    from converters.keras_env import keras

    need = estimate_model(models.build(spec), kernels, mu_max)
    keras.backend.clear_session()  # the names of layers begin anew: what is trained next is named as without this
    return need


def estimate_model(model: Any, kernels: str, mu_max: int = 4) -> Requirements:
    """What a Keras model will need once it is int8."""
    from converters import keras_to_int8

    shape, _ = keras_to_int8.check_shape(model)
    noise = np.random.default_rng(0).uniform(-1, 1, (1, *shape)).astype(np.float32)
    tflite = add_headroom(keras_to_int8.post_training(model, noise), mu_max)
    image = DeviceImage.read(device_image.build(tflite, Preprocessing()))
    return _compiled(image) if kernels == NPU else requirements(image, kernels)


def _compiled(image: DeviceImage) -> Requirements:
    """What a network will need once it is compiled for the NPU, but for activations, which are the compiler's: as many
    bytes of parameters as it may have, and a map with two entries for each filter."""
    filters = len(image.segments)
    entries = 2 * ENTRY_WORDS * filters + HEADER_WORDS + POOL_WORDS
    head = 1024 + LOSS_TABLE_BYTES + 8 * filters + 4 * entries + 256 * image.input.channels
    sample = image.input.size + LABEL_BYTES
    return Requirements(NPU, head, image.weights, 0, (), sample, parameter_bytes(read_graph(image.tflite)))


def check(spec: ModelSpec, board: BoardMemory, mu_max: int = 4) -> None:
    """Raises UserError, which names options that fit, when the network will not fit the board."""
    need = estimate(spec, board.kernels, mu_max)
    if fit(need, board) is not None:
        raise UserError(f"{fit(need, board, advice=advice(spec, need, board, mu_max))} Nothing was trained.")


def check_model(model: Any, board: BoardMemory, mu_max: int = 4) -> None:
    """Raises UserError, which names the board's bounds, when a Keras model will not fit the board."""
    if (why := fit(estimate_model(model, board.kernels, mu_max), board)) is not None:
        raise UserError(f"{why} Nothing was trained.")


def check_written(need: Requirements, board: BoardMemory, path: Path, advise: Callable[[], str] = str) -> None:
    """Raises UserError when the image at path does not fit the board. advise: other options, in words."""
    if fit(need, board) is not None:
        why = fit(need, board, advice=advise())
        raise UserError(f"{why} {path} was written all the same, for a board with more memory.")


def advice(spec: ModelSpec, need: Requirements, board: BoardMemory, mu_max: int = 4) -> str:
    """Options with which an untrained network fits, each by itself, where one with these needs does not; the board's
    bounds where there are none."""
    click.echo("looking for options that fit ...", err=True)
    shortage = place(need, board)
    assert isinstance(shortage, Shortage)
    ratio = shortage.there / shortage.needed
    if need.blob > board.regions[-1].size:  # a compiled network's weights, whatever the input
        candidates = [_narrower(spec, math.sqrt(ratio))]
    else:
        candidates = [_narrower(spec, ratio), _smaller(spec, ratio)]
    found = [words for specs in candidates if (words := _first(specs, spec, board, mu_max)) is not None]
    return f"with an untrained network, this fits: {', or '.join(found)}" if found else bounds(need, board)


def flags(spec: ModelSpec, before: ModelSpec) -> str:
    """The options of pipeline.convert that make one network of the other."""
    words = []
    if spec.width != before.width:
        words.append(f"--width {spec.width}")
    if spec.alpha != before.alpha:
        words.append(f"--alpha {spec.alpha:g}")
    if spec.input_size != before.input_size:
        words.append(f"--input-size {spec.input_size}")
        if spec.name == "resnet18" and spec.stem != default_stem(spec.input_size):
            words.append(f"--stem {spec.stem}")
    return " ".join(words)


def _first(candidates: Iterator[ModelSpec], before: ModelSpec, board: BoardMemory, mu_max: int) -> str | None:
    """Options and needs of the first one that fits."""
    for spec in itertools.islice(candidates, MOST_TRIES):
        need = estimate(spec, board.kernels, mu_max)
        if fit(need, board) is None:
            work = need.work(board.workers)
            if need.blob:
                return f"{flags(spec, before)} ({need.blob:,} bytes of parameters at most)"
            return f"{flags(spec, before)} ({need.image:,} bytes of image, {work:,} of activations and scratch)"
    return None


def _narrower(spec: ModelSpec, ratio: float) -> Iterator[ModelSpec]:
    """Activations grow with the width, weights with its square: the first guess suits the former."""
    if spec.name == "resnet18":
        return (replace(spec, width=width) for width in _steps(spec.width * ratio, 1, 1))
    return (replace(spec, alpha=round(ALPHA_STEP * n, 2)) for n in _steps(spec.alpha * ratio / ALPHA_STEP, 1, 1))


def _smaller(spec: ModelSpec, ratio: float) -> Iterator[ModelSpec]:
    """Activations grow with the square of the input's size; weights do not."""
    sizes = _steps(spec.input_size * math.sqrt(ratio), LEAST_SIZE, SIZE_STEP)
    return (replace(spec, input_size=size) for size in sizes)


def _steps(start: float, least: int, step: int) -> Iterator[int]:
    """Multiples of step from start down, by a tenth at a time."""
    at = math.floor(start / step) * step
    while at >= least:
        yield at
        at = min(at - step, math.floor(0.9 * at / step) * step)
