"""pipeline.convert through its command line, on a tiny data set in Fashion-MNIST's files."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tiny_run import write_fashion_mnist

from converters import keras_to_int8, tflite_model
from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.keras_env import keras, tf
from pipeline import convert, models
from pipeline.models import ModelSpec
from pipeline.stages import Stages, write
from pipeline.targets.memory import BoardMemory
from pipeline.targets.target import Region

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "fm"
    write_fashion_mnist(folder, train=900, test=200)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(convert.main, [str(a) for a in arguments])


def refused(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 1, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in result.output
    return lines[0]


def ops(tflite: bytes) -> Counter:
    return Counter(op.kind for op in tflite_model.read_graph(tflite).ops)


def small_cnn(library, classes: int = 10, end: str = "logits", size: int = 32):
    """A network of three layers for tf-keras or Keras 3; end: logits, softmax (an activation) or Softmax (a layer)."""
    layers = library.layers
    image = layers.Input((size, size, 3))
    x = layers.Conv2D(8, 3, strides=4, padding="same", use_bias=False)(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(classes, activation="softmax" if end == "softmax" else None)(x)
    if end == "Softmax":
        x = layers.Softmax()(x)
    return library.Model(image, x)


def saved(model, path: Path) -> Path:
    model.save(path)
    return path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> tuple[Path, Result, list[object]]:
    """A conversion with all its stages: its folder, what it said, and its command line."""
    out = tmp_path_factory.mktemp("artifacts")
    arguments = ["--model", "resnet18", "--width", 4, "--data-dir", data, "--epochs", 6, "--batch", 32, "--name", "rn",
                 "--out", out]  # fmt: skip
    return out / "rn", run(*arguments), arguments


def test_qat_leaves_every_artefact_and_keeps_the_accuracy(trained):
    folder, result, _ = trained
    assert result.exit_code == 0, result.output
    assert {p.name for p in folder.iterdir()} == {
        "rn.keras", "rn.int8.tflite", "rn.tflite", "rn.zimg", "report.json", "stages.json",
    }  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    assert set(report["accuracy"]) == {"float", "fake_quant", "tflite", "headroom"}
    assert report["accuracy"]["float"] > 0.5  # of ten classes: it has learned something
    assert report["accuracy"]["headroom"] >= report["accuracy"]["float"] - 0.02
    image = DeviceImage.read((folder / "rn.zimg").read_bytes())
    assert image.tflite == (folder / "rn.tflite").read_bytes()
    assert image.meta["dataset"] == "fashion_mnist" and image.meta["quantization"] == "qat"
    assert image.meta["class_names"][9] == "Ankle boot" and image.classes == 10
    assert image.meta["accuracy"] == report["accuracy"]
    assert np.abs(image.get_weights().astype(int)).max() <= 123
    counts = ops((folder / "rn.int8.tflite").read_bytes())
    assert counts == {"CONV_2D": 20, "ADD": 8, "MAX_POOL_2D": 1, "MEAN": 1, "FULLY_CONNECTED": 1}  # no MUL: folded


def test_quantisation_is_per_channel_but_for_the_last_layer(trained):
    graph = tflite_model.read_graph((trained[0] / "rn.int8.tflite").read_bytes())
    for op, weights in tflite_model.weight_tensors(graph):
        assert len(weights.scales) == (1 if op.kind == "FULLY_CONNECTED" else weights.shape[weights.axis])


def test_a_second_call_reuses_everything_and_a_changed_one_what_it_can(trained):
    folder, _, arguments = trained
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    again = run(*arguments)
    assert again.exit_code == 0 and again.output.count("reused") == 3 and "made" not in again.output
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    head = run(*arguments, "--train", "head")
    assert head.output.count("reused") == 3
    image = DeviceImage.read((folder / "rn.zimg").read_bytes())
    assert image.weights == 32 * 10
    narrow = run(*arguments, "--mu-max", 8)
    assert narrow.output.count("reused") == 2 and "headroom: made" in narrow.output
    damaged = folder / "rn.int8.tflite"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    repaired = run(*arguments, "--mu-max", 8, "--qat-epochs", 0)
    assert repaired.exit_code == 0 and "float network: reused" in repaired.output
    assert "int8 network (qat): made" in repaired.output


def test_too_large_a_drop_fails_and_says_where_and_what_to_do(trained, tmp_path):
    made, _, arguments = trained
    folder = shutil.copytree(made, tmp_path / "rn")  # its float network is reused
    (folder / "rn.zimg").unlink()
    broken = [*arguments[:-1], tmp_path, "--mu-max", 32, "--qat-epochs", 3, "--qat-lr", 5.0]
    sentence = refused(run(*broken))
    assert "points worse" in sentence and "--qat-epochs" in sentence and "--allow-drop" in sentence
    assert not (folder / "rn.zimg").exists() and (folder / "report.json").exists()
    allowed = run(*broken, "--allow-drop", 100)
    assert allowed.exit_code == 0 and (folder / "rn.zimg").exists()


def test_ptq_of_mobilenet(data, tmp_path):
    result = run("--model", "mobilenet_v2", "--alpha", 0.1, "--data-dir", data, "--epochs", 1, "--batch", 32,
                 "--quantization", "ptq", "--allow-drop", 100, "--name", "mb", "--out", tmp_path)  # fmt: skip
    assert result.exit_code == 0, result.output
    accuracy = json.loads((tmp_path / "mb" / "report.json").read_text())["accuracy"]
    assert set(accuracy) == {"float", "tflite", "headroom"}
    counts = ops((tmp_path / "mb" / "mb.tflite").read_bytes())
    assert set(counts) <= {"CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "MEAN", "FULLY_CONNECTED", "PAD"}
    assert counts["DEPTHWISE_CONV_2D"] == 17


@pytest.mark.parametrize("end", ["logits", "softmax", "Softmax"])
@pytest.mark.parametrize("kind", ["tf-keras", "keras3"])
def test_keras_files_of_both_generations(data, tmp_path, kind, end):
    import keras as keras3

    model = small_cnn(keras if kind == "tf-keras" else keras3, end=end)
    file = saved(model, tmp_path / ("own.h5" if end == "softmax" else "own.keras"))
    common = ("--keras", file, "--data-dir", data, "--qat-epochs", 1, "--allow-drop", 100, "--out", tmp_path / "out")
    if end != "logits":
        assert "--strip-softmax" in refused(run(*common))
        common = (*common, "--strip-softmax")
    result = run(*common)
    assert result.exit_code == 0, result.output
    assert f"({'qat' if kind == 'tf-keras' else 'ptq'})" in result.output
    assert ops((tmp_path / "out" / "own" / "own.tflite").read_bytes())["SOFTMAX"] == 0
    if kind == "keras3":
        sentence = refused(run(*common, "--quantization", "qat"))
        assert "Keras 3" in sentence and "--quantization ptq" in sentence


@pytest.mark.parametrize("kind", ["tf-keras", "keras3"])
def test_a_new_head_leaves_the_backbone_as_it_is(data, tmp_path, kind):
    import keras as keras3

    library = keras if kind == "tf-keras" else keras3
    model = small_cnn(library, classes=7, end="softmax" if kind == "keras3" else "logits")
    file = saved(model, tmp_path / "backbone.keras")
    common = ("--keras", file, "--data-dir", data, "--out", tmp_path / "out", "--name", "new")
    assert "7 classes" in refused(run(*common))
    result = run(*common, "--new-head", "--train", "head")
    assert result.exit_code == 0 and "(ptq)" in result.output, result.output
    found, _ = keras_to_int8.load_keras(tmp_path / "out/new/new.keras")
    before, after = model.get_weights(), found.get_weights()
    assert after[-2].shape == (8, 10) and after[-1].shape == (10,)
    assert all(np.array_equal(a, b) for a, b in zip(before[:-2], after[:-2], strict=True))
    image = DeviceImage.read((tmp_path / "out/new/new.zimg").read_bytes())
    assert image.classes == 10 and image.weights == 80
    assert run(*common, "--new-head", "--train", "head").output.count("reused") >= 2
    again = run(*common, "--new-head", "--train", "head", "--seed", 5)
    assert again.exit_code == 0
    assert not np.array_equal(keras_to_int8.load_keras(tmp_path / "out/new/new.keras")[0].get_weights()[-2], after[-2])


def test_only_a_dense_layer_is_a_head(data, tmp_path):
    image = keras.layers.Input((32, 32, 3))
    flat = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(10, 3)(image))
    file = saved(keras.Model(image, flat), tmp_path / "headless.keras")
    sentence = refused(run("--keras", file, "--new-head", "--data-dir", data, "--out", tmp_path / "out"))
    assert "ends in a GlobalAveragePooling2D layer" in sentence


def test_an_int8_model_made_elsewhere(data, tmp_path):
    result = run(
        "--tflite", FIXTURES / "resnet18_w8_32.tflite", "--data-dir", data, "--name", "given", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    image = DeviceImage.read((tmp_path / "given" / "given.zimg").read_bytes())
    assert image.meta["accuracy"].keys() == {"tflite", "headroom"}


def convert_tflite(model, *, int8: bool) -> bytes:
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if int8:
        rng = np.random.default_rng(0)
        shapes = [(1, *tuple(i.shape)[1:]) for i in model.inputs]
        converter.representative_dataset = lambda: ([rng.random(s, np.float32) for s in shapes] for _ in range(4))
        converter.inference_input_type = converter.inference_output_type = tf.int8
        converter._experimental_disable_per_channel_quantization_for_dense_layers = True
    return converter.convert()


def with_resizing():
    image = keras.layers.Input((32, 32, 3))
    x = keras.layers.UpSampling2D(interpolation="bilinear")(keras.layers.Conv2D(4, 3)(image))
    return keras.Model(image, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))


def two_outputs():
    model = small_cnn(keras)
    return keras.Model(model.input, [model.output, keras.layers.Dense(10)(model.layers[-2].output)])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: b"no model at all", "not a TensorFlow Lite model"),
        (lambda: convert_tflite(small_cnn(keras), int8=False), "float"),
        (lambda: convert_tflite(with_resizing(), int8=True), ", RESIZE_BILINEAR ("),
        (lambda: convert_tflite(small_cnn(keras, end="Softmax"), int8=True), "--strip-softmax"),
        (lambda: convert_tflite(two_outputs(), int8=True), "2 outputs"),
        (lambda: convert_tflite(small_cnn(keras, classes=7), int8=True), "7 classes"),
        (lambda: (FIXTURES / "resnet18_w8_32.tflite").read_bytes()[:5000], "damaged"),
    ],
)
def test_models_that_cannot_be_trained_are_one_sentence(data, tmp_path, make, says):
    file = tmp_path / "m.tflite"
    file.write_bytes(make())
    assert says in refused(run("--tflite", file, "--data-dir", data, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_softmax_of_an_int8_model_is_dropped_when_asked(data, tmp_path):
    file = tmp_path / "soft.tflite"
    file.write_bytes(convert_tflite(small_cnn(keras, end="Softmax"), int8=True))
    result = run("--tflite", file, "--data-dir", data, "--strip-softmax", "--allow-drop", 100, "--out", tmp_path,
                 "--input-range", 0, 1)  # fmt: skip
    assert result.exit_code == 0, result.output


def test_other_mistakes_are_one_sentence(data, tmp_path):
    out = ("--data-dir", data, "--out", tmp_path / "out")
    fixture = FIXTURES / "resnet18_w8_64.tflite"
    assert "give one of them" in refused(run("--model", "resnet18", "--tflite", fixture, *out))
    assert "64x64" in refused(run("--tflite", fixture, "--input-size", 32, *out))
    assert "LO has to be below HI" in refused(run("--tflite", fixture, "--input-range", 1, -1, *out))
    assert "plain name" in refused(run("--name", "../x", *out))
    assert "cannot be read" in refused(run("--tflite", tmp_path / "absent.tflite", *out))
    assert "cannot be read" in refused(run("--keras", tmp_path / "absent.keras", *out))
    assert "no Keras model" in refused(run("--keras", fixture, *out))
    assert "does not hold the four" in refused(run("--data-dir", tmp_path, "--out", tmp_path / "out"))
    wrong = saved(small_cnn(keras, classes=7), tmp_path / "seven.keras")
    assert "7 classes" in refused(run("--keras", wrong, *out))
    with_two = saved(two_outputs(), tmp_path / "two.keras")
    assert "2 outputs" in refused(run("--keras", with_two, *out))
    assert not (tmp_path / "out").exists()
    for options in (("--width", 0), ("--input-size", 8), ("--mu-max", 99), ("--dataset", "imagenet"), ("--train", "x")):
        assert run(*options, *out).exit_code == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--tflite", "x.tflite", "--quantization", "ptq"),
        ("--tflite", "x.tflite", "--epochs", 3),
        ("--keras", "x.keras", "--width", 8),
        ("--model", "resnet18", "--alpha", 0.5),
        ("--model", "mobilenet_v2", "--stem", "small"),
        ("--strip-softmax",),
        ("--new-head",),
        ("--tflite", "x.tflite", "--new-head"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options):
    result = run(*options)
    assert result.exit_code == 2 and "has no meaning with --" in result.stderr


def test_help_explains_every_option():
    result = run("--help")
    assert result.exit_code == 0
    for parameter in convert.main.params:
        assert parameter.help if parameter.name != "help" else True
        assert parameter.opts[0] in result.output


@pytest.mark.parametrize("size", [32, 64, 96, 224])
@pytest.mark.parametrize("name", models.NAMES)
def test_both_networks_convert_at_every_size(name, size):
    """Without training and without data: what is shown is that every graph quantises and passes the checks."""
    spec = ModelSpec(name, size, 3, 10, width=4, alpha=0.1, stem="small" if size <= 64 else "standard")
    model = models.build(spec)
    calibration = np.random.default_rng(0).uniform(-1, 1, (4, size, size, 3)).astype(np.float32)
    if (name, size) in (("mobilenet_v2", 32), ("resnet18", 224)):
        tflite = keras_to_int8.to_tflite(keras_to_int8.quantize_aware(model, calibration))
    else:
        tflite = keras_to_int8.post_training(model, calibration)
    tflite_model.check_trainable(tflite)
    assert tflite_model.io_spec(tflite_model.read_graph(tflite)).input_shape == (size, size, 3)
    assert not {"MUL", "SUB"} & set(ops(tflite))


def test_activation_ranges_start_at_what_the_float_network_shows():
    """tfmot would start them at +-6: here the fake-quantised network is as good as calibrated before any training."""
    keras.utils.set_random_seed(1)
    model = small_cnn(keras)
    model.layers[1].set_weights([20 * w for w in model.layers[1].get_weights()])  # activations far beyond 6
    x = np.random.default_rng(0).uniform(-1, 1, (64, 32, 32, 3)).astype(np.float32)
    expected = model(x).numpy()
    error = keras_to_int8.quantize_aware(model, x)(x, training=False).numpy() - expected
    assert np.abs(error).max() < 0.05 * np.abs(expected).max()


def test_resnet18_is_the_standard_one():
    """He et al.'s ResNet18 for 1,000 classes has 11,689,512 trainable parameters."""
    model = models.build(ModelSpec("resnet18", 224, 3, 1000, width=64, stem="standard"))
    assert sum(int(np.prod(w.shape)) for w in model.trainable_weights) == 11_689_512
    assert sum(isinstance(layer, keras.layers.Conv2D) for layer in model.layers) == 20


