"""Data sets by name: `load("fashion_mnist", data_dir=None, size=32)`; what is there: `python -m pipeline.datasets`."""

from __future__ import annotations

from pathlib import Path

from converters.errors import UserError
from pipeline.datasets import cifar10, eurosat, fashion_mnist, folder, stl10
from pipeline.datasets.dataset import Dataset, Part, Split

__all__ = ["NAMES", "Dataset", "Part", "Split", "class_names", "examine", "home", "load"]

# A reader: CLASS_NAMES and IMAGES (None where the files say), HOME, load, examine.
_READERS = {"fashion_mnist": fashion_mnist, "eurosat": eurosat, "stl10": stl10, "cifar10": cifar10, "folder": folder}
NAMES = tuple(_READERS)
_MOST_BYTES = 6 * 2**30
_FOLDER_IMAGES = 50_000  # of an image folder, taken for the estimate of memory where no limit says less


def class_names(name: str, data_dir: Path | None = None) -> tuple[str, ...]:
    """data_dir: needed where the user's folders are the classes."""
    return _reader(name).CLASS_NAMES or folder.class_names(data_dir)


def home(name: str) -> str:
    """Where its authors publish it."""
    return _reader(name).HOME


def examine(name: str, data_dir: Path | None = None) -> list[Part]:
    """The files that are there, with what is known of them. Raises UserError where there are none."""
    return _reader(name).examine(data_dir)


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
    images = reader.IMAGES or _FOLDER_IMAGES
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
