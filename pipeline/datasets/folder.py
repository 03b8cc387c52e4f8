"""Images of yours, a folder a class: DIR/CLASS/*.jpg, or DIR/train/CLASS and DIR/test/CLASS (or val for test).

Classes are the folders' names, sorted. Images are cut to their central square and resized. Within a class, files are
ordered by the SHA-256 of their names. Without a test folder, the first 60 % are source, the next 20 % adapt, the last
20 % test, as for EuroSAT. With one, the first 80 % of train are source, the rest adapt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from converters.errors import UserError
from pipeline.datasets.dataset import CACHE, RESAMPLING, Dataset, Part, Split, fit_images, interleave, split_by_rank
from pipeline.datasets.image_files import SUFFIXES, list_images, read_images

CLASS_NAMES = None  # the user's
IMAGES = None
HOME = "images of yours, a folder a class"
TEST_FOLDERS = ("test", "val")


def class_names(data_dir: Path | None) -> tuple[str, ...]:
    """The folders that hold images, sorted. Raises UserError where there are less than two."""
    if data_dir is None:
        raise UserError("a folder of images by class has to be named with --data-dir.")
    root = _roots(data_dir)[0]
    if not root.is_dir():
        raise UserError(f"there is no directory {root}: name the one that holds a folder of images for each class.")
    names = tuple(
        sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".") and _has_images(p))
    )
    if len(names) < 2:
        raise UserError(
            f"{root} holds {len(names)} folders of images where at least two classes are needed: name the directory "
            "that holds a folder of images for each class."
        )
    return names


def load(
    data_dir: Path | None, size: int, channels: int, resize: str, limit: int | None, cache: Path = CACHE
) -> Dataset:
    names = class_names(data_dir)
    train_root, test_root = _roots(data_dir)
    files = list_images(train_root, names)
    labels = np.array([label for _, label in files], np.uint16)
    if test_root is None:
        rest, test = split_by_rank(labels, 0.8)
        source, adapt = split_by_rank(labels[rest], 0.75)
        parts = [(files, rest[source]), (files, rest[adapt]), (files, test[interleave(labels[test])])]
    else:
        if absent := [name for name in names if not (test_root / name).is_dir()]:
            raise UserError(f"{test_root} lacks the class folder {absent[0]} that {train_root} has.")
        source, adapt = split_by_rank(labels, 0.8)
        tests = list_images(test_root, names)
        parts = [(files, source), (files, adapt), (tests, interleave(np.array([label for _, label in tests])))]

    def make(part: list[tuple[Path, int]], order: np.ndarray) -> Split:
        chosen = [part[i] for i in order[:limit]]

        def square(image: Image.Image) -> Image.Image:
            return ImageOps.fit(image, (size, size), RESAMPLING[resize])

        images = read_images(
            [path for path, _ in chosen], size, square, f"folder-{resize}", cache, "get it again or remove it"
        )
        return Split(fit_images(images, size, channels, resize), np.array([label for _, label in chosen], np.uint16))

    return Dataset("folder", names, *(make(*part) for part in parts))


def examine(data_dir: Path | None) -> list[Part]:
    if data_dir is None:
        return [Part("--data-dir", "", "name your own directory to see what is in it")]
    names = class_names(data_dir)
    return [
        Part(
            str(root / name), Part.OK, f"{sum(p.suffix.lower() in SUFFIXES for p in (root / name).iterdir()):,} images"
        )
        for root in _roots(data_dir)
        if root is not None
        for name in names
        if (root / name).is_dir()
    ]


def _roots(data_dir: Path) -> tuple[Path, Path | None]:
    """Of the classes' folders: for training, and for testing where that is apart."""
    if not (data_dir / "train").is_dir():
        return data_dir, None
    test = next((data_dir / name for name in TEST_FOLDERS if (data_dir / name).is_dir()), None)
    return data_dir / "train", test


def _has_images(folder: Path) -> bool:
    return any(p.suffix.lower() in SUFFIXES for p in folder.iterdir())
