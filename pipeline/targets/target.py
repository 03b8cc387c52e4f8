"""What can be trained: the one interface that a board (over a link) and the twin (on the host) both implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pipeline.zo.update import NEAREST as NEAREST
from pipeline.zo.update import STOCHASTIC as STOCHASTIC

NPU = "neural_art"  # the runner that is a network compiled for the Neural-ART NPU


@dataclass(frozen=True)
class Region:
    """Memory for one purpose; purposes with the same number share it. size in bytes."""

    number: int
    size: int


@dataclass(frozen=True)
class TargetInfo:
    """What a target says of itself after its image is loaded.

    capacity is the number of samples that the on-device sample store holds, max_batch the largest selection;
    memory maps a purpose ("weights", "activations", ...) to bytes. regions: the memory for image, work (activations,
    scratch, packed weights), samples, and the weights of a compiled network; empty for the twin. network: the id of the
    one compiled into the firmware, 0 where there is none or it is not known. stack_bytes is 0 where the stack is not
    counted, ticks_per_second the rate of the target's clock. link_rate: bytes a second that went over the link when
    the image was loaded; 0 for the twin.
    """

    board: str
    runner: str
    image_crc: int
    weights_crc: int
    weights: int
    mu_max: int
    classes: int
    sample_bytes: int
    capacity: int
    max_batch: int
    threads: int = 1
    memory: Mapping[str, int] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    network: int = 0
    stack_bytes: int = 0
    ticks_per_second: int = 0
    link_rate: float = 0.0


@dataclass(frozen=True)
class BatchLoss:
    """Cross-entropy summed over the selected samples (Q16 nats) and how many of them were right."""

    loss: int
    correct: int


@dataclass(frozen=True)
class Probe:
    """The two sides of one direction, w + mu*z and w - mu*z, over the selected samples."""

    plus: BatchLoss
    minus: BatchLoss


@dataclass(frozen=True)
class Update:
    """One step: all directions at once. Seeds are 64-bit, coefficients int32 in Q16 LSB, |c| <= 2**24."""

    rounding: str
    rounding_seed: int
    seeds: tuple[int, ...]
    coefficients: tuple[int, ...]


@dataclass(frozen=True)
class UpdateResult:
    """Weights that changed, weights at +-(127 - mu_max) afterwards, CRC-32 of all weights in index order."""

    changed: int
    at_rail: int
    weights_crc: int


class Target(Protocol):
    """Every method raises UserError when the target is gone or refuses."""

    info: TargetInfo

    def write_samples(self, first: int, pixels: np.ndarray, labels: np.ndarray) -> None:
        """Put uint8 pixels [n, h, w, c] and labels [n] into the store at slots first, first + 1, ..."""

    def select(self, slots: Sequence[int]) -> None:
        """Make these slots the current batch (at most info.max_batch; a slot may occur once only)."""

    def loss(self) -> BatchLoss:
        """Forward passes over the current batch with the weights as they are."""

    def probe(self, seed: int, mu: int) -> Probe:
        """Both sides of the direction of this seed; the weights afterwards are what they were before."""

    def probe_plus(self, seed: int, mu: int) -> BatchLoss:
        """The plus side alone, for the one-sided estimator; weights untouched afterwards."""

    def update(self, update: Update) -> UpdateResult: ...

    def weights_crc(self) -> int: ...

    def refresh(self) -> TargetInfo:
        """info as it is now: weights CRC and memory rows change."""

    def read_tflite(self) -> bytes:
        """The adapted model as a .tflite file."""

    def reset_weights(self) -> int:
        """Back to the image's weights; returns their CRC. The sample store may be empty afterwards."""

    def close(self) -> None: ...


def board_title(name: str) -> str:
    """A board's name in a sentence."""
    return "the twin" if name == "twin" else f"the {name} board"
