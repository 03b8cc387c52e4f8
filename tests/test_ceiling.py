"""Backpropagation on the images of the device: trains the image's float network, and refuses another one."""

import json

import pytest
import tiny_run

from pipeline import ceiling, convert


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ceiling")
    tiny_run.write_fashion_mnist(folder / "data", train=1200)
    done = tiny_run.invoke(
        convert.main, "--width", 4, "--input-size", 32, "--data-dir", folder / "data", "--epochs", 3,
        "--quantization", "ptq", "--batch", 32, "--allow-drop", 100, "--name", "tiny", "--out", folder,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder


def arguments(folder, *more):
    data = ("--data-dir", folder / "data", "--samples", 100, "--eval-images", 100, "--batch", 10)
    return ("--image", folder / "tiny/tiny.zimg", *data, *more)


def test_training_on_the_device_s_images_undoes_the_shift(made, tmp_path):
    out = tmp_path / "ceiling.json"
    done = tiny_run.invoke(ceiling.main, *arguments(made, "--epochs", 8, "--shift", "contrast", "--out", out))
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    accuracy = result["accuracy"]
    assert list(accuracy) == ["before, float", "before, int8 (the image)", "after, float", "after, int8"]
    assert accuracy["after, float"] > accuracy["before, float"] + 0.1
    assert accuracy["after, int8"] > accuracy["before, int8 (the image)"] + 0.1
    assert result["shift"] == "contrast" and result["samples"] == 100


def test_mistakes_are_one_sentence(made, tmp_path):
    absent = tiny_run.invoke(ceiling.main, *arguments(made, "--float", tmp_path / "x.keras"))
    assert absent.exit_code == 1 and "there is no file" in absent.output
    (tmp_path / "other.zimg").write_bytes(tiny_run.make_image("mobilenet_v2_035_32").raw)
    other = tiny_run.invoke(ceiling.main, *arguments(made), "--image", tmp_path / "other.zimg")
    assert other.exit_code == 1 and "other.keras" in other.output
