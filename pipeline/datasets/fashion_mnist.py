"""Fashion-MNIST (Xiao et al. 2017, MIT): 60,000 + 10,000 gray images of 28x28 in 10 classes, gzipped IDX files.

The files come from the directory that the user names, else from Debian's package `dataset-fashion-mnist` (installed,
or downloaded and unpacked without root), else from Keras' download mirror. Downloads are checked by SHA-256.

Splits: source = the first 5/6 of each class of the training files in file order (50,000), adapt = the rest (10,000),
test = the official test files.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import numpy as np

from converters.errors import UserError
from pipeline.datasets.dataset import CACHE, Dataset, Part, fit_images, with_official_test

CLASS_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

# SHA-256 of the unpacked IDX files: Debian and Keras pack the same bytes with different gzip headers.
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
IMAGES = 70_000
HOME = "https://github.com/zalandoresearch/fashion-mnist"
SYSTEM = Path("/usr/share/datasets/fashion-mnist")
URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"


def load(
    data_dir: Path | None, size: int, channels: int, resize: str, limit: int | None, cache: Path = CACHE
) -> Dataset:
    """Images are padded from 28 to 32 (zeros, centred), then resized where size is not 32."""
    folder = _find(data_dir, cache)
    images, labels = (_read_idx(folder, f"train-{part}") for part in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    test_images, test_labels = (
        _read_idx(folder, f"t10k-{part}") for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    for name, x, y in (("train", images, labels), ("t10k", test_images, test_labels)):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise UserError(
                f"{folder}: the {name} files hold {x.shape} images and {y.shape} labels: get the official files."
            )
        if len(y) and y.max() >= len(CLASS_NAMES):
            raise UserError(f"{folder}: the {name} labels go up to {y.max()}, Fashion-MNIST has 10 classes.")

    def prepare(stored: np.ndarray) -> np.ndarray:
        return fit_images(np.pad(stored, ((0, 0), (2, 2), (2, 2)))[..., None], size, channels, resize)

    train, test = (images, labels), (test_images, test_labels)
    return with_official_test("fashion_mnist", CLASS_NAMES, train, test, 5 / 6, prepare, limit)


def examine(data_dir: Path | None, cache: Path = CACHE) -> list[Part]:
    """Downloads nothing."""
    folder = (
        _find(data_dir, cache)
        if data_dir is not None
        else next(filter(_complete, (SYSTEM, cache / "fashion_mnist")), None)
    )
    if folder is None:
        return [Part("the four files", Part.MISSING, "they are downloaded when they are needed")]
    return [_examine_file(folder, name, digest) for name, digest in SHA256.items()]


def _examine_file(folder: Path, name: str, digest: str) -> Part:
    try:
        data = _unpacked(folder, name)
    except UserError:
        return Part(str(folder / name), Part.DAMAGED, "truncated or no gzip file")
    if hashlib.sha256(data).hexdigest() != digest:
        return Part(str(folder / name), Part.DAMAGED, "SHA-256 is not that of the published file")
    return Part(str(folder / name), Part.OK, f"{len(data):,} bytes unpacked, SHA-256 as published")


def _find(data_dir: Path | None, cache: Path) -> Path:
    """The directory that holds the four files, downloaded when nothing else has them."""
    if data_dir is not None:
        for folder in (data_dir, data_dir / "fashion_mnist", data_dir / "fashion-mnist"):
            if _complete(folder):
                return folder
        raise UserError(
            f"{data_dir} does not hold the four Fashion-MNIST files ({', '.join(SHA256)}, .gz or unpacked)."
        )
    mine = cache / "fashion_mnist"
    for folder in (SYSTEM, mine):
        if _complete(folder):
            return folder
    with (_made(cache) / ".fashion_mnist.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another command may be getting it just now
        if not _complete(mine):
            _download(mine, cache)
    return mine


def _download(mine: Path, cache: Path) -> None:
    reasons = []
    for get in (_from_debian, _from_keras):
        try:
            with tempfile.TemporaryDirectory(dir=cache, prefix=".fashion_mnist-") as scratch:
                found = get(Path(scratch))
                _verify(found)
                shutil.rmtree(mine, ignore_errors=True)
                found.replace(mine)
            return
        except (OSError, subprocess.SubprocessError, UserError) as error:
            reasons.append(str(error).splitlines()[-1])
    raise UserError(
        "Fashion-MNIST is not here and could not be downloaded "
        f"({'; '.join(reasons)}): install it with `apt-get install dataset-fashion-mnist`, or put its four .gz files "
        f"into a directory and name it with --data-dir."
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / f"{name}.gz").is_file() or (folder / name).is_file() for name in SHA256)


def _from_debian(scratch: Path) -> Path:
    """`apt-get download` and `dpkg-deb -x` need no root."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise UserError("no apt-get here")
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "download", "dataset-fashion-mnist"]
    if subprocess.run(apt, cwd=scratch, capture_output=True, timeout=600).returncode:
        raise UserError("apt-get has no package dataset-fashion-mnist (run `apt-get update`?)")
    package = next(scratch.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", package.name, "unpacked"], cwd=scratch, check=True, capture_output=True)
    return scratch / "unpacked" / SYSTEM.relative_to("/")


def _from_keras(scratch: Path) -> Path:
    folder = _made(scratch / "keras")
    for name in SHA256:
        with urllib.request.urlopen(f"{URL}{name}.gz", timeout=60) as reply:
            (folder / f"{name}.gz").write_bytes(reply.read())
    return folder


def _verify(folder: Path) -> None:
    for name, digest in SHA256.items():
        if hashlib.sha256(_unpacked(folder, name)).hexdigest() != digest:
            raise UserError(f"{name} was damaged or altered on its way")


def _unpacked(folder: Path, name: str) -> bytes:
    path = folder / f"{name}.gz"
    if not path.is_file():
        return (folder / name).read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} is truncated or no gzip file: get it again.") from error


def _read_idx(folder: Path, name: str) -> np.ndarray:
    """IDX: two zero bytes, type 8 (uint8), rank, then big-endian uint32 sizes, then the data."""
    raw = _unpacked(folder, name)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise UserError(f"{folder / name} is no IDX file of bytes: get it again.")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", raw[3], 4))
    start = 4 + 4 * raw[3]
    if len(raw) - start != int(np.prod(shape)):
        raise UserError(
            f"{folder / name} is truncated: it announces {int(np.prod(shape)):,} bytes and holds {len(raw) - start:,}: "
            "get it again."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
