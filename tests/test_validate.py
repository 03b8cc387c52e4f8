"""pipeline.validate: equal where a board is right, and the very op where it is not."""

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_run import FIXTURES, invoke, make_image, popen, with_sections, write_fashion_mnist

from converters import device_image
from converters.plan import ADD, MEAN, compile_plan
from converters.tflite_model import read_graph, weight_tensors
from pipeline import validate
from pipeline.targets.client import SENTENCES, TRACE_MISSING, Board, CannotTrace


@pytest.fixture
def tiny(tmp_path):
    return write(tmp_path / "tiny.zimg", make_image("tiny").raw)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def run(*arguments, code=0):
    result = invoke(validate.main, "--threads", 2, *arguments)
    assert result.exit_code == code, result.output
    if code == 1:
        assert result.stderr.splitlines()[-1].startswith("error: ")
    return result


def error(result) -> str:
    return result.stderr.splitlines()[-1]


def with_halved_multiplier(raw: bytes, op: int) -> bytes:
    """The image with one multiplier of one op halved: of the first output channel, where there is one a channel."""
    plan = np.frombuffer(device_image._read_sections(raw, "the image")[1]["PLAN"], np.uint32).copy()
    at, pool = int(plan[5]), int(plan[6])
    for _ in range(op):
        at += int(plan[at + 1])
    kind, words = plan[at : at + 2]
    if kind in (ADD, MEAN):
        at += words - 2
    else:
        at = pool + int(plan[at + words - 1])
    plan[at] //= 2
    return with_sections(raw, PLAN=plan.tobytes())


# -- equal -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.tflite")))
def test_networks_are_equal_op_by_op(name, tmp_path):
    image = make_image(name)
    path = write(tmp_path / "x.zimg", image.raw)
    result = run("--image", path, "--ops", "--samples", 9, "--json", tmp_path / "x.json")
    assert result.stdout.endswith("equal: every value that was compared.\n")
    facts = json.loads((tmp_path / "x.json").read_text())
    assert facts["equal"] and facts["first_differing_op"] is None and facts["accuracy"] == {}
    assert (facts["image_crc"], facts["board"], facts["runner"].split()[0]) == (image.crc, "native", "int8")
    assert [oracle["oracle"].split()[0] for oracle in facts["oracles"]] == ["tflite-runtime", "tflite-micro"]
    assert all((o["logits"], o["differing"], o["samples"]) == (90, 0, []) for o in facts["oracles"])
    graph = read_graph(image.tflite)
    assert [op["kind"] for op in facts["ops"]] == [op.kind for op in graph.ops if op.kind != "RESHAPE"]
    for op in facts["ops"]:
        assert op["values"] == validate.MOST_TRACED * np.prod(graph.tensors[op["tensor"]].shape)
        assert (op["differing"], op["largest"], op["first"]) == (0, 0, None)


def test_accuracy_on_a_data_set(tmp_path):
    image = make_image("resnet18_w8_32")
    path = write(tmp_path / "x.zimg", image.raw)
    write_fashion_mnist(tmp_path / "data")
    result = run("--image", path, "--data-dir", tmp_path / "data", "--samples", 70, "--json", tmp_path / "x.json")
    facts = json.loads((tmp_path / "x.json").read_text())
    assert facts["inputs"] == "70 test images of fashion_mnist"
    oracles = [oracle["oracle"] for oracle in facts["oracles"]]
    assert list(facts["accuracy"]) == ["native", *oracles]
    (right,) = set(facts["accuracy"].values())
    assert all(oracle["accuracy"] == right for oracle in facts["oracles"])

    test = validate.load_dataset("fashion_mnist", tmp_path / "data", image, 70).test
    interpreter = validate.TfliteInterpreter(image.tflite)
    answers = [interpreter.run(x).argmax() for x in image.quantize_pixels(test.images)]
    assert right == np.mean(answers == test.labels)
    assert result.stdout.count(f"{100 * right:.2f} %") == 3
    assert facts["ops"] == []


