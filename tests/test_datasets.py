"""Readers of the official layouts, on tiny files made here; and the deployment shifts."""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from converters.errors import UserError
from pipeline import datasets
from pipeline.datasets import eurosat, fashion_mnist, shifts, stl10
from pipeline.datasets.dataset import interleave, split_by_rank


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Caches land in a fresh directory, not in the project."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def write_idx(path: Path, array: np.ndarray, packed: bool = True) -> None:
    raw = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw))
    else:
        path.write_bytes(raw)


def make_fashion(folder: Path, packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    labels = np.tile(np.arange(10, dtype=np.uint8), 12)
    images = rng.integers(0, 256, (120, 28, 28), np.uint8)
    for part, n in (("train", 120), ("t10k", 20)):
        write_idx(folder / f"{part}-images-idx3-ubyte", images[:n], packed)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels[:n], packed)
    return images, labels


def make_eurosat(folder: Path, each: int = 10, size: int = 64) -> None:
    for c, name in enumerate(eurosat.CLASS_NAMES):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            Image.new("RGB", (size, size), (25 * c, 20 * i, 128)).save(
                folder / name / f"{name}_{i + 1}.jpg", quality=95
            )


def make_stl10(folder: Path, train: int = 50, test: int = 20) -> np.ndarray:
    """The images upright, uint8 [n, row, column, channel]."""
    folder.mkdir(parents=True)
    images = np.random.default_rng(2).integers(0, 256, (train, 96, 96, 3), np.uint8)
    for part, n in (("train", train), ("test", test)):
        (folder / f"{part}_y.bin").write_bytes((np.arange(n, dtype=np.uint8) % 10 + 1).tobytes())
        stored = images[np.arange(n) % train].transpose(0, 3, 2, 1)  # channel, column, row: the site's description
        (folder / f"{part}_X.bin").write_bytes(np.ascontiguousarray(stored).tobytes())
    return images


def fingerprints(split: datasets.Split) -> set[bytes]:
    return {image.tobytes() for image in split.images}


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_pads_to_32_and_repeats_gray(tmp_path, packed):
    images, labels = make_fashion(tmp_path / "fm", packed)
    data = datasets.load("fashion_mnist", data_dir=tmp_path / "fm", size=32)
    assert [len(s) for s in (data.source, data.adapt, data.test)] == [100, 20, 20]
    assert data.source.images.shape == (100, 32, 32, 3) and data.source.images.dtype == np.uint8
    assert data.source.labels.dtype == np.uint16
    first = data.source.images[3]
    assert np.array_equal(first[2:30, 2:30, 1], images[3]) and data.source.labels[3] == labels[3]
    assert not first[:2].any() and not first[:, 30:].any()
    assert np.bincount(data.adapt.labels).tolist() == [2] * 10
    gray = datasets.load("fashion_mnist", data_dir=tmp_path / "fm", size=48, channels=1)
    assert gray.test.images.shape == (20, 48, 48, 1)


@pytest.mark.parametrize("name", datasets.NAMES)
def test_splits_are_disjoint_balanced_and_repeatable(tmp_path, name):
    size = {"fashion_mnist": 32, "eurosat": 64, "stl10": 96}[name]
    {"fashion_mnist": make_fashion, "eurosat": make_eurosat, "stl10": make_stl10}[name](tmp_path / "data")
    one, two = (datasets.load(name, data_dir=tmp_path / "data", size=size) for _ in range(2))
    for split in ("source", "adapt", "test"):
        assert np.array_equal(getattr(one, split).images, getattr(two, split).images)
        counts = np.bincount(getattr(one, split).labels, minlength=10)
        assert counts.min() == counts.max() > 0
        assert sorted(getattr(one, split).labels[:10]) == list(range(10))  # any head is balanced
    assert not fingerprints(one.source) & fingerprints(one.adapt)
    limited = datasets.load(name, data_dir=tmp_path / "data", size=size, limit=10)
    assert np.array_equal(limited.adapt.images, one.adapt.images[:10]) and len(limited.source) == 10


