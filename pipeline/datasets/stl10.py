"""STL-10 (Coates, Lee, Ng 2011): 96x96 colour images in 10 classes, 500 labelled ones a class, 800 for testing.

Get stl10_binary.tar.gz from https://cs.stanford.edu/~acoates/stl10/ and name the unpacked directory with --data-dir.
Images are stored channel, column, row (column-major as in MATLAB), labels count from 1.

Splits: source = the first 400 training images of each class in file order (4,000), adapt = the other 100 (1,000),
test = the official test files (8,000). The unlabelled images are not used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from converters.errors import UserError
from pipeline.datasets.dataset import CACHE, Dataset, Part, fit_images, with_official_test

CLASS_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
IMAGE_BYTES = 3 * 96 * 96
IMAGES = 13_000
TEST_IMAGES = 8000
HOME = "https://cs.stanford.edu/~acoates/stl10/"
PUBLISHED = {  # bytes and MD5 of the unpacked files: torchvision's datasets/stl10.py
    "train_X.bin": (5000 * IMAGE_BYTES, "918c2871b30a85fa023e0c44e0bee87f"),
    "train_y.bin": (5000, "5a34089d4802c674881badbb80307741"),
    "test_X.bin": (8000 * IMAGE_BYTES, "7f263ba9f9e0b06b93213547f721ac82"),
    "test_y.bin": (8000, "36f9794fa4beb8a2c72628de14fa638e"),
}
GET = f"download stl10_binary.tar.gz from {HOME}, unpack it and name its directory with --data-dir"


def load(
    data_dir: Path | None, size: int, channels: int, resize: str, limit: int | None, cache: Path = CACHE
) -> Dataset:
    folder = _find(data_dir if data_dir is not None else cache / "stl10_binary")
    train, test = _read(folder, "train"), _read(folder, "test")
    note = ""
    if len(test[1]) < TEST_IMAGES:
        note = f"{folder} holds {len(test[1]):,} of STL-10's {TEST_IMAGES:,} test images; these are used."

    def prepare(stored: np.ndarray) -> np.ndarray:
        upright = np.ascontiguousarray(stored.transpose(0, 3, 2, 1))  # [n, channel, column, row] as stored
        return fit_images(upright, size, channels, resize)

    return with_official_test("stl10", CLASS_NAMES, train, test, 0.8, prepare, limit, note)


def examine(data_dir: Path | None, cache: Path = CACHE) -> list[Part]:
    folder = _find(data_dir if data_dir is not None else cache / "stl10_binary")
    return [Part.of_file(folder / name, size=size, md5=md5) for name, (size, md5) in PUBLISHED.items()]


def _find(folder: Path) -> Path:
    for root in (folder, folder / "stl10_binary"):
        if (root / "train_X.bin").is_file():
            return root
    raise UserError(f"{folder} holds no STL-10 file train_X.bin: {GET}.")


def _read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as stored, uint8 [n, 3, 96 columns, 96 rows], and labels from 0, uint16 [n]."""
    paths = folder / f"{part}_X.bin", folder / f"{part}_y.bin"
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is missing: {GET}.")
    pixels, labels = (np.fromfile(path, np.uint8) for path in paths)
    if len(labels) == 0 or len(pixels) != len(labels) * IMAGE_BYTES:
        raise UserError(
            f"{paths[0]} holds {len(pixels):,} bytes where the {len(labels):,} labels beside it ask for "
            f"{len(labels) * IMAGE_BYTES:,} (one of the two is truncated): {GET}."
        )
    if labels.min() < 1 or labels.max() > 10:
        raise UserError(f"{paths[1]} has labels outside 1..10, so it is not STL-10's: {GET}.")
    return pixels.reshape(-1, 3, 96, 96), labels.astype(np.uint16) - 1
