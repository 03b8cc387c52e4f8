"""Image files by class, one folder a class: listed in an order that no file system decides, decoded, and cached."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from converters.errors import UserError
from pipeline.cli import progress

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


def list_images(root: Path, class_names: Sequence[str], suffixes: Sequence[str] = SUFFIXES) -> list[tuple[Path, int]]:
    """Every image file with its label, by class, then by the SHA-256 of the file name (numbered files of one scene
    follow each other otherwise). Raises UserError for a class without any."""
    found = []
    for label, name in enumerate(class_names):
        files = [p for p in (root / name).iterdir() if p.suffix.lower() in suffixes]
        if not files:
            raise UserError(f"{root / name} holds no {suffixes[0]} file, and every class needs images: restore them.")
        files.sort(key=lambda p: hashlib.sha256(p.name.encode()).digest())
        found += [(path, label) for path in files]
    return found


def read_images(
    files: Sequence[Path],
    size: int,
    prepare: Callable[[Image.Image], Image.Image],
    title: str,
    cache: Path,
    remedy: str,
) -> np.ndarray:
    """uint8 [n, size, size, 3]: what `prepare` makes of each file, as RGB.

    Cached under cache/cache by the title, which tells what was prepared, and by names, sizes and times of the files.
    prepare may raise ValueError ("is 32x32, ..."). Raises UserError, with the remedy, for a file that is no such image.
    """
    stats = [(str(p.resolve()), (s := p.stat()).st_size, s.st_mtime_ns) for p in files]
    key = hashlib.sha256(repr((size, stats)).encode()).hexdigest()[:16]
    store = cache / "cache" / f"{title}-{key}.npz"
    try:
        with np.load(store) as saved:
            return saved["images"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        pass  # absent, or left by a crash: decode again
    images = np.empty((len(files), size, size, 3), np.uint8)
    with progress(len(files), f"decoding {title}", "file", disable=len(files) < 1000) as bar:
        for i, path in enumerate(files):
            images[i] = _decode(path, prepare, remedy)
            bar.update()
    store.parent.mkdir(parents=True, exist_ok=True)
    partial = store.with_suffix(f".{os.getpid()}.tmp")
    with partial.open("wb") as out:
        np.savez(out, images=images)
    partial.replace(store)
    return images


def _decode(path: Path, prepare: Callable[[Image.Image], Image.Image], remedy: str) -> np.ndarray:
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is truncated or no image: {remedy}.") from error
    try:
        return np.asarray(prepare(rgb))
    except ValueError as error:
        raise UserError(f"{path} {error}: {remedy}.") from error
