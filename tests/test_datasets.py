"""Readers of the official layouts, on tiny files made here; and the deployment shifts."""

import gzip
import hashlib
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from converters.errors import UserError
from pipeline import datasets
from pipeline.datasets import cifar10, eurosat, fashion_mnist, folder, shifts, stl10
from pipeline.datasets.__main__ import main as datasets_command
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


def make_cifar10(folder: Path, each: int = 20) -> np.ndarray:
    """The images of the first file, uint8 [n, row, column, channel]."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (6, each, 32, 32, 3), np.uint8)
    for name, part in zip((*cifar10.TRAIN_FILES, cifar10.TEST_FILE), images, strict=True):
        labels = (np.arange(each) % 10).astype(np.uint8)[:, None]
        planes = part.transpose(0, 3, 1, 2).reshape(each, -1)
        (folder / name).write_bytes(np.concatenate([labels, planes], axis=1).tobytes())
    return images[0]


def make_folder(root: Path, each: int = 10, names: tuple[str, ...] = ("cat", "dog", "owl")) -> None:
    for c, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(each):
            Image.new("RGB", (80, 50 + i), (80 * c, 20 * i, 99)).save(root / name / f"{i}.png")


MAKE = {
    "fashion_mnist": make_fashion, "eurosat": make_eurosat, "stl10": make_stl10, "cifar10": make_cifar10,
    "folder": make_folder,
}  # fmt: skip


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
    size = {"fashion_mnist": 32, "eurosat": 64, "stl10": 96, "cifar10": 32, "folder": 48}[name]
    MAKE[name](tmp_path / "data")
    one, two = (datasets.load(name, data_dir=tmp_path / "data", size=size) for _ in range(2))
    for split in ("source", "adapt", "test"):
        assert np.array_equal(getattr(one, split).images, getattr(two, split).images)
        counts = np.bincount(getattr(one, split).labels, minlength=one.classes)
        assert counts.min() == counts.max() > 0
        assert sorted(getattr(one, split).labels[: one.classes]) == list(range(one.classes))  # any head is balanced
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


def test_cifar10_is_planes_after_a_label(tmp_path):
    images = make_cifar10(tmp_path / "cifar-10-batches-bin")
    data = datasets.load("cifar10", data_dir=tmp_path, size=32)
    assert np.array_equal(data.source.images[:10], images[:10]) and data.source.labels[:10].tolist() == list(range(10))
    assert [len(s) for s in (data.source, data.adapt, data.test)] == [80, 20, 20]


def test_folders_of_images_are_classes(tmp_path):
    make_folder(tmp_path / "all")
    (tmp_path / "all" / "notes").mkdir()  # no images: no class
    data = datasets.load("folder", data_dir=tmp_path / "all", size=40)
    assert data.class_names == datasets.class_names("folder", tmp_path / "all") == ("cat", "dog", "owl")
    assert [len(s) for s in (data.source, data.adapt, data.test)] == [18, 6, 6]
    assert data.source.images.shape == (18, 40, 40, 3)
    assert np.array_equal(data.source.images[:, 20, 20, 0], 80 * data.source.labels)
    make_folder(tmp_path / "apart" / "train")
    make_folder(tmp_path / "apart" / "val", each=3)
    apart = datasets.load("folder", data_dir=tmp_path / "apart", size=40)
    assert [len(s) for s in (apart.source, apart.adapt, apart.test)] == [24, 6, 9]


def test_folder_images_are_cut_to_their_centre(tmp_path):
    pixels = np.zeros((30, 90, 3), np.uint8)
    pixels[:, 30:60] = 200
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    data = folder.load(tmp_path, 30, 3, "nearest", None)
    assert (data.source.images == 200).all()


def broken_folder(root: Path) -> None:
    make_folder(root)
    for path in (root / "dog").iterdir():
        path.write_bytes(b"no picture")


def without_a_test_class(root: Path) -> None:
    make_folder(root / "train")
    make_folder(root / "test", names=("cat", "owl"))


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(datasets_command, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_the_command_says_what_is_there(tmp_path, monkeypatch):
    code, text = run()
    assert code == 0 and all(name in text for name in datasets.NAMES) and "zenodo.org" in text
    make_stl10(tmp_path / "s")
    code, text = run("stl10", "--data-dir", tmp_path / "s")
    assert code == 0 and text.count("differs") == 4 and "published are 138,240,000" in text
    files = {name: (tmp_path / "s" / name).read_bytes() for name in stl10.PUBLISHED}
    monkeypatch.setattr(stl10, "PUBLISHED", {n: (len(f), hashlib.md5(f).hexdigest()) for n, f in files.items()})
    code, text = run("stl10", "--data-dir", tmp_path / "s")
    assert code == 0 and text.count("MD5 as published") == 4
    (tmp_path / "s" / "test_y.bin").write_bytes(files["test_y.bin"][::-1])
    code, text = run("stl10", "--data-dir", tmp_path / "s")
    assert code == 1 and "damaged" in text and "published is" in text
    (tmp_path / "s" / "test_y.bin").unlink()
    code, text = run("stl10", "--data-dir", tmp_path / "s")
    assert code == 1 and "missing" in text
    make_eurosat(tmp_path / "e", each=2)
    code, text = run("eurosat", "--data-dir", tmp_path / "e")
    assert code == 0 and "2 of 3,000 images" in text and "differs" in text
    make_cifar10(tmp_path / "c")
    code, text = run("cifar10", "--data-dir", tmp_path / "c")
    assert code == 0 and "published are 30,730,000" in text
    make_fashion(tmp_path / "f")
    code, text = run("fashion_mnist", "--data-dir", tmp_path / "f")
    assert code == 1 and "is not that of the published file" in text
    make_folder(tmp_path / "own")
    code, text = run("folder", "--data-dir", tmp_path / "own")
    assert code == 0 and text.count("10 images") == 3
    code, text = run("eurosat", "--data-dir", tmp_path / "absent")
    assert code == 1 and "zenodo.org" in text and "Traceback" not in text
    assert run("--data-dir", tmp_path)[0] == 2


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
        ("cifar10", lambda f: f.mkdir(), "no CIFAR-10 file data_batch_1.bin"),
        ("cifar10", gone("data_batch_3.bin", make_cifar10), "data_batch_3.bin is missing"),
        ("cifar10", cut("test_batch.bin", make_cifar10, 5000), "test_batch.bin is truncated"),
        ("cifar10", lambda f: (make_cifar10(f), (f / "test_batch.bin").write_bytes(b"x" * 3073)), "labels up to 120"),
        ("folder", lambda f: None, "there is no directory"),
        ("folder", lambda f: make_folder(f, names=("one",)), "holds 1 folders"),
        ("folder", broken_folder, "is truncated or no image: get it again or remove it"),
        ("folder", without_a_test_class, "lacks the class folder dog"),
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
    with pytest.raises(UserError, match="named with --data-dir"):
        datasets.load("folder", size=32)
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


def test_defocus_spreads_a_point_over_a_disk():
    point = np.zeros((1, 64, 64, 1), np.uint8)
    point[0, 30, 30] = 130
    blurred = shifts.apply("defocus", point, 3)
    assert blurred.sum() == 130 and (blurred == 10).sum() == 13  # radius 2
    flat = np.full((2, 32, 32, 3), 77, np.uint8)
    assert (shifts.apply("defocus", flat, 5) == 77).all()


def test_haze_lifts_the_dark_and_takes_contrast():
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8)[None, None, :, None], (3, 64, 1, 3))
    mild, thick = (shifts.apply("haze", ramp, severity, seed=2).astype(int) for severity in (1, 5))
    assert ramp.std() > mild.std() > thick.std() and thick.min() > mild.min() > 0
    assert not np.array_equal(thick[0], thick[1])  # each image has its own
    grey = np.full((8, 64, 64, 1), 20, np.uint8)
    through = (220 - shifts.apply("haze", grey, 3, seed=1).astype(float)) / 200
    assert abs(through.mean() - 0.5) < 0.05 and through.std() > 0.03


def test_jpeg_loses_more_at_higher_severity():
    images = np.random.default_rng(9).integers(0, 256, (2, 32, 32, 3), np.uint8)
    errors = [np.abs(shifts.apply("jpeg", images, s).astype(int) - images).mean() for s in shifts.SEVERITIES]
    assert errors == sorted(errors) and errors[0] > 1


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
