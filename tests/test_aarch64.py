"""The app as an aarch64 process, emulated: another compiler, another machine, the same numbers."""

import shutil
import subprocess

import pytest
from test_kernels import FIXTURES_BYTES, train
from tiny_run import ROOT

from converters import device_image
from converters.device_image import Preprocessing
from converters.tflite_model import add_headroom
from pipeline.targets.boards import _tool, open_board
from pipeline.targets.client import Board
from pipeline.targets.link import Link
from pipeline.targets.transports import ProcessTransport

COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"needs apt-get install {PACKAGES}")
def test_training_on_aarch64_is_the_same(tmp_path):
    options = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_C_COMPILER={COMPILER}"]
    for command in (["-S", ROOT / "tflm_app", "-B", tmp_path, "-DBOARD=native", *options], ["--build", tmp_path]):
        done = subprocess.run([_tool("cmake"), *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    image = device_image.build(add_headroom(FIXTURES_BYTES[0], 4), Preprocessing())
    transport = ProcessTransport([EMULATOR, "-L", LIBRARIES, str(tmp_path / "zo_board"), "--threads", "2"])
    emulated = Board(Link(transport), image, describe_end=transport.describe_end)
    assert emulated.info.runner == "int8 portable"
    native = open_board("native", image)
    said = [train(board, samples=9) for board in (emulated, native)]
    for board in (emulated, native):
        board.close()
    assert said[0] == said[1]
