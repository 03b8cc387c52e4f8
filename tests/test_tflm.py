"""Upstream TFLM as the runner, where TFLM_ROOT says where it lies (docs/tflm.md): equal to the int8 runner in all."""

import os
import re
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from oracles import random_pixels
from tiny_run import FIXTURES, ROOT, invoke, make_image, with_sections

from converters.errors import UserError
from converters.tflite_model import SUPPORTED_OPS
from pipeline import validate
from pipeline.targets.boards import _tool, open_board
from pipeline.targets.client import Board
from pipeline.targets.link import Link
from pipeline.targets.target import NEAREST, STOCHASTIC, Update
from pipeline.targets.transports import ProcessTransport

TFLM_ROOT = os.environ.get("TFLM_ROOT")
needs_tflm = pytest.mark.skipif(not TFLM_ROOT, reason="TFLM_ROOT does not say where TFLM is")


def test_every_supported_op_is_registered():
    source = (ROOT / "tflm_app/runners/tflm/runner.cc").read_text()
    added = re.findall(r"r\.Add(\w+)\(\)", source)
    assert {name.lower() for name in added} == {name.replace("_", "").lower() for name in SUPPORTED_OPS}
    assert f"kOps = {len(added)};" in source


@pytest.fixture(scope="session", params=["ON", "OFF"], ids=["caching", "not caching"])
def board_program(request, tmp_path_factory) -> Path:
    """The native board with TFLM in it; the reference kernels keep nothing of the weights, so both settings hold."""
    build = tmp_path_factory.mktemp("tflm")
    options = (f"-DTFLM_ROOT={TFLM_ROOT}", f"-DTFLM_CACHES_WEIGHTS={request.param}", "-DBOARD=native")
    for command in (["-S", ROOT / "tflm_app", "-B", build, *options], ["--build", build, "--target", "zo_board"]):
        done = subprocess.run([_tool("cmake"), *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "zo_board"


def open_tflm(program: Path, image: bytes, *options: object) -> Board:
    transport = ProcessTransport([str(program), *map(str, options)])
    return Board(Link(transport), image, describe_end=transport.describe_end)


@needs_tflm
@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.tflite")))
def test_equal_to_the_int8_runner(board_program, name):
    image = make_image(name)
    tflm = open_tflm(board_program, image.raw, "--threads", 2)
    int8 = open_board("native", image.raw, threads=2)
    assert (tflm.info.runner, int8.info.runner.split()[0]) == ("tflm", "int8")
    spec = image.input
    pixels = random_pixels(41, (spec.height, spec.width, spec.channels), seed=4)
    labels = np.arange(41) % image.classes
    for board in (tflm, int8):
        board.write_samples(0, pixels, labels)
        board.select(range(41))
    for step in range(4):
        np.testing.assert_array_equal(tflm.logits(), int8.logits())
        assert tflm.loss() == int8.loss()
        for seed in (step, step + 100):
            assert tflm.probe(seed, 2) == int8.probe(seed, 2)
            assert tflm.probe_plus(seed, 4) == int8.probe_plus(seed, 4)
        update = Update((NEAREST, STOCHASTIC)[step % 2], step, (step, step + 100), (90_000, -70_000))
        assert tflm.update(update) == int8.update(update)
        assert tflm.weights_crc() == int8.weights_crc()
    assert tflm.read_tflite() == int8.read_tflite() != image.tflite
    assert tflm.reset_weights() == zlib.crc32(image.get_weights().tobytes())
    for board in (tflm, int8):
        board.close()


@needs_tflm
def test_the_arena_is_found_and_shared_out(board_program):
    image = make_image("mobilenet_v2_035_64").raw
    board = open_tflm(board_program, image)
    need = board.info.memory["activations"]
    board.close()
    assert 64 << 10 < need < 256 << 10
    fit = ((2 << 20) - len(image)) // need - 1  # leaves a little for samples
    open_tflm(board_program, image, "--memory", 2, "--threads", fit).close()
    with pytest.raises(UserError, match=r"the network needs [\d,]+ bytes beside its weights, the board has"):
        open_tflm(board_program, image, "--memory", 2, "--threads", fit + 2)


@needs_tflm
def test_an_op_that_was_not_built_in_is_a_sentence(board_program):
    image = make_image("tiny")
    model = bytearray(image.tflite)
    code = schema.Model.GetRootAs(model, 0).OperatorCodes(0)
    for slot, field in ((4, "<b"), (10, "<i")):  # deprecated_builtin_code, builtin_code
        if at := code._tab.Offset(slot):
            struct.pack_into(field, model, code._tab.Pos + at, schema.BuiltinOperator.SPARSE_TO_DENSE)
    with pytest.raises(UserError, match=r"could not prepare the network in [\d,]+ bytes of work memory"):
        open_tflm(board_program, with_sections(image.raw, TFLT=bytes(model)))


@needs_tflm
def test_validate_compares_logits_only(board_program, tmp_path):
    path = tmp_path / "tiny.zimg"
    path.write_bytes(make_image("tiny").raw)

    def run(*arguments):
        with subprocess.Popen([board_program, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
            port = process.stdout.readline().split()[-1]
            return invoke(validate.main, "--image", path, "--port", f"127.0.0.1:{port}", *arguments)

    equal, traced = run(), run("--ops")
    assert equal.exit_code == 0 and "runner tflm" in equal.stdout
    assert traced.exit_code == 1 and "the board's runner cannot stop after an op" in traced.stderr
