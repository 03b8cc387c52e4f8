"""The kernels on an emulated Cortex-M55 against the oracles, bit for bit, and their instruction counts."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import random_models
from oracles import random_pixels, tflite_reference
from test_runner import NETWORKS, build_network

from converters import device_image
from converters.device_image import DeviceImage, Preprocessing
from converters.tflite_model import add_headroom
from pipeline import bench_m55
from pipeline.bench_m55 import KERNELS, run
from pipeline.targets.boards import ROOT, build_an547
from pipeline.zo.update import perturb

TOOLS = {"arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi", "qemu-system-arm": "qemu-system-arm"}
MISSING = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs a Cortex-M55: apt-get install {' '.join(MISSING)}")

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*_*.tflite"))
# Every second one is a chain of random ops, the others have the shapes of well-known networks.
RANDOM = range(100, 112)


def image_of(tflite: bytes) -> DeviceImage:
    return DeviceImage.read(device_image.build(add_headroom(tflite, 4), Preprocessing()))


def inputs_of(image: DeviceImage, count: int) -> np.ndarray:
    spec = image.input
    return image.quantize_pixels(random_pixels(count, (spec.height, spec.width, spec.channels), seed=4))


def assert_equals_oracle(kernels: str, tflite: bytes, count: int = 4) -> np.ndarray:
    image = image_of(tflite)
    inputs = inputs_of(image, count)
    outputs = run(build_an547("m55_bench", kernels), image.raw, inputs).outputs[0]
    np.testing.assert_array_equal(outputs, tflite_reference(image.tflite, inputs))
    return outputs


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("model", FIXTURES, ids=lambda p: p.stem)
def test_networks_equal_oracle_while_their_weights_change(model, kernels):
    image = image_of(model.read_bytes())
    inputs, weights = inputs_of(image, 3), image.get_weights()
    probes = [(0, 0), (11, 3), (11, -3), (12, 4), (0, 0)]
    outputs = run(build_an547("m55_bench", kernels), image.raw, inputs, probes).outputs
    for (seed, step), found in zip(probes, outputs, strict=True):
        probed = image.with_weights(perturb(weights, seed, step))
        np.testing.assert_array_equal(found, tflite_reference(probed, inputs))
    assert (outputs[0] == outputs[-1]).all() and (outputs[0] != outputs[1]).any() and (outputs[1] != outputs[2]).any()
    assert outputs.std(axis=1).mean() >= 1.0, "constant logits prove nothing"


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_ops_equal_oracle(name, kernels):
    outputs = assert_equals_oracle(kernels, build_network(name), 8)
    assert outputs.std(axis=0).mean() > 0


@pytest.fixture(scope="module", params=RANDOM)
def random_network(request) -> bytes:
    return random_models.build(request.param)


@pytest.mark.parametrize("kernels", KERNELS)
def test_random_networks_equal_oracle(random_network, kernels):
    assert_equals_oracle(kernels, random_network)


# Millions of instructions, a little above what was measured with GCC 12.2; other compilers differ by some per cent.
BOUNDS = {
    ("resnet18_w8_32", "mve"): 0.95,
    ("mobilenet_v2_035_32", "mve"): 0.8,
}


@pytest.mark.parametrize(("name", "kernels"), BOUNDS)
def test_instruction_counts_repeat_and_do_not_grow(name, kernels):
    image = image_of((ROOT / "tests" / "fixtures" / f"{name}.tflite").read_bytes())
    runs = [run(build_an547("m55_bench", kernels), image.raw, inputs_of(image, 1)) for _ in range(2)]
    assert abs(runs[0].instructions - runs[1].instructions) <= 1
    assert abs(int(runs[0].ops.sum()) - runs[0].instructions) <= 0.02 * runs[0].instructions
    assert runs[0].instructions <= BOUNDS[name, kernels] * 1e6


def bench(*arguments: object, path: str | None = None) -> subprocess.CompletedProcess:
    environment = {"PATH": path} if path is not None else None
    command = [sys.executable, "-m", "pipeline.bench_m55", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)


def test_bench_prints_every_kind_of_op():
    done = bench("--kernels", "mve", "--ops", ROOT / "tests" / "fixtures" / "mobilenet_v2_035_32.tflite")
    assert done.returncode == 0, done.stderr
    for word in ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "FULLY_CONNECTED", "whole pass", "arena + scratch"):
        assert word in done.stdout


def test_bench_names_the_package_that_is_missing(tmp_path):
    done = bench(path=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "apt-get install gcc-arm-none-eabi" in done.stderr


def test_peers_are_in_the_documentation():
    page = (ROOT / "docs" / "m55.md").read_text()
    for peer in bench_m55.PEERS.values():
        assert f"{peer.instructions / 1e6:.3f}" in page and f"{peer.arena:,}" in page
