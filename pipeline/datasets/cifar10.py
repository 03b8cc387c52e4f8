"""CIFAR-10 (Krizhevsky 2009): 10 classes of 6,000 colour images, 32x32, 1,000 of each for testing.

Get the binary version, cifar-10-binary.tar.gz, from https://www.cs.toronto.edu/~kriz/cifar.html and name the unpacked
directory with --data-dir. (The Python version is a pickle, which runs whatever it contains: it is not read.)

Splits: source = the first 4/5 of each class of the training files in file order (40,000), adapt = the rest (10,000),
test = the official test file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from converters.errors import UserError
from pipeline.datasets.dataset import CACHE, Dataset, Part, fit_images, with_official_test

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES = 60_000
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
TRAIN_FILES = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
TEST_FILE = "test_batch.bin"
RECORD_BYTES = 1 + 3 * 32 * 32  # label; red, green, blue planes
FILE_RECORDS = 10_000
GET = f"download cifar-10-binary.tar.gz from {HOME}, unpack it and name its directory with --data-dir"


def load(
    data_dir: Path | None, size: int, channels: int, resize: str, limit: int | None, cache: Path = CACHE
) -> Dataset:
    folder = _find(data_dir if data_dir is not None else cache / "cifar-10-batches-bin")
    parts = [_read(folder / name) for name in TRAIN_FILES]
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))

    def prepare(stored: np.ndarray) -> np.ndarray:
        return fit_images(np.ascontiguousarray(stored.transpose(0, 2, 3, 1)), size, channels, resize)

    return with_official_test("cifar10", CLASS_NAMES, (images, labels), _read(folder / TEST_FILE), 0.8, prepare, limit)


def examine(data_dir: Path | None, cache: Path = CACHE) -> list[Part]:
    folder = _find(data_dir if data_dir is not None else cache / "cifar-10-batches-bin")
    return [Part.of_file(folder / name, size=FILE_RECORDS * RECORD_BYTES) for name in (*TRAIN_FILES, TEST_FILE)]


def _find(folder: Path) -> Path:
    for root in (folder, folder / "cifar-10-batches-bin"):
        if (root / TRAIN_FILES[0]).is_file():
            return root
    raise UserError(f"{folder} holds no CIFAR-10 file {TRAIN_FILES[0]}: {GET}.")


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 3, 32, 32] and uint16 [n]."""
    if not path.is_file():
        raise UserError(f"{path} is missing: {GET}.")
    raw = np.fromfile(path, np.uint8)
    if len(raw) == 0 or len(raw) % RECORD_BYTES:
        raise UserError(f"{path} is truncated ({len(raw):,} bytes are no whole images): {GET}.")
    records = raw.reshape(-1, RECORD_BYTES)
    labels = records[:, 0].astype(np.uint16)
    if labels.max() >= len(CLASS_NAMES):
        raise UserError(f"{path} has labels up to {labels.max()}, so it is not CIFAR-10's: {GET}.")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels
