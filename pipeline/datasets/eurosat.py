"""EuroSAT RGB (Helber et al. 2019): 27,000 Sentinel-2 tiles of 64x64 in 10 classes of land use, JPEG, a folder a class.

Get EuroSAT_RGB.zip (or EuroSAT.zip) from https://zenodo.org/records/7711810 and name the unpacked directory with
--data-dir: the one that holds the class folders, or any above it (EuroSAT/2750, EuroSAT_RGB, eurosat).

There is no official split. Ours: within a class, files are ordered by the SHA-256 of their names; the first 60 % are
source, the next 20 % adapt, the last 20 % test. The decoded pixels are cached under ./data/cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from converters.errors import UserError
from pipeline.datasets.dataset import CACHE, Dataset, Part, Split, fit_images, interleave, split_by_rank
from pipeline.datasets.image_files import list_images, read_images

CLASS_NAMES = (
    "AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture", "PermanentCrop",
    "Residential", "River", "SeaLake",
)  # fmt: skip
INSIDE = ("", "2750", "EuroSAT", "EuroSAT/2750", "EuroSAT_RGB", "eurosat", "eurosat/2750")
SUFFIXES = (".jpg", ".jpeg")
SIZE = 64
IMAGES = 27_000
PUBLISHED = (3000, 3000, 3000, 2500, 2500, 2000, 2500, 3000, 2500, 3000)  # images a class
HOME = "https://zenodo.org/records/7711810"
GET = f"download EuroSAT_RGB.zip from {HOME}, unpack it and name its directory with --data-dir"


def load(
    data_dir: Path | None, size: int, channels: int, resize: str, limit: int | None, cache: Path = CACHE
) -> Dataset:
    folder = _find(data_dir if data_dir is not None else cache / "eurosat")
    files = list_images(folder, CLASS_NAMES, SUFFIXES)
    images = read_images([path for path, _ in files], SIZE, _whole, "eurosat", cache, GET)
    labels = np.array([label for _, label in files], np.uint16)

    def make(order: np.ndarray) -> Split:
        order = order[:limit]
        return Split(fit_images(images[order], size, channels, resize), labels[order])

    rest, test = split_by_rank(labels, 0.8)
    source, adapt = split_by_rank(labels[rest], 0.75)
    return Dataset("eurosat", CLASS_NAMES, make(rest[source]), make(rest[adapt]), make(test[interleave(labels[test])]))


def examine(data_dir: Path | None, cache: Path = CACHE) -> list[Part]:
    folder = _find(data_dir if data_dir is not None else cache / "eurosat")
    parts = []
    for name, published in zip(CLASS_NAMES, PUBLISHED, strict=True):
        found = sum(p.suffix.lower() in SUFFIXES for p in (folder / name).iterdir())
        state = Part.OK if found == published else Part.OTHER
        parts.append(Part(str(folder / name), state, f"{found:,} of {published:,} images"))
    return parts


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


def _whole(image: Image.Image) -> Image.Image:
    if image.size != (SIZE, SIZE):
        raise ValueError(f"is {image.width}x{image.height}, EuroSAT's images are {SIZE}x{SIZE}")
    return image