def test_stages_survive_a_crash_in_the_middle(tmp_path):
    stages = Stages(tmp_path)

    def crash():
        raise KeyboardInterrupt

    first = stages.run("a", "a.bin", 1, lambda: (b"one", {"x": 1}))
    assert not first.reused and stages.run("a", "a.bin", 1, crash).facts == {"x": 1}
    with pytest.raises(KeyboardInterrupt):
        stages.run("a", "a.bin", 2, crash)
    assert stages.run("a", "a.bin", 1, crash).data == b"one"  # the earlier result is still there
    (tmp_path / "stages.json").write_text("{ torn")
    assert not stages.run("a", "a.bin", 1, lambda: (b"one", {})).reused


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.files.os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def small_board(name: str) -> BoardMemory:
    """In the place of a board: 64 KiB for the image, 8 KiB to work in."""
    regions = (Region(0, 64 << 10), Region(1, 8 << 10), Region(2, 64 << 10))
    return BoardMemory(name, "words", 1, regions, {0: "PSRAM", 1: "SRAM", 2: "PSRAM"})


def test_a_network_that_does_not_fit_is_refused_before_it_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.conversion.board_memory", small_board)
    common = ("--width", 4, "--board", "qemu_an547", "--data-dir", tmp_path / "absent", "--out", tmp_path / "out")
    sentence = refused(run(*common))
    assert "does not fit the board qemu_an547: the image takes" in sentence and "--width 2 (" in sentence
    assert sentence.endswith("Nothing was trained.") and not (tmp_path / "out").exists()


