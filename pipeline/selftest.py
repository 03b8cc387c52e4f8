"""Does a board do what the host believes? The checks of python -m pipeline.train_ondevice --selftest.

They go through everything that training relies on: the weights that were loaded, forward passes, that these see what
is written to the weights, and that probes leave nothing behind. What is right, the twin says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import numpy as np

from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.tflite_model import Segment
from pipeline import cli
from pipeline.targets import tolerance
from pipeline.targets.client import Board
from pipeline.targets.target import TargetInfo
from pipeline.zo import philox

if TYPE_CHECKING:
    from pipeline.targets.twin import Twin  # boards do without tflite-runtime

SEED = 1  # of pixels and probe
EDGES = (1, 2, 4, 8)  # an input has squares of one colour, as wide as this
MU = 2
CANDIDATES = 32  # weights of a layer that are tried until one shows in the logits
REGIONS = ("image", "work", "samples", "weights")
SAY_HOW_LONG = 10.0  # s


@dataclass(frozen=True)
class Check:
    """found: what was seen, with its numbers."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True)
class Difference:
    """Logits of a board beside the twin's: how many are equal; how far they are apart (LSB), on average and at most."""

    logits: int
    equal: int
    mean: float
    largest: int

    @staticmethod
    def of(found: np.ndarray, expected: np.ndarray) -> Difference:
        apart = np.abs(found.astype(int) - expected)
        return Difference(apart.size, int((apart == 0).sum()), float(apart.mean()), int(apart.max()))

    def allowed(self, exact: bool) -> bool:
        if exact:
            return self.equal == self.logits
        return tolerance.of_logits(self.mean, self.largest)

    def __str__(self) -> str:
        if self.equal == self.logits:
            return f"all {self.logits} logits equal"
        return (
            f"{self.equal} of {self.logits} logits equal, {self.mean:.1f} LSB apart on average, {self.largest} at most"
        )


def run(board: Board, twin: Twin) -> None:
    """Print what the board says of itself and one line a check. Raises UserError where checks fail."""
    for title, text in describe(board.info, board.image):
        click.echo(f"{title:<12} {text}")
    failed = []
    for check in SelfTest(board, twin).checks():
        click.echo(f"{'ok' if check.passed else 'FAILED':<12} {check.name}: {check.found}")
        failed += [] if check.passed else [check.name]
    if failed:
        raise UserError(
            f"the board failed {cli.count(len(failed), 'check')} ({', '.join(failed)}): "
            "docs/stm32n6.md says under Symptoms what to look at."
        )
    click.echo("The board does what the host believes.")


def describe(info: TargetInfo, image: DeviceImage) -> Iterator[tuple[str, str]]:
    """What HELLO tells."""
    yield "board", f"{info.board}, clock {info.ticks_per_second / 1e6:,.0f} MHz"
    yield "runner", f"{info.runner}, {cli.count(info.threads, 'thread')}"
    yield "image", f"CRC-32 {info.image_crc:08x}, {info.weights:,} weights to train, mu up to {info.mu_max}"
    shares: dict[int, list[str]] = {}
    for name, region in zip(REGIONS, info.regions, strict=False):
        shares.setdefault(region.number, []).append(name)
    sizes = {region.number: region.size for region in info.regions}
    regions = (
        f"{sizes[number] >> 10:,} KiB for {' and '.join(names)}" for number, names in shares.items() if sizes[number]
    )
    yield "memory", f"{'; '.join(regions)}; room for {cli.count(info.capacity, 'sample')}"
    if info.stack_bytes:
        yield "stack", f"{info.memory['stack']:,} of {info.stack_bytes:,} bytes used so far"
    yield (
        "arithmetic",
        (
            "TFLite's: everything has to be equal"
            if is_exact(image)
            else f"the NPU's: logits may be {tolerance.MEAN_LSB:g} LSB off on average, {tolerance.MOST_LSB} at most"
        ),
    )


def is_exact(image: DeviceImage) -> bool:
    """Whether the board has to compute what TFLite computes, bit for bit."""
    return image.npu is None