def test_eurosat_finds_the_published_folder_and_caches(tmp_path):
    make_eurosat(tmp_path / "EuroSAT" / "2750")
    first = datasets.load("eurosat", data_dir=tmp_path, size=64)
    assert [len(s) for s in (first.source, first.adapt, first.test)] == [60, 20, 20]
    red = first.source.images[..., 0].reshape(len(first.source), -1).mean(axis=1)
    assert np.abs(red - 25.0 * first.source.labels).max() < 6  # labels belong to their images
    cached = list(Path("data/cache").glob("eurosat-*.npz"))
    assert len(cached) == 1
    cached[0].write_bytes(cached[0].read_bytes()[:1000])  # a damaged cache is made anew
    again = datasets.load("eurosat", data_dir=tmp_path, size=64)
    assert np.array_equal(first.test.images, again.test.images)
    assert datasets.load("eurosat", data_dir=tmp_path, size=32).test.images.shape == (20, 32, 32, 3)


def test_stl10_turns_column_major_images_upright(tmp_path):
    images = make_stl10(tmp_path / "stl10_binary")
    data = datasets.load("stl10", data_dir=tmp_path, size=96)
    assert np.array_equal(data.source.images[:10], images[:10])
    assert data.source.labels[:10].tolist() == list(range(10))
    assert [len(s) for s in (data.source, data.adapt, data.test)] == [40, 10, 20]
    assert "20 of STL-10's 8,000" in data.note


def broken_eurosat(folder: Path) -> None:
    make_eurosat(folder, each=5)
    path = folder / "River" / "River_2.jpg"
    path.write_bytes(path.read_bytes()[:200])


def without_a_class(folder: Path) -> None:
    make_eurosat(folder, each=2)
    shutil.rmtree(folder / "Forest")


def cut(name: str, make, at: int):
    def broken(folder: Path) -> None:
        make(folder)
        path = folder / name
        path.write_bytes(path.read_bytes()[:at])

    return broken


def gone(name: str, make):
    def broken(folder: Path) -> None:
        make(folder)
        (folder / name).unlink()

    return broken


def cut_idx(folder: Path) -> None:
    make_fashion(folder, packed=False)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("fashion_mnist", lambda f: f.mkdir(), "does not hold the four"),
        ("fashion_mnist", gone("t10k-labels-idx1-ubyte.gz", make_fashion), "does not hold the four"),
        ("fashion_mnist", cut("train-images-idx3-ubyte.gz", make_fashion, 3000), "truncated or no gzip"),
        ("fashion_mnist", cut_idx, "is truncated: it announces"),
        ("eurosat", lambda f: None, "no EuroSAT directory"),
        ("eurosat", lambda f: f.mkdir(), "none of EuroSAT's class folders"),
        ("eurosat", without_a_class, "class folder Forest"),
        ("eurosat", broken_eurosat, "River_2.jpg is truncated"),
        ("eurosat", lambda f: make_eurosat(f, 2, 32), "is 32x32"),
        ("stl10", lambda f: f.mkdir(), "no STL-10 file train_X.bin"),
        ("stl10", gone("test_y.bin", make_stl10), "test_y.bin is missing"),
        ("stl10", cut("train_X.bin", make_stl10, 100_000), "one of the two is truncated"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, name, make, says):
    make(tmp_path / "data")
    with pytest.raises(UserError, match=says):
        datasets.load(name, data_dir=tmp_path / "data", size=64)


def test_requests_that_cannot_be_met_are_one_sentence(tmp_path):
    make_fashion(tmp_path / "fm")
    with pytest.raises(UserError, match="is unknown"):
        datasets.load("imagenet", size=32)
    with pytest.raises(UserError, match="--limit"):
        datasets.load("fashion_mnist", data_dir=tmp_path / "fm", size=224)
    with pytest.raises(UserError, match="channels"):
        datasets.load("fashion_mnist", data_dir=tmp_path / "fm", size=32, channels=4)


def test_fashion_mnist_without_any_source_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "SYSTEM", tmp_path / "nowhere")
    monkeypatch.setattr(fashion_mnist, "URL", "http://127.0.0.1:9/")
    monkeypatch.setattr(fashion_mnist.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="apt-get install dataset-fashion-mnist"):
        datasets.load("fashion_mnist", size=32)


def test_a_download_that_was_altered_is_refused(tmp_path, monkeypatch):
    make_fashion(tmp_path / "mirror")
    monkeypatch.setattr(fashion_mnist, "SYSTEM", tmp_path / "nowhere")
    monkeypatch.setattr(fashion_mnist, "URL", f"file://{tmp_path / 'mirror'}/")
    monkeypatch.setattr(fashion_mnist.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="damaged or altered"):
        datasets.load("fashion_mnist", size=32)
    assert not Path("data/fashion_mnist").exists()