def test_an_image_that_does_not_fit_is_kept(data, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.conversion.board_memory", small_board)
    common = ("--tflite", FIXTURES / "resnet18_w8_32.tflite", "--data-dir", data, "--out", tmp_path, "--name", "x")
    sentence = refused(run(*common, "--board", "native"))
    image = tmp_path / "x" / "x.zimg"
    assert "more than the 65,536 that are there for it in PSRAM" in sentence
    assert "the image may have at most 65,536 bytes" in sentence and f"{image} was written all the same" in sentence
    DeviceImage.read(image.read_bytes())


def test_a_keras_model_that_does_not_fit_is_refused_before_qat(data, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.conversion.board_memory", small_board)
    file = saved(small_cnn(keras, size=64), tmp_path / "own.keras")
    sentence = refused(run("--keras", file, "--data-dir", data, "--board", "native", "--out", tmp_path / "out"))
    assert "activations (" in sentence and "that are there for it in SRAM" in sentence
    assert sentence.endswith("Nothing was trained.")


def test_the_check_changes_nothing(data, tmp_path):
    common = ("--model", "mobilenet_v2", "--alpha", 0.1, "--data-dir", data, "--epochs", 0, "--quantization", "ptq",
              "--allow-drop", 100, "--name", "x")  # fmt: skip
    images = []
    for options in ((), ("--board", "qemu_an547")):
        keras.backend.clear_session()  # each as in a process of its own: names of layers are counted
        result = run(*common, *options, "--out", tmp_path / str(len(images)))
        assert result.exit_code == 0, result.output
        images.append((tmp_path / str(len(images)) / "x" / "x.zimg").read_bytes())
    assert images[0] == images[1]
