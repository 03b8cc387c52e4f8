"""A network of 900 weights as .tflite and device image, for tests that need many runs, or no TensorFlow, of it.

fixtures/tiny.tflite is the network "add_relu" of test_runner.py; ``python tests/tiny_model.py`` made it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from converters import device_image
from converters.device_image import Preprocessing
from converters.tflite_model import add_headroom

SHAPE = (11, 9, 3)
FILE = Path(__file__).parent / "fixtures" / "tiny.tflite"


@cache
def tiny_tflite() -> bytes:
    return add_headroom(FILE.read_bytes(), 4)


@cache
def tiny_image() -> bytes:
    return device_image.build(tiny_tflite(), Preprocessing(), meta={"name": "tiny"})


if __name__ == "__main__":
    from test_runner import build_network

    FILE.write_bytes(build_network("add_relu"))