def pixels(image: DeviceImage) -> np.ndarray:
    """uint8 [n, h, w, c]: the same inputs at all times."""
    spec = image.input
    rows, columns = np.arange(spec.height)[:, None], np.arange(spec.width)[None]
    colours = philox.rounding_bits(SEED, 0, spec.size).reshape(spec.height, spec.width, spec.channels)
    return np.stack([colours[rows // edge, columns // edge] & 0xFF for edge in EDGES]).astype(np.uint8)


class SelfTest:
    def __init__(self, board: Board, twin: Twin) -> None:
        self._board, self._twin = board, twin
        self._image = board.image
        self._exact = is_exact(board.image)
        self._count = min(len(EDGES), board.most_logits)  # inputs

    def checks(self) -> Iterator[Check]:
        """Each when it was made. The order matters: what comes later relies on what was there before."""
        yield self._weights("weights")
        for target in (self._board, self._twin):
            inputs = pixels(self._image)[: self._count]
            target.write_samples(0, inputs, np.arange(self._count) % self._image.classes)
            target.select(range(self._count))
        start = time.monotonic()
        self._logits, self._expected = self._board.logits(), self._twin.logits()
        self._say_how_long((time.monotonic() - start) / self._count)
        difference = Difference.of(self._logits, self._expected)
        yield Check("golden inputs", difference.allowed(self._exact), f"{difference} to tflite-runtime's")
        for layer, first in self._layers():
            yield from self._one_weight(layer, first)
        yield self._probe()

    def _say_how_long(self, seconds: float) -> None:
        """seconds: of a forward pass."""
        passes = self._count * (3 * len(self._layers()) + 2)
        if passes * seconds > SAY_HOW_LONG:
            click.echo(f"{passes} forward passes more: about {passes * seconds:,.0f} s", err=True)

    def _weights(self, name: str) -> Check:
        found, expected = self._board.weights_crc(), self._twin.weights_crc()
        text = f"CRC-32 {found:08x}" + (", the image's" if found == expected else f", the image has {expected:08x}")
        return Check(name, found == expected, text)

    def _layers(self) -> list[tuple[Segment, int]]:
        """The first, the middle and the last trainable layer, each with the index of its first weight."""
        segments = self._image.segments
        firsts = np.cumsum([0, *(segment.count for segment in segments)])
        return [(segments[i], int(firsts[i])) for i in sorted({0, len(segments) // 2, len(segments) - 1})]

    def _one_weight(self, layer: Segment, first: int) -> Iterator[Check]:
        """Written, it changes what the twin says; written back, nothing is different."""
        index, value, expected = self._weight_that_shows(layer, first)
        before = self._twin.set_weight(index, value)
        found = self._board.set_weight(index, value)
        logits, same_crc = self._board.logits(), self._crcs_equal()
        difference = Difference.of(logits, expected)
        changed = int((expected != self._expected).sum())
        text = (
            f"{index} ({layer.name}) from {found} to {value}: {cli.count(changed, 'logit')} should change; "
            f"{difference}, CRC-32 {'equal' if same_crc else 'not equal'}"
        )
        # Rounding of its own may hide a change of few logits, but not one of a tenth of them.
        moved = changed * 10 < logits.size or bool((logits != self._logits).any())
        passed = found == before and same_crc and moved and difference.allowed(self._exact)
        yield Check("one weight", passed, text + ("" if moved else "; none did"))
        self._twin.set_weight(index, before)
        found = self._board.set_weight(index, before)
        times = [bool((self._board.logits() == self._logits).all()) for _ in range(2)]
        same_crc = self._crcs_equal()
        text = f"{index}: logits as before {sum(times)} of 2 times, CRC-32 {'equal' if same_crc else 'not equal'}"
        yield Check("restored", found == value and same_crc and all(times), text)

    def _weight_that_shows(self, layer: Segment, first: int) -> tuple[int, int, np.ndarray]:
        """Index and other value of a weight of the layer, and the twin's logits with it.

        The first whose logits those from before could not be taken for, or else the one that changes them most.
        """
        rail = 127 - self._image.mu_max
        weights = self._image.get_weights()
        found, most = (first, int(weights[first]), self._expected), -1
        for candidate in range(CANDIDATES):
            index = first + (2 * candidate + 1) * layer.count // (2 * CANDIDATES)
            value = -rail if weights[index] >= 0 else rail
            before = self._twin.set_weight(index, value)
            logits = self._twin.logits()
            self._twin.set_weight(index, before)
            if not Difference.of(self._logits, logits).allowed(self._exact):
                return index, value, logits
            if (change := int((logits != self._expected).sum())) > most:
                found, most = (index, value, logits), change
        return found

    def _crcs_equal(self) -> bool:
        return self._board.weights_crc() == self._twin.weights_crc()

    def _probe(self) -> Check:
        mu = min(MU, self._image.mu_max)
        found, expected = self._board.probe(SEED, mu), self._twin.probe(SEED, mu)
        sides = ((found.plus, expected.plus), (found.minus, expected.minus))
        apart = max(abs(ours.loss - theirs.loss) for ours, theirs in sides)
        allowed = 0 if self._exact else 65536 * self._count * tolerance.of_loss(self._count)
        same_crc = self._crcs_equal()
        text = (
            f"losses at +{mu} and -{mu} {found.plus.loss / 65536:.4f} and {found.minus.loss / 65536:.4f} nats, "
            f"{apart / 65536:.4f} from the twin's (allowed: {allowed / 65536:.4f}); "
            f"CRC-32 afterwards {'as before' if same_crc else 'not as before'}"
        )
        correct = not self._exact or all(ours.correct == theirs.correct for ours, theirs in sides)
        return Check("probe", apart <= allowed and same_crc and correct, text)
