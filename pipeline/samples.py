"""The images of a run on their way to a target: what stays there, what is sent when it is needed.

Where the target's store holds the on-device set (and the evaluation images too), they are uploaded once. Otherwise a
batch is sent a step, held there for all of its directions, and evaluation passes through the store in pieces.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

from converters.errors import UserError
from pipeline.datasets.dataset import Split
from pipeline.stopwatch import Stopwatch
from pipeline.targets.target import BatchLoss, Target, TargetInfo

_UPLOAD = 256  # samples a call, so that Ctrl-C and the stopwatch see progress
_FIRST_PIECE, _PIECE_SECONDS = 16, 2.0  # an evaluation's pieces, so that a slow board shows progress as well


def check_batch(info: TargetInfo, batch: int) -> None:
    """Raises UserError when the target cannot hold even one batch."""
    if batch > (most := min(info.max_batch, info.capacity)):
        raise UserError(f"the {info.board} board holds batches of at most {most} images: use --batch {most} or less.")


def _unseen(total: int, title: str, unit: str, **settings: object) -> tqdm:
    return tqdm(total=total, disable=True)


class Samples:
    """The on-device set `train` and the evaluation images `test` of one run."""

    def __init__(
        self,
        target: Target,
        train: Split,
        test: Split,
        batch: int,
        watch: Stopwatch,
        progress: Callable[..., tqdm] = _unseen,
    ) -> None:
        """progress(total, title, unit, ...) shows long evaluations. Raises UserError as check_batch does."""
        info = target.info
        check_batch(info, batch)
        self._target, self._watch, self._progress = target, watch, progress
        self.train, self.test = train, test
        spare = info.capacity - len(train)
        self.most_that_stay = max(0, info.capacity - min(batch, len(test)))
        self.train_stays = len(train) <= self.most_that_stay
        self.test_stays = spare >= len(test)
        self._spare_slot = len(train) if self.train_stays else 0
        self._piece = min(info.max_batch, info.capacity - self._spare_slot)

    def upload(self) -> None:
        """Send what stays on the target."""
        if self.train_stays:
            self._write(0, self.train)
        if self.test_stays:
            self._write(len(self.train), self.test)

    def select(self, indices: Sequence[int]) -> None:
        """Make these images of the on-device set the current batch."""
        if self.train_stays:
            self._target.select(indices)
        else:
            self._write(0, Split(self.train.images[indices], self.train.labels[indices]))
            self._target.select(range(len(indices)))

    def training_loss(self) -> BatchLoss:
        """Over the whole on-device set, with the weights as they are."""
        return self._sweep(self.train, 0 if self.train_stays else None)

    def test_loss(self) -> BatchLoss:
        """Over the evaluation images, with the weights as they are."""
        return self._sweep(self.test, len(self.train) if self.test_stays else None)

    def _sweep(self, split: Split, slot: int | None) -> BatchLoss:
        """Sum over a split that lies from this slot on, or (None) is sent piece by piece."""
        loss = correct = first = 0
        most = self._target.info.max_batch if slot is not None else self._piece
        piece = min(most, _FIRST_PIECE)
        with self._progress(len(split), "evaluating", "image", delay=3, leave=False) as bar:
            while first < len(split):
                start = time.monotonic()
                part = Split(split.images[first : first + piece], split.labels[first : first + piece])
                at = self._spare_slot if slot is None else slot + first
                if slot is None:
                    self._write(at, part)
                self._target.select(range(at, at + len(part)))
                result = self._target.loss()
                loss, correct, first = loss + result.loss, correct + result.correct, first + len(part)
                bar.update(len(part))
                rate = len(part) / max(time.monotonic() - start, 1e-6)
                piece = max(1, min(most, int(rate * _PIECE_SECONDS)))
        return BatchLoss(loss, correct)

    def _write(self, slot: int, split: Split) -> None:
        with self._watch("upload"):
            for first in range(0, len(split), _UPLOAD):
                part = slice(first, first + _UPLOAD)
                self._target.write_samples(slot + first, split.images[part], split.labels[part])


def checksum(split: Split) -> int:
    """CRC-32 of the pixels and labels: a resumed run has to see the same ones."""
    pixels = np.ascontiguousarray(split.images, np.uint8).tobytes()
    return zlib.crc32(split.labels.astype("<u2").tobytes(), zlib.crc32(pixels))