def test_a_download_that_checks_is_kept(tmp_path, monkeypatch):
    make_fashion(tmp_path / "mirror")
    digests = {
        name: fashion_mnist.hashlib.sha256(
            gzip.decompress((tmp_path / "mirror" / f"{name}.gz").read_bytes())
        ).hexdigest()
        for name in fashion_mnist.SHA256
    }
    monkeypatch.setattr(fashion_mnist, "SYSTEM", tmp_path / "nowhere")
    monkeypatch.setattr(fashion_mnist, "URL", f"file://{tmp_path / 'mirror'}/")
    monkeypatch.setattr(fashion_mnist, "SHA256", digests)
    monkeypatch.setattr(fashion_mnist.shutil, "which", lambda name: None)
    assert len(datasets.load("fashion_mnist", size=32).test) == 20
    monkeypatch.setattr(fashion_mnist, "URL", "http://127.0.0.1:9/")
    assert len(datasets.load("fashion_mnist", size=32).test) == 20


def test_interleave_and_split_keep_order_within_a_class():
    labels = np.array([0, 0, 0, 1, 1, 2])
    assert interleave(labels).tolist() == [0, 3, 5, 1, 4, 2]
    first, rest = split_by_rank(labels, 0.5)
    assert sorted([*first, *rest]) == list(range(6))
    assert first.tolist() == [0, 3, 1] and rest.tolist() == [2, 4, 5]


@pytest.mark.parametrize("name", shifts.SHIFTS)
@pytest.mark.parametrize("severity", shifts.SEVERITIES)
def test_shifts_keep_shape_and_type_and_repeat(name, severity):
    images = np.random.default_rng(3).integers(0, 256, (5, 16, 16, 3), np.uint8)
    kept = images.copy()
    shifted = shifts.apply(name, images, severity, seed=7)
    assert shifted.shape == images.shape and shifted.dtype == np.uint8
    assert np.array_equal(shifted, shifts.apply(name, images, severity, seed=7))
    assert np.array_equal(images, kept)
    assert np.array_equal(shifted, images) == (name == "none")


def test_severity_3_is_the_study_s():
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    x = ramp.astype(np.float64)
    assert np.array_equal(shifts.apply("brightness", ramp, 3), np.clip(np.rint(0.4 * x + 100), 0, 255))
    assert np.array_equal(shifts.apply("contrast", ramp, 3), np.clip(np.rint(0.3 * (x - 128) + 128), 0, 255))
    assert np.array_equal(shifts.apply("rotation", ramp, 3)[0], np.rot90(ramp[0]))
    grey = np.full((40, 32, 32, 3), 128, np.uint8)
    noisy = shifts.apply("noise", grey, 2, seed=1).astype(np.float64)
    assert abs(noisy.mean() - 128) < 1 and abs(noisy.std() - 40) < 1


def test_noise_depends_on_the_seed_and_the_place_alone():
    images = np.random.default_rng(4).integers(0, 256, (600, 8, 8, 1), np.uint8)
    whole = shifts.apply("noise", images, 3, seed=5)
    assert np.array_equal(whole[:10], shifts.apply("noise", images[:10], 3, seed=5))
    assert not np.array_equal(whole[:10], shifts.apply("noise", images[:10], 3, seed=6))


def test_noise_is_the_same_on_every_machine():
    grey = np.full((2, 2, 3, 1), 128, np.uint8)
    assert shifts.apply("noise", grey, 3, seed=1).ravel().tolist() == [
        38, 124, 15, 0, 126, 51, 80, 127, 72, 97, 134, 133,
    ]  # fmt: skip


def test_shift_mistakes_are_one_sentence():
    images = np.zeros((1, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="choose one of"):
        shifts.apply("fog", images)
    with pytest.raises(UserError, match="1 to 5"):
        shifts.apply("noise", images, 6)


def test_stl10_labels_outside_1_to_10_are_refused(tmp_path):
    make_stl10(tmp_path / "s")
    (tmp_path / "s" / "test_y.bin").write_bytes(bytes(20))
    with pytest.raises(UserError, match=r"outside 1\.\.10"):
        stl10.load(tmp_path / "s", 96, 3, "bilinear", None)
