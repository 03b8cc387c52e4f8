"""pipeline.profile: where a step's time goes. Instructions repeat and are bounded; of seconds nothing is asserted."""

import json
import subprocess

import numpy as np
import pytest
from test_m55 import pytestmark as needs_m55
from tiny_run import FIXTURES, invoke, make_image

from pipeline import profile
from pipeline.bench_m55 import random_inputs, run
from pipeline.plan_ops import plan_ops
from pipeline.targets.boards import TICKS_PER_INSTRUCTION, build_an547, build_native, open_board
from pipeline.targets.client import PHASES

RESNET = FIXTURES / "resnet18_w8_32.tflite"
EMULATED = ("--board", "qemu_an547", "--kernels", "mve", "--q", 2, "--batch", 3)


def profiled(folder, *arguments) -> tuple[dict, str]:
    done = invoke(profile.main, *arguments, "--out", folder)
    assert done.exit_code == 0, done.output
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "profile.json").read_text()), done.stdout


def refused(*arguments, code=1) -> str:
    done = invoke(profile.main, *arguments)
    assert done.exit_code == code
    return done.stderr.splitlines()[-1]


def test_native_tells_every_op_and_phase(tmp_path):
    image = tmp_path / "mobilenet.zimg"
    image.write_bytes(make_image("mobilenet_v2_035_32").raw)
    facts, words = profiled(tmp_path / "out", "--image", image, "--q", 3, "--batch", 40, "--rounds", 2)
    assert facts["unit"] == "seconds" and facts["board"] == "native" and (facts["q"], facts["batch"]) == (3, 40)
    ops = plan_ops(make_image("mobilenet_v2_035_32").tflite)
    assert [(op["kind"], op["shape"]) for op in facts["ops"]] == [(op.kind, op.shape) for op in ops]
    assert [phase["phase"] for phase in facts["phases"]] == list(PHASES)
    assert all(part["cost"] > 0 for part in facts["ops"] + facts["phases"])
    assert facts["step"] == pytest.approx(sum(phase["cost"] for phase in facts["phases"]))
    for word in ("DEPTHWISE_CONV_2D", "whole pass of one sample", "q = 3, batch of 40", *PHASES):
        assert word in words


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Two profiles of the same network, by two starts of the emulator."""
    if needs_m55.args[0]:
        pytest.skip(needs_m55.kwargs["reason"])
    folder = tmp_path_factory.mktemp("profile")
    return [profiled(folder / name, "--tflite", RESNET, *EMULATED)[0] for name in ("first", "second")]


def test_instructions_repeat(emulated):
    first, second = emulated
    for a, b in zip(first["ops"] + first["phases"], second["ops"] + second["phases"], strict=True):
        assert abs(a["cost"] - b["cost"]) <= (1 if "kind" in a else 3), a  # a phase is entered many times


def test_ops_cost_what_the_bench_counts(emulated):
    image = make_image("resnet18_w8_32")
    bench = run(build_an547("m55_bench", "mve"), image.raw, random_inputs(image, 1))
    ops = [op["cost"] for op in emulated[0]["ops"]]
    np.testing.assert_allclose(ops, bench.ops, atol=20, rtol=0.001)
    forward = next(phase for phase in emulated[0]["phases"] if phase["phase"] == "forward")
    assert forward["each"] == pytest.approx(bench.instructions, rel=0.01)


def test_training_costs_little_beside_forward_passes(emulated):
    each = {phase["phase"]: phase["each"] for phase in emulated[0]["phases"]}
    assert each["perturb"] <= 3 * 1.0  # instructions a weight; three passes a direction
    assert each["update"] <= 12
    assert each["crc"] <= 10
    assert each["loss"] <= 2000


@needs_m55
def test_the_clock_costs_a_few_instructions_a_sample():
    """Every instruction of a command is in one of the phases, but for those between them."""
    image = make_image("resnet18_w8_32")
    board = open_board("qemu_an547", image.raw, kernels="mve", count=True)
    board.write_samples(0, np.zeros((2, *random_inputs(image, 1).shape[1:]), np.uint8), np.zeros(2))
    costs = []
    for batch in ([0], [0, 1]):
        board.select(batch)
        before = board.profile_phases()
        board.loss()
        costs.append({name: ticks - before[name] for name, ticks in board.profile_phases().items()})
    assert all(cost["perturb"] <= 100 and cost["update"] == cost["crc"] == 0 for cost in costs)
    samples = [cost["forward"] / TICKS_PER_INSTRUCTION for cost in costs]
    assert samples[1] == pytest.approx(2 * samples[0], rel=0.001)
    board.close()


def test_wrong_options_are_sentences(tmp_path):
    assert "either --image FILE.zimg or --tflite FILE" in refused(code=2)
    assert "either --image FILE.zimg or --tflite FILE" in refused("--image", "a", "--tflite", RESNET, code=2)
    assert "a profile is of one thread" in refused("--tflite", RESNET, "--threads", 2, code=2)
    assert "--kernels means nothing to --board native" in refused("--tflite", RESNET, "--kernels", "mve", code=2)
    assert "cannot be read" in refused("--image", tmp_path / "missing.zimg")
    assert "beyond the board's limit of 1024" in refused("--tflite", RESNET, "--batch", 1025)
    assert "mu 9 is not between 1 and the image's headroom 4" in refused("--tflite", RESNET, "--mu", 9)
    (tmp_path / "file").write_text("")
    assert "could not be written" in refused("--tflite", RESNET, "--out", tmp_path / "file")
    (tmp_path / "no.tflite").write_bytes(b"no")
    assert refused("--tflite", tmp_path / "no.tflite").startswith("error: ")


def test_a_board_with_threads_is_refused():
    with subprocess.Popen(
        [build_native(), "--threads", "2", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        port = process.stdout.readline().split()[-1]
        sentence = refused("--tflite", RESNET, "--port", f"127.0.0.1:{port}")
    assert "the board runs 2 threads: start it with --threads 1" in sentence
