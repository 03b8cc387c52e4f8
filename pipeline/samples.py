"""The images of a run on their way to a target: what stays there, what is sent when it is needed.

Where the target's store holds the on-device set (and the evaluation images too), they are uploaded once. Otherwise a
batch is sent a step, held there for all of its directions, and evaluation passes through the store in pieces.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tqdm import tqdm

from converters.errors import UserError
from pipeline.cli import count
from pipeline.datasets.dataset import Split
from pipeline.stopwatch import Stopwatch
from pipeline.targets.memory import LABEL_BYTES
from pipeline.targets.target import BatchLoss, Target, TargetInfo, board_title

_UPLOAD = 1 << 18  # bytes a call, so that Ctrl-C and the stopwatch see progress
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
        self._images_a_call = max(1, _UPLOAD // info.sample_bytes)

    def notes(self, batch: int) -> list[str]:
        """What goes over the link again and again, how long that takes, and what would avoid it; whole sentences."""
        info, found = self._target.info, []
        if not self.train_stays:
            stay = (
                f"; --samples {self.most_that_stay} or fewer would stay there" if self.most_that_stay >= batch else ""
            )
            found.append(
                f"{board_title(info.board)} has room for {count(info.capacity, 'image')}, so every batch is sent when "
                f"its step comes: {self._amount(batch, 'a step')}{stay}."
            )
        if len(self.test) and not self.test_stays:
            spare = info.capacity - len(self.train) if self.train_stays else 0
            stay = f"; --eval-images {spare} or fewer would stay there" if spare else ""
            found.append(
                f"evaluation images are sent for every evaluation: {self._amount(len(self.test), 'each time')}; a "
                f"larger --eval-every makes evaluations fewer{stay}."
            )
        return found

    def _amount(self, images: int, each: str) -> str:
        size, rate = images * (self._target.info.sample_bytes + LABEL_BYTES), self._target.info.link_rate
        seconds = f" (about {size / rate:.1f} s at the link's {rate:,.0f} bytes/s)" if rate else ""
        return f"{size:,} bytes {each}{seconds}"

    def upload(self) -> None:
        """Send what stays on the target."""
        stays = [(0, self.train)] * self.train_stays + [(len(self.train), self.test)] * self.test_stays
        total = sum(len(split) for _, split in stays)
        with self._progress(total, "sending", "image", delay=3, leave=False, disable=not total) as bar:
            for slot, split in stays:
                self._write(slot, split, bar.update)

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

    def _write(self, slot: int, split: Split, done: Callable[[int], object] = lambda images: None) -> None:
        with self._watch("upload"):
            for first in range(0, len(split), self._images_a_call):
                part = slice(first, first + self._images_a_call)
                self._target.write_samples(slot + first, split.images[part], split.labels[part])
                done(len(split.labels[part]))


def link_share(seconds: Mapping[str, float]) -> float:
    """The part of a run's seconds, 0 to 1, in which images went over the link."""
    return seconds.get("upload", 0.0) / (sum(seconds.values()) or 1.0)


def checksum(split: Split) -> int:
    """CRC-32 of the pixels and labels: a resumed run has to see the same ones."""
    pixels = np.ascontiguousarray(split.images, np.uint8).tobytes()
    return zlib.crc32(split.labels.astype("<u2").tobytes(), zlib.crc32(pixels))
