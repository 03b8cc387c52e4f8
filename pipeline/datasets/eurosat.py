"""EuroSAT RGB (Helber et al. 2019): 27,000 Sentinel-2 tiles of 64x64 in 10 classes of land use, JPEG, a folder a class.

Get EuroSAT_RGB.zip (or EuroSAT.zip) from https://zenodo.org/records/7711810 and name the unpacked directory with
--data-dir: the one that holds the class folders, or any above it (EuroSAT/2750, EuroSAT_RGB, eurosat).

There is no official split. Ours: within a class, files are ordered by the SHA-256 of their names; the first 60 % are
source, the next 20 % adapt, the last 20 % test. The decoded pixels are cached under ./data/cache.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from converters.errors import UserError
from pipeline.cli import progress
from pipeline.datasets.dataset import CACHE, Dataset, Split, fit_images, interleave, split_by_rank

CLASS_NAMES = (
    "AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture", "PermanentCrop",
    "Residential", "River", "SeaLake",
)  # fmt: skip
INSIDE = ("", "2750", "EuroSAT", "EuroSAT/2750", "EuroSAT_RGB", "eurosat", "eurosat/2750")
GET = (
    "download EuroSAT_RGB.zip from https://zenodo.org/records/7711810, unpack it and name its directory with --data-dir"
)


def load(
    data_dir: Path | None, size: int, channels: int, resize: str, limit: int | None, cache: Path = CACHE
) -> Dataset:
    folder = _find(data_dir if data_dir is not None else cache / "eurosat")
    images, labels = _pixels(_files(folder), cache)

    def make(order: np.ndarray) -> Split:
        order = order[:limit]
        return Split(fit_images(images[order], size, channels, resize), labels[order])

    rest, test = split_by_rank(labels, 0.8)
    source, adapt = split_by_rank(labels[rest], 0.75)
    return Dataset("eurosat", CLASS_NAMES, make(rest[source]), make(rest[adapt]), make(test[interleave(labels[test])]))


def _find(folder: Path) -> Path:
    if not folder.is_dir():
        raise UserError(f"there is no EuroSAT directory {folder}: {GET}.")
    for inside in INSIDE:
        root = folder / inside
        present = [name for name in CLASS_NAMES if (root / name).is_dir()]
        if len(present) == len(CLASS_NAMES):
            return root
        if present:
            missing = next(name for name in CLASS_NAMES if name not in present)
            raise UserError(f"{root} lacks EuroSAT's class folder {missing}: {GET}.")
    raise UserError(f"{folder} holds none of EuroSAT's class folders (AnnualCrop, Forest, ...): {GET}.")


def _files(root: Path) -> list[tuple[Path, int]]:
    """Every JPEG with its label, by class, then by the SHA-256 of the file name."""
    found = []
    for label, name in enumerate(CLASS_NAMES):
        files = [p for p in (root / name).iterdir() if p.suffix.lower() in (".jpg", ".jpeg")]
        if not files:
            raise UserError(f"{root / name} holds no .jpg file: {GET}.")
        files.sort(key=lambda p: hashlib.sha256(p.name.encode()).digest())
        found += [(path, label) for path in files]
    return found


def _decode(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path} is truncated or no JPEG: {GET}.") from error
    if pixels.shape != (64, 64, 3):
        raise UserError(f"{path} is {pixels.shape[1]}x{pixels.shape[0]}, EuroSAT's images are 64x64: {GET}.")
    return pixels


def _pixels(files: list[tuple[Path, int]], cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Decoded files, uint8 [n, 64, 64, 3] and uint16 [n]; the cache is keyed by names, sizes and times of the files."""
    stats = [(str(p.resolve()), (s := p.stat()).st_size, s.st_mtime_ns) for p, _ in files]
    key = hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
    store = cache / "cache" / f"eurosat-{key}.npz"
    labels = np.array([label for _, label in files], np.uint16)
    try:
        with np.load(store) as saved:
            return saved["images"], labels
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        pass  # absent, or left by a crash: decode again
    images = np.empty((len(files), 64, 64, 3), np.uint8)
    with progress(len(files), "decoding EuroSAT", "file", disable=len(files) < 1000) as bar:
        for i, (path, _) in enumerate(files):
            images[i] = _decode(path)
            bar.update()
    store.parent.mkdir(parents=True, exist_ok=True)
    partial = store.with_suffix(f".{os.getpid()}.tmp")
    with partial.open("wb") as out:
        np.savez(out, images=images)
    partial.replace(store)
    return images, labels
