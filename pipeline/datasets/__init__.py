"""Data sets by name: `load("fashion_mnist", data_dir=None, size=32)`."""

from __future__ import annotations

from pathlib import Path

from converters.errors import UserError
from pipeline.datasets import eurosat, fashion_mnist, stl10
from pipeline.datasets.dataset import Dataset, Split

__all__ = ["NAMES", "Dataset", "Split", "class_names", "load"]

_READERS = {"fashion_mnist": fashion_mnist, "eurosat": eurosat, "stl10": stl10}
NAMES = tuple(_READERS)
_MOST_BYTES = 6 * 2**30


def class_names(name: str) -> tuple[str, ...]:
    return _reader(name).CLASS_NAMES


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    size: int,
    channels: int = 3,
    resize: str = "bilinear",
    limit: int | None = None,
) -> Dataset:
    """The data set resized to size x size x channels; limit caps each split (its head, which is balanced by class).

    Splits are deterministic and stratified; each reader's module says how. Raises UserError when files are missing,
    damaged, or would not fit into memory at this size.
    """
    reader = _reader(name)
    images = {"fashion_mnist": 70_000, "eurosat": 27_000, "stl10": 13_000}[name]
    needed = min(images, 3 * (limit or images)) * size * size * channels
    if needed > _MOST_BYTES:
        raise UserError(
            f"{name} at {size}x{size} takes {needed / 2**30:.0f} GiB of memory: choose a smaller input, or use only "
            f"part of it with --limit {_MOST_BYTES // (3 * size * size * channels) // 1000 * 1000}."
        )
    return reader.load(data_dir, size, channels, resize, limit)


def _reader(name: str):
    if name not in _READERS:
        raise UserError(f"data set {name!r} is unknown: choose one of {', '.join(NAMES)}.")
    return _READERS[name]
