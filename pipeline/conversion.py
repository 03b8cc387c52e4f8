"""What `python -m pipeline.convert` does, stage by stage: float network, int8 network, headroom, device image."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from converters.device_image import DeviceImage, Preprocessing, build
from converters.errors import UserError
from converters.neural_art import profile
from converters.tflite_model import add_headroom, check_trainable, io_spec, read_graph, strip_softmax
from pipeline import datasets, fitting, models
from pipeline.models import ModelSpec
from pipeline.stages import Stages, write
from pipeline.targets.memory import BoardMemory, board_memory, requirements
from pipeline.targets.target import NPU

EVALUATION_IMAGES = 5000  # the head of the test split: balanced, and enough to see half a point
CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Settings:
    """One conversion. Exactly one of model, keras and tflite says where the network comes from."""

    name: str
    out: Path
    model: ModelSpec | None
    keras: Path | None
    tflite: Path | None
    strip_softmax: bool
    input_size: int | None  # None: the network's own
    dataset: str
    data_dir: Path | None
    limit: int | None  # images of each split
    quantization: str | None  # None: qat, or ptq for a Keras 3 model
    epochs: int
    qat_epochs: int
    batch: int
    learning_rate: float
    qat_learning_rate: float
    augment: bool
    seed: int
    mu_max: int
    preprocessing: Preprocessing
    train: str
    allow_drop: float
    new_head: bool = False  # of a Keras model, for the classes of the data set
    board: str | None = None  # that the image has to fit
    npu: str | None = None  # the variant of the board, where it is the image for the NPU that has to

    @property
    def folder(self) -> Path:
        return self.out / self.name


@dataclass(frozen=True)
class Network:
    """An int8 network without headroom, and the accuracies (0..1) of what it was made from, as far as there is any."""

    tflite: bytes
    model: str
    quantization: str
    float_accuracy: float | None = None
    fake_quant_accuracy: float | None = None


@dataclass(frozen=True)
class Report:
    """Accuracies (0..1) on the same test images, in order of manufacture; None where a stage does not exist."""

    float: float | None
    fake_quant: float | None
    tflite: float
    headroom: float

    @property
    def rows(self) -> tuple[tuple[str, float], ...]:
        titles = ("float network", "fake-quantised (QAT)", "int8 .tflite", "int8 with headroom")
        values = (self.float, self.fake_quant, self.tflite, self.headroom)
        return tuple((t, v) for t, v in zip(titles, values, strict=True) if v is not None)

    @property
    def drop(self) -> float:
        """Points lost between the first network that there is and the device's."""
        return 100 * (self.rows[0][1] - self.headroom)


def convert(settings: Settings) -> tuple[Path, Report]:
    """Run every stage that no earlier call with the same settings has left, and write the image.

    Leaves in settings.folder: the float network, NAME.int8.tflite, NAME.tflite (with headroom), NAME.zimg and
    report.json. Raises UserError when something cannot be converted, when more than the allowed accuracy is lost, or
    when the image, which is left there, does not fit the board.
    """
    if settings.model is not None and settings.model.name == "resnet18":
        _avoid_narrow_onednn(settings.model)
    host = _Host(settings)
    stages = Stages(settings.folder)
    network = _given(settings) if settings.tflite is not None else _quantised(settings, stages, host)
    tflite = add_headroom(network.tflite, settings.mu_max)
    key = (_digest(network.tflite), settings.mu_max, host.key)
    compared = stages.run(
        "headroom", f"{settings.name}.tflite", key, lambda: (tflite, host.compare(network.tflite, tflite))
    )
    _say("headroom", compared.reused)
    report = Report(
        network.float_accuracy, network.fake_quant_accuracy, compared.facts["tflite"], compared.facts["headroom"]
    )
    meta = {
        "name": settings.name,
        "model": network.model,
        "dataset": settings.dataset,
        "class_names": list(datasets.class_names(settings.dataset, settings.data_dir)),
        "quantization": network.quantization,
        "accuracy": {k: v for k, v in asdict(report).items() if v is not None},
    }
    image = build(
        tflite, settings.preprocessing, mu_max=settings.mu_max, train=settings.train, meta=meta, source=network.model
    )
    images = compared.facts["images"]
    details = {**meta, "drop_points": report.drop, "evaluation_images": images, "image_bytes": len(image)}
    write(settings.folder / "report.json", (json.dumps(details, indent=1) + "\n").encode())
    click.echo(f"accuracy on {images:,} test images")
    for title, value in report.rows:
        click.echo(f"  {title:<22}{100 * value:7.2f} %")
    if report.drop > settings.allow_drop:
        raise UserError(_explain(report, settings))
    path = settings.folder / f"{settings.name}.zimg"
    write(path, image)
    if settings.board is not None and settings.npu is None:  # else the compiled network will tell
        _check_board(settings, path, image)
    return path, report


