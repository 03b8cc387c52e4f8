"""What the tests of training share: small trained networks, a small data set in Fashion-MNIST's files, commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from converters import device_image, tflite_model
from converters.device_image import DeviceImage

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "fixtures"
STEPS = 20
# Five steps an epoch, the last one with 4 images; 576 forward passes in all.
SETTINGS = f"--board twin --threads 1 --samples 36 --eval-images 20 --batch 8 --q 2 --steps {STEPS} --eval-every 200"


def networks() -> list[str]:
    """The fixtures of 32x32, the smallest first."""
    return [path.stem for path in sorted(FIXTURES.glob("*_32.tflite"), key=lambda path: path.stat().st_size)]


def make_image(name: str) -> DeviceImage:
    """A device image of tests/fixtures/NAME.tflite."""
    model = tflite_model.add_headroom((FIXTURES / f"{name}.tflite").read_bytes(), 4)
    meta = {"name": name, "dataset": "fashion_mnist"}
    return DeviceImage.read(device_image.build(model, device_image.Preprocessing(), meta=meta))


def with_sections(raw: bytes, **changed: bytes) -> bytes:
    """An image with other bytes in some sections, and the checksum that belongs to them."""
    runner, sections = device_image._read_sections(raw, "the image")
    return device_image._pack(sections | changed, runner)


def write_fashion_mnist(folder: Path, train: int = 600, test: int = 100) -> None:
    """The four IDX files, unpacked: ten kinds of blocky pictures in noise."""
    rng = np.random.default_rng(1)
    kinds = np.kron(rng.integers(0, 256, (10, 7, 7)), np.ones((4, 4)))
    folder.mkdir()
    for name, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.clip(kinds[labels] + rng.normal(0, 40, (count, 28, 28)), 0, 255).astype(np.uint8)
        for part, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"{name}-{part}-ubyte").write_bytes(head + values.tobytes())


def invoke(main, *arguments: object) -> Result:
    """Run a command in this process; an exception that is no message to the user fails the test."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def popen(module: str, *arguments: object) -> subprocess.Popen:
    """Run a command as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", f"pipeline.{module}", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        # a job in the background of a shell begins with SIGINT ignored, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