def test_one_oracle_is_enough(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    result = run("--image", tiny)
    assert "TFLM is no oracle here: pip install tflite-micro" in result.stdout and "equal:" in result.stdout


def test_without_tflite_runtime_is_a_sentence(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", None)
    assert "the oracle is missing, tflite-runtime" in error(run("--image", tiny, code=1))


# -- different ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "op"), [("tiny", 0), ("tiny", 1), ("tiny", 2), ("tiny", 3), ("resnet18_w8_32", 12)])
def test_a_changed_multiplier_is_found(name, op, tmp_path):
    image = make_image(name)
    path = write(tmp_path / "x.zimg", with_halved_multiplier(image.raw, op))
    result = run("--image", path, "--json", tmp_path / "x.json", "--dump", tmp_path / "dump", code=1)
    plan = compile_plan(read_graph(image.tflite))
    assert f"and its first differing op is {plan.op_names[op]}, in " in error(result)
    assert "Traceback" not in result.output
    facts = json.loads((tmp_path / "x.json").read_text())
    assert not facts["equal"] and facts["first_differing_op"] == op
    assert all(oracle["differing"] > 0 and oracle["samples"] for oracle in facts["oracles"])
    assert all(o["first"] is None for o in facts["ops"][:op])

    found = facts["ops"][op]
    assert found["tensor"] == plan.outputs[op]
    (file,) = (tmp_path / "dump").iterdir()
    assert file.name == f"op-{op}-input-{found['first']['sample']}.npz"
    dumped = np.load(file)
    distance = np.abs(dumped["board"].astype(int) - dumped["reference"])
    assert 0 < distance.max() <= found["largest"] and list(np.argwhere(distance)[0]) == found["first"]["at"]
    if found["kind"] != "ADD":
        assert np.unique(np.nonzero(distance)[-1]).tolist() == [0], "only the first channel was changed"
    for i, described in enumerate(found["first"]["inputs"]):
        values = dumped[f"input_{i}"]
        assert (described["shape"], described["min"], described["max"]) == (
            list(values.shape), values.min(), values.max(),
        )  # fmt: skip


def test_a_changed_weight_is_found(tiny, monkeypatch):
    """The board gets another weight of the second convolution than the oracle."""
    image = make_image("tiny")
    model = bytearray(image.tflite)
    segment = image.segments[1]
    model[segment.offset] ^= 0x10
    other = with_sections(image.raw, TFLT=bytes(model))
    open_board = validate.open_board

    def open_other(name, _, **options):
        board = open_board(name, other, **options)
        board.image = image
        return board

    monkeypatch.setattr(validate, "open_board", open_other)
    graph = read_graph(image.tflite)
    (op,) = (op for op, weights in weight_tensors(graph) if weights.data[0] == segment.offset)
    assert f"its first differing op is {graph.place(op)}" in error(run("--image", tiny, code=1))


def test_a_difference_that_the_logits_do_not_show(tiny, monkeypatch):
    trace = Board.trace
    monkeypatch.setattr(Board, "trace", lambda board, op, size: trace(board, op, size) ^ (op == 1))
    assert "the native board has equal logits, but its first differing op is operator 2 of 5" in error(
        run("--image", tiny, "--ops", code=1)
    )
    run("--image", tiny)  # without --ops, nobody looks


def test_a_difference_that_the_ops_do_not_show(tiny, monkeypatch):
    logits = Board.logits
    monkeypatch.setattr(Board, "logits", lambda board: logits(board) ^ 1)
    assert "every op is equal on one input at a time: look at how batches run." in error(run("--image", tiny, code=1))


def test_a_runner_that_cannot_trace(tiny, tmp_path, monkeypatch):
    def refuse(board, op, size):
        raise CannotTrace(SENTENCES[TRACE_MISSING](0, 0))

    monkeypatch.setattr(Board, "trace", refuse)
    run("--image", tiny)
    assert error(run("--image", tiny, "--ops", code=1)) == (
        "error: the board's runner cannot stop after an op: only its logits can be compared."
    )
    path = write(tmp_path / "x.zimg", with_halved_multiplier(make_image("tiny").raw, 3))
    said = error(run("--image", path, code=1))
    assert "logits. The board's runner cannot stop after an op" in said


def test_an_image_of_another_converter(tiny, monkeypatch):
    monkeypatch.setattr("converters.tflite_model.Graph.place", lambda graph, op: f"op {op.index}")
    assert "made by another version of the converter" in error(run("--image", tiny, "--ops", code=1))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--image", "none.zimg"], "none.zimg cannot be read (No such file or directory)"),
        (["--image", __file__], "is not a device image"),
        (["--image", "TINY", "--json", "none/x.json"], "there is no folder none"),
        (["--image", "TINY", "--dump", "none/x"], "there is no folder none"),
        (["--image", "TINY", "--data-dir", "none"], "only square ones are supported"),
        (["--image", "TINY", "--port", "here"], "--port here is no address"),
    ],
)
def test_mistakes_are_sentences(arguments, says, tiny):
    result = run(*(tiny if a == "TINY" else a for a in arguments), code=1)
    assert says in error(result) and "Traceback" not in result.output


def test_too_few_test_images_is_a_sentence(tmp_path):
    path = write(tmp_path / "x.zimg", make_image("resnet18_w8_32").raw)
    write_fashion_mnist(tmp_path / "data", test=20)
    arguments = ("--image", path, "--dataset", "fashion_mnist", "--data-dir", tmp_path / "data", "--samples", 21)
    assert "fashion_mnist has 20 test images: use fewer --samples." in error(run(*arguments, code=1))


def test_ctrl_c(tmp_path):
    path = write(tmp_path / "x.zimg", make_image("mobilenet_v2_035_64").raw)
    process = popen("validate", "--image", path, "--samples", 5000)
    for line in process.stdout:
        if line.startswith("comparing: "):
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "Traceback" not in output and "stopped by Ctrl-C" in output


def test_memory_is_for_a_board_started_here(tiny):
    assert "--memory is for a board started here" in run("--image", tiny, "--port", "x:1", "--memory", 1, code=2).stderr