def _memory(settings: Settings) -> BoardMemory:
    """Of the board that the image has to fit."""
    if settings.npu is None:
        return board_memory(settings.board)
    return board_memory(settings.board, NPU, profile.most_for_weights(settings.npu))


def _check_board(settings: Settings, path: Path, image: bytes) -> None:
    board, spec = board_memory(settings.board), settings.model
    need = requirements(DeviceImage.read(image), board.kernels)
    fitting.check_written(
        need, board, path, lambda: fitting.advice(spec, need, board, settings.mu_max) if spec is not None else ""
    )


def _given(settings: Settings) -> Network:
    """An int8 model made elsewhere."""
    data, source = _read(settings.tflite), str(settings.tflite)
    try:
        tflite = _checked(data, source, settings)
        build(
            add_headroom(tflite, settings.mu_max), settings.preprocessing, mu_max=settings.mu_max, train=settings.train
        )
    except UserError:
        raise
    except Exception as error:  # a damaged flatbuffer can contradict itself in any way; from here on it is sound
        raise UserError(
            f"{source} is damaged: its tensors and operators contradict each other ({error}). Make or copy it anew."
        ) from error
    return Network(tflite, settings.tflite.name, "made elsewhere")


def _quantised(settings: Settings, stages: Stages, host: _Host) -> Network:
    """A float network, trained here or given, made int8 here."""
    s = settings
    if s.keras is not None:
        name, file, make = s.keras.name, f"{s.name}{_suffix(s)}", host.load_keras
        key = ("keras", _digest(_read(s.keras)), s.strip_softmax, *(["new head"] if s.new_head else []))
    else:
        name, file, make = str(s.model), f"{s.name}.keras", host.pretrain
        key = ("pretrain", s.model, s.epochs, s.batch, s.learning_rate, s.augment)
    trained = stages.run("float", file, (*key, host.key), make)
    _say("float network", trained.reused)
    keras3 = trained.facts["keras3"]
    # QAT would train the new head, and all before it, on the host.
    quantization = s.quantization or ("ptq" if keras3 or s.new_head else "qat")
    if keras3 and quantization == "qat":
        raise UserError(
            f"{name} is a Keras 3 model, and tensorflow-model-optimization, which does quantisation-aware training, "
            "knows tf-keras models only: use --quantization ptq, or rebuild the model with tf-keras."
        )
    key = (trained.digest, quantization, host.key)
    if quantization == "qat":
        key = (*key, s.qat_epochs, s.batch, s.qat_learning_rate, s.augment)
    integer = stages.run("int8", f"{s.name}.int8.tflite", key, partial(host.quantize, trained.data, quantization))
    _say(f"int8 network ({quantization})", integer.reused)
    tflite = _checked(integer.data, name, s)
    return Network(tflite, name, quantization, trained.facts["accuracy"], integer.facts["fake_quant"])


def _suffix(settings: Settings) -> str:
    """Of the float network's file."""
    return ".keras" if settings.keras is None or settings.new_head else settings.keras.suffix


