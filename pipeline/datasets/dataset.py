"""What a data set is here: three disjoint splits of uint8 images, and the helpers that its readers share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from converters.errors import UserError

CACHE = Path("data")  # beside the project's own files, ignored by git

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "nearest": Image.Resampling.NEAREST}


@dataclass(frozen=True)
class Split:
    """images: uint8 [n, h, w, c]; labels: uint16 [n]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def head(self, count: int | None) -> Split:
        """The first `count` samples (all when None). Readers interleave the classes, so a head is stratified."""
        return self if count is None else Split(self.images[:count], self.labels[:count])


@dataclass(frozen=True)
class Dataset:
    """source: for pre-training; adapt: the pool of the device, never seen in pre-training; test: for figures only."""

    name: str
    class_names: tuple[str, ...]
    source: Split
    adapt: Split
    test: Split
    note: str = ""

    @property
    def classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True)
class Part:
    """A file or folder of a data set, as it was found."""

    OK: ClassVar[str] = "ok"
    MISSING: ClassVar[str] = "missing"
    DAMAGED: ClassVar[str] = "damaged"
    OTHER: ClassVar[str] = "differs"  # usable, but not what its authors published

    name: str
    state: str
    found: str

    @classmethod
    def of_file(cls, path: Path, *, size: int | None = None, md5: str | None = None) -> Part:
        """size in bytes, md5: as published."""
        if not path.is_file():
            return cls(str(path), cls.MISSING, "")
        found = path.stat().st_size
        if size is not None and found != size:
            return cls(str(path), cls.OTHER, f"{found:,} bytes, published are {size:,}")
        if md5 is None:
            return cls(str(path), cls.OK, f"{found:,} bytes; its authors publish no checksum")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "md5") if hasattr(hashlib, "file_digest") else hashlib.md5(file.read())
        if digest.hexdigest() != md5:
            return cls(str(path), cls.DAMAGED, f"MD5 {digest.hexdigest()}, published is {md5}")
        return cls(str(path), cls.OK, f"{found:,} bytes, MD5 as published")


def interleave(labels: np.ndarray) -> np.ndarray:
    """Order of samples (int64 [n]) that takes the first of every class, then the second of every class, ...

    Any head of it is balanced as far as the classes last, and order within a class is kept.
    """
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        where = np.flatnonzero(labels == label)
        rank[where] = np.arange(len(where))
    return np.lexsort((labels, rank))


def split_by_rank(labels: np.ndarray, source_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the first `source_share` of every class (in the given order) and of the rest, both interleaved."""
    first = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        where = np.flatnonzero(labels == label)
        first[where[: round(source_share * len(where))]] = True
    chosen, rest = np.flatnonzero(first), np.flatnonzero(~first)
    return chosen[interleave(labels[chosen])], rest[interleave(labels[rest])]


def with_official_test(
    name: str,
    class_names: tuple[str, ...],
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    source_share: float,
    prepare: Callable[[np.ndarray], np.ndarray],
    limit: int | None,
    note: str = "",
) -> Dataset:
    """A data set whose authors say what is for testing.

    train, test: images as stored, and labels; source_share: the first images of each class in train; prepare: makes of
    stored images what a Split has; limit: of each split.
    """

    def make(images: np.ndarray, labels: np.ndarray, order: np.ndarray) -> Split:
        order = order[:limit]
        return Split(prepare(images[order]), labels[order].astype(np.uint16))

    source, adapt = split_by_rank(train[1], source_share)
    return Dataset(name, class_names, make(*train, source), make(*train, adapt), make(*test, interleave(test[1])), note)


def fit_images(images: np.ndarray, size: int, channels: int, resize: str) -> np.ndarray:
    """uint8 [n, h, w, 1 or 3] -> uint8 [n, size, size, channels]; gray is repeated, colour becomes luminance."""
    if resize not in RESAMPLING:
        raise UserError(f"resize method {resize!r} is unknown: choose one of {', '.join(RESAMPLING)}.")
    if channels not in (1, 3):
        raise UserError(f"images have 1 or 3 channels, the network wants {channels}: this data set cannot feed it.")
    if images.shape[1:3] != (size, size):
        modes = images if images.shape[-1] == 3 else images[..., 0]
        scaled = [np.asarray(Image.fromarray(i).resize((size, size), RESAMPLING[resize])) for i in modes]
        images = np.stack(scaled).reshape(len(images), size, size, images.shape[-1])
    if images.shape[-1] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    return np.stack([np.asarray(Image.fromarray(i).convert("L")) for i in images])[..., None]