class _Host:
    """The work that needs TensorFlow or the data set; both are loaded only when a stage has to be made."""

    def __init__(self, settings: Settings):
        self.settings = s = settings
        self.key = (s.dataset, s.data_dir and s.data_dir.resolve(), s.limit, s.seed, s.preprocessing)
        self._range = s.preprocessing.lo, s.preprocessing.hi
        self._data: datasets.Dataset | None = None

    def pretrain(self) -> tuple[bytes, dict[str, Any]]:
        from converters.keras_env import keras
        from pipeline.models import training

        s, spec = self.settings, self.settings.model
        if s.board is not None:  # before minutes of training are spent
            fitting.check(spec, _memory(s), s.mu_max)
        click.echo(f"{spec}: {s.epochs} epochs of pre-training (--epochs), then quantisation")
        data = self._dataset(spec.input_size, spec.input_size, spec.channels)
        keras.utils.set_random_seed(s.seed)
        model = models.build(spec)
        schedule = training.Schedule(s.epochs, s.learning_rate, s.batch, s.augment)
        training.fit(model, data.source, *self._range, schedule, s.seed, "pre-training")
        plain = models.build(spec)  # without the optimiser's state, so that it loads anywhere
        plain.set_weights(model.get_weights())
        accuracy = training.accuracy(plain, data.test.head(EVALUATION_IMAGES), *self._range)
        return _saved(plain), {"accuracy": accuracy, "keras3": False}

    def load_keras(self) -> tuple[bytes, dict[str, Any]]:
        from converters import keras_to_int8
        from pipeline.models import training

        s = self.settings
        model, keras3 = keras_to_int8.load_keras(s.keras)
        if s.new_head:
            known = len(datasets.class_names(s.dataset, s.data_dir))
            model = keras_to_int8.with_new_head(model, known, s.seed)
        shape, classes = keras_to_int8.check_shape(model)
        _check_fit(str(s.keras), s, shape[0], classes)
        if keras_to_int8.ends_in_softmax(model) and not s.strip_softmax:
            raise UserError(
                f"{s.keras} ends in a softmax, which flattens the loss to int8 steps: pass --strip-softmax to train on "
                "the logits in front of it."
            )
        test = self._dataset(*shape).test.head(EVALUATION_IMAGES)
        data = _saved(model) if s.new_head else _read(s.keras)
        return data, {"accuracy": training.accuracy(model, test, *self._range), "keras3": keras3}

    def quantize(self, float_model: bytes, quantization: str) -> tuple[bytes, dict[str, Any]]:
        from converters import keras_to_int8
        from converters.keras_env import keras
        from pipeline.models import training

        s = self.settings
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / f"model{_suffix(s)}"
            file.write_bytes(float_model)
            model, _ = keras_to_int8.load_keras(file)
        if keras_to_int8.ends_in_softmax(model):
            model = keras_to_int8.without_softmax(model)
        if s.board is not None and s.model is None and quantization == "qat":  # a built-in one was checked before
            fitting.check_model(model, _memory(s), s.mu_max)
        data = self._dataset(*keras_to_int8.check_shape(model)[0])
        calibration = training.scale(data.source.head(CALIBRATION_IMAGES).images, *self._range).numpy()
        if quantization == "ptq":
            return keras_to_int8.post_training(model, calibration), {"fake_quant": None}
        keras.utils.set_random_seed(s.seed)
        aware = keras_to_int8.quantize_aware(model, calibration)
        schedule = training.Schedule(s.qat_epochs, s.qat_learning_rate, s.batch, s.augment)
        training.fit(aware, data.source, *self._range, schedule, s.seed + 1, "quantisation-aware training")
        accuracy = training.accuracy(aware, data.test.head(EVALUATION_IMAGES), *self._range)
        return keras_to_int8.to_tflite(aware), {"fake_quant": accuracy}

    def compare(self, before: bytes, after: bytes) -> dict[str, Any]:
        from pipeline.models.evaluate import tflite_accuracy

        test = self._dataset(*io_spec(read_graph(before)).input_shape).test.head(EVALUATION_IMAGES)
        preprocessing = self.settings.preprocessing
        return {
            "tflite": tflite_accuracy(before, test, preprocessing, "testing the int8 network"),
            "headroom": tflite_accuracy(after, test, preprocessing, "testing it with headroom"),
            "images": len(test),
        }

    def _dataset(self, height: int, width: int, channels: int) -> datasets.Dataset:
        if height != width:
            raise UserError(f"the network takes {width}x{height} images; data sets are prepared for square ones only.")
        if self._data is None:
            s = self.settings
            self._data = datasets.load(s.dataset, data_dir=s.data_dir, size=height, channels=channels, limit=s.limit)
            if self._data.note:
                click.echo(self._data.note, err=True)
        return self._data


def _avoid_narrow_onednn(spec: ModelSpec) -> None:
    """Training narrow ResNets on large maps corrupts the heap in TensorFlow 2.21's oneDNN kernels (2.5 times faster
    than its others, so they stay on elsewhere). Has to come before TensorFlow is imported."""
    if spec.width < 16 and spec.input_size > 96:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def _checked(tflite: bytes, source: str, settings: Settings) -> bytes:
    if settings.strip_softmax:
        tflite = strip_softmax(tflite)
    spec = io_spec(check_trainable(tflite, source))
    _check_fit(source, settings, spec.input_shape[0], spec.classes)
    return tflite


def _check_fit(source: str, settings: Settings, size: int, classes: int) -> None:
    """The network and what the command line says of the data have to agree."""
    known = datasets.class_names(settings.dataset, settings.data_dir)
    if classes != len(known):
        raise UserError(
            f"{source} tells {classes} classes apart, {settings.dataset} has {len(known)}: name the data set that the "
            "network was made for with --dataset."
        )
    if settings.input_size is not None and settings.input_size != size:
        raise UserError(
            f"{source} takes {size}x{size} images, not {settings.input_size}x{settings.input_size}: leave --input-size "
            "out (the network's own size is used)."
        )


def _explain(report: Report, settings: Settings) -> str:
    steps = [(before[1] - after[1], before[0], after[0]) for before, after in itertools.pairwise(report.rows)]
    loss, before, after = max(steps)
    advice = {
        "fake-quantised (QAT)": "train longer or gentler with --qat-epochs and --qat-lr",
        "int8 .tflite": "use --quantization qat, with more --qat-epochs",
        "int8 with headroom": f"use a smaller --mu-max than {settings.mu_max}",
    }[after]
    return (
        f"the device's network is {report.drop:.1f} points worse than the one it was made from, more than the "
        f"{settings.allow_drop:g} allowed; {100 * loss:.1f} of them between '{before}' and '{after}': {advice}, or "
        "accept it with --allow-drop POINTS. No image was written."
    )


def _saved(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.keras"
        model.save(path)
        return path.read_bytes()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _say(what: str, reused: bool) -> None:
    click.echo(f"{what}: {'reused' if reused else 'made'}")
