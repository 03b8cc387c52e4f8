"""`python -m pipeline.convert`: a network, trained and quantised to int8, as an image that a device can train."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from converters.device_image import Preprocessing, build
from converters.errors import UserError
from converters.tflite_model import add_headroom, check_trainable, io_spec, read_graph, strip_softmax
from pipeline import cli, datasets, models
from pipeline.models import ModelSpec
from pipeline.stages import Stages, write

EVALUATION_IMAGES = 5000  # the head of the test split: balanced, and enough for half a point
CALIBRATION_IMAGES = 512
MOST_DROP = 2.0  # points between the float model and the device's

# Epochs of pre-training that bring a small network near its best, and of QAT after it; mirrored images where the
# classes allow it, and random translations in pixels of a 32nd of the input.
TRAINING = {"fashion_mnist": (2, 1, False), "eurosat": (10, 2, True), "stl10": (60, 10, True)}


@dataclass(frozen=True)
class Settings:
    """One conversion. Exactly one of model, keras, tflite names where the network comes from."""

    name: str
    out: Path
    model: ModelSpec | None
    keras: Path | None
    tflite: Path | None
    strip_softmax: bool
    input_size: int | None
    dataset: str
    data_dir: Path | None
    limit: int | None
    quantization: str | None
    epochs: int
    qat_epochs: int
    batch: int
    learning_rate: float
    qat_learning_rate: float
    seed: int
    mu_max: int
    preprocessing: Preprocessing
    train: str
    allow_drop: float

    @property
    def folder(self) -> Path:
        return self.out / self.name


@dataclass(frozen=True)
class Report:
    """Accuracies on the same test images, in order of manufacture; None where a stage does not exist."""

    float: float | None
    fake_quant: float | None
    tflite: float
    headroom: float

    @property
    def rows(self) -> tuple[tuple[str, float | None], ...]:
        return (
            ("float network", self.float),
            ("fake-quantised (QAT)", self.fake_quant),
            ("int8 .tflite", self.tflite),
            ("int8 with headroom", self.headroom),
        )

    @property
    def drop(self) -> float:
        """Points lost between the first network that there is and the device's."""
        return 100 * (next(value for _, value in self.rows if value is not None) - self.headroom)


def convert(settings: Settings) -> tuple[Path, Report]:
    """Run every stage that an earlier identical call has not left, and write the image.

    Leaves NAME.keras (float), NAME.int8.tflite, NAME.tflite (with headroom), NAME.zimg and report.json in
    settings.folder. Raises UserError when something cannot be converted or more than the allowed accuracy is lost.
    """
    stages = Stages(settings.folder)
    work = _Work(settings)
    image_path = settings.folder / f"{settings.name}.zimg"

    float_accuracy = fake_quant = None
    if settings.tflite is not None:
        source = _read_file(settings.tflite)
        tflite = _checked(source, str(settings.tflite), settings)
        key: Any = ("tflite", tflite)
        model_name = settings.tflite.name
    else:
        if settings.keras is not None:
            key = ("keras", _read_file(settings.keras), settings.strip_softmax)
            model_name = settings.keras.name
            make_float = work.load_keras
        else:
            key = ("pretrain", settings.model, settings.epochs, settings.batch, settings.learning_rate)
            model_name = str(settings.model)
            make_float = work.pretrain
        key = (*key, work.common_key)
        stage = stages.run("float", f"{settings.name}.keras", key, make_float)
        _say("float network", stage.reused)
        float_accuracy, quantization = stage.facts["accuracy"], settings.quantization or stage.facts["quantization"]
        key = (stage.digest, quantization, settings.strip_softmax, work.common_key)
        if quantization == "qat":
            key = (*key, settings.qat_epochs, settings.batch, settings.qat_learning_rate)
        stage = stages.run(
            "int8", f"{settings.name}.int8.tflite", key, functools.partial(work.quantize, stage.data, quantization)
        )
        _say(f"int8 network ({quantization})", stage.reused)
        tflite, fake_quant = stage.data, stage.facts["fake_quant"]
        _checked(tflite, f"the int8 form of {model_name}", settings)
        work.quantization = quantization

    headroom = add_headroom(tflite, settings.mu_max)
    key = (tflite, settings.mu_max, settings.train, work.common_key)
    stage = stages.run("headroom", f"{settings.name}.tflite", key, lambda: (headroom, work.compare(tflite, headroom)))
    _say("headroom", stage.reused)
    report = Report(float_accuracy, fake_quant, stage.facts["tflite"], stage.facts["headroom"])
    meta = {
        "name": settings.name,
        "model": model_name,
        "dataset": settings.dataset,
        "class_names": list(datasets.class_names(settings.dataset)),
        "quantization": work.quantization,
        "accuracy": {k: v for k, v in asdict(report).items() if v is not None},
    }
    image = build(headroom, settings.preprocessing, mu_max=settings.mu_max, train=settings.train, meta=meta)
    details = {
        **meta,
        "drop_points": report.drop,
        "evaluation_images": stage.facts["images"],
        "image_bytes": len(image),
    }
    write(settings.folder / "report.json", (json.dumps(details, indent=1) + "\n").encode())
    click.echo(_table(report, stage.facts["images"]))
    if report.drop > settings.allow_drop:
        image_path.unlink(missing_ok=True)
        raise UserError(_explain(report, settings))
    write(image_path, image)
    return image_path, report


class _Work:
    """The stages that need TensorFlow or the data set, both loaded only when one of them runs."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.quantization = "given"
        self._data: datasets.Dataset | None = None
        self.range = settings.preprocessing.lo, settings.preprocessing.hi
        s = settings
        self.common_key = (s.dataset, s.data_dir and s.data_dir.resolve(), s.limit, s.seed, s.preprocessing)

    def data(self, height: int, width: int, channels: int) -> datasets.Dataset:
        if height != width:
            raise UserError(f"the network takes {width}x{height} images; data sets are prepared for square ones only.")
        if self._data is None:
            s = self.settings
            self._data = datasets.load(s.dataset, data_dir=s.data_dir, size=height, channels=channels, limit=s.limit)
            if self._data.note:
                click.echo(self._data.note, err=True)
        return self._data

    def pretrain(self) -> tuple[bytes, dict[str, Any]]:
        from converters.keras_env import keras
        from pipeline.models import training

        s, spec = self.settings, self.settings.model
        data = self.data(spec.input_size, spec.input_size, spec.channels)
        keras.utils.set_random_seed(s.seed)
        model = models.build(spec)
        training.fit(model, data.source, *self.range, self._schedule(s.epochs, s.learning_rate), s.seed, "pre-training")
        plain = models.build(spec)  # without the optimiser's state, so that it loads anywhere
        plain.set_weights(model.get_weights())
        accuracy = training.accuracy(plain, data.test.head(EVALUATION_IMAGES), *self.range)
        return _saved(plain), {"accuracy": accuracy, "quantization": "qat"}

    def load_keras(self) -> tuple[bytes, dict[str, Any]]:
        from converters import keras_to_int8
        from pipeline.models import training

        s = self.settings
        model, is_keras3 = keras_to_int8.load_keras(s.keras)
        (height, width, channels), classes = keras_to_int8.check_shape(model)
        _check_fit(str(s.keras), s, height, classes)
        if is_keras3 and s.quantization == "qat":
            raise UserError(
                f"{s.keras} is a Keras 3 model, and tensorflow-model-optimization, which does quantisation-aware "
                "training, knows tf-keras models only: use --quantization ptq, or rebuild the model with tf-keras."
            )
        if keras_to_int8.ends_in_softmax(model) and not s.strip_softmax:
            raise UserError(
                f"{s.keras} ends in a softmax, which flattens the loss to int8 steps: pass --strip-softmax to train on "
                "the logits in front of it."
            )
        data = self.data(height, width, channels)
        accuracy = training.accuracy(model, data.test.head(EVALUATION_IMAGES), *self.range)
        return _read_file(s.keras), {"accuracy": accuracy, "quantization": "ptq" if is_keras3 else "qat"}

    def quantize(self, float_model: bytes, quantization: str) -> tuple[bytes, dict[str, Any]]:
        from converters import keras_to_int8
        from converters.keras_env import keras
        from pipeline.models import training

        s = self.settings
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / f"model{s.keras.suffix if s.keras else '.keras'}"
            file.write_bytes(float_model)
            model, _ = keras_to_int8.load_keras(file)
        if keras_to_int8.ends_in_softmax(model):
            model = keras_to_int8.without_softmax(model)
        data = self.data(*keras_to_int8.check_shape(model)[0])
        calibration = training.scale(data.source.head(CALIBRATION_IMAGES).images, *self.range).numpy()
        if quantization == "ptq":
            return keras_to_int8.post_training(model, calibration), {"fake_quant": None}
        keras.utils.set_random_seed(s.seed)
        aware = keras_to_int8.quantize_aware(model, calibration)
        schedule = self._schedule(s.qat_epochs, s.qat_learning_rate)
        training.fit(aware, data.source, *self.range, schedule, s.seed + 1, "quantisation-aware training")
        accuracy = training.accuracy(aware, data.test.head(EVALUATION_IMAGES), *self.range)
        return keras_to_int8.to_tflite(aware), {"fake_quant": accuracy}

    def compare(self, tflite: bytes, headroom: bytes) -> dict[str, Any]:
        from pipeline.models.evaluate import tflite_accuracy

        test = self.data(*io_spec(read_graph(tflite)).input_shape).test.head(EVALUATION_IMAGES)
        before = tflite_accuracy(tflite, test, self.settings.preprocessing, "testing the int8 network")
        after = tflite_accuracy(headroom, test, self.settings.preprocessing, "testing it with headroom")
        return {"tflite": before, "headroom": after, "images": len(test)}

    def _schedule(self, epochs: int, peak: float):
        from pipeline.models.training import Schedule

        augment = TRAINING[self.settings.dataset][2]
        size = self.settings.model.input_size if self.settings.model else 0
        return Schedule(epochs, peak, self.settings.batch, flip=augment, shift=size // 16 if augment else 0)


def _checked(tflite: bytes, source: str, settings: Settings) -> bytes:
    if settings.strip_softmax:
        tflite = strip_softmax(tflite)
    spec = io_spec(check_trainable(tflite, source))
    _check_fit(source, settings, spec.input_shape[0], spec.classes)
    return tflite


def _check_fit(source: str, settings: Settings, size: int, classes: int) -> None:
    """The network and what the command line says of the data have to agree."""
    known = datasets.class_names(settings.dataset)
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


def _saved(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.keras"
        model.save(path)
        return path.read_bytes()


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _say(what: str, reused: bool) -> None:
    click.echo(f"{what}: {'reused' if reused else 'made'}")


def _table(report: Report, images: int) -> str:
    lines = [f"accuracy on {images:,} test images"]
    for title, value in report.rows:
        lines.append(f"  {title:<22}{'-':>8}" if value is None else f"  {title:<22}{100 * value:7.2f} %")
    return "\n".join(lines)


def _explain(report: Report, settings: Settings) -> str:
    known = [(title, value) for title, value in report.rows if value is not None]
    steps = [(before[1] - after[1], before[0], after[0]) for before, after in itertools.pairwise(known)]
    loss, before, after = max(steps)
    advice = {
        "fake-quantised (QAT)": "train longer or gentler with --qat-epochs and --qat-lr",
        "int8 .tflite": "use --quantization qat (with more --qat-epochs)",
        "int8 with headroom": f"use a smaller --mu-max than {settings.mu_max}",
    }[after]
    return (
        f"the device's network is {report.drop:.1f} points worse than the one it was made from, more than the "
        f"{settings.allow_drop:g} allowed; {100 * loss:.1f} of them between '{before}' and '{after}': {advice}, or "
        "accept it with --allow-drop POINTS."
    )


@cli.command()
@click.option("--model", type=click.Choice(models.NAMES), help="Train this network from scratch.  [default: resnet18]")
@click.option("--width", type=click.IntRange(1, 128), default=16, help="ResNet18: filters of the first stage.")
@click.option("--alpha", type=click.FloatRange(0.05, 2), default=0.35, help="MobileNetV2: width multiplier.")
@click.option(
    "--stem",
    type=click.Choice(("standard", "small")),
    help="ResNet18: 7x7 stride 2, or 3x3 stride 1 for small inputs.  [default: small up to 64x64]",
)
@click.option("--input-size", type=click.IntRange(32, 512), help="Height and width of the input.  [default: 32]")
@click.option(
    "--keras",
    "keras_file",
    type=click.Path(path_type=Path),
    help="Quantise this trained classifier instead (.keras or .h5, of tf-keras or Keras 3).",
)
@click.option(
    "--tflite",
    "tflite_file",
    type=click.Path(path_type=Path),
    help="Take this full-integer int8 model instead, made elsewhere.",
)
@click.option("--strip-softmax", is_flag=True, help="Drop a softmax at the end of such a model.")
@click.option(
    "--dataset",
    type=click.Choice(datasets.NAMES),
    default="fashion_mnist",
    help="What the network is for: trains, calibrates and tests it.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Directory of the data set's official files (Fashion-MNIST is downloaded without it).",
)
@click.option("--limit", type=click.IntRange(100), help="Use at most so many images of each split.")
@click.option(
    "--input-range",
    type=(float, float),
    default=(-1.0, 1.0),
    metavar="LO HI",
    help="What pixels 0 and 255 mean to the network.",
)
@click.option(
    "--quantization",
    type=click.Choice(("qat", "ptq")),
    help="Quantisation-aware training, or post-training quantisation.  [default: qat; ptq for Keras 3 files]",
)
@click.option("--epochs", type=click.IntRange(0), help="Epochs of pre-training.  [default: by data set]")
@click.option("--qat-epochs", type=click.IntRange(0), help="Epochs of QAT.  [default: by data set]")
@click.option("--batch", type=click.IntRange(1), default=128, help="Images a step, in both trainings.")
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True), default=4e-3, help="Peak of Adam's step in pre-training."
)
@click.option("--qat-lr", type=click.FloatRange(0, min_open=True), default=1e-3, help="Peak of Adam's step in QAT.")
@click.option(
    "--mu-max",
    type=click.IntRange(1, 32),
    default=4,
    help="Largest probe that a training may use: so much headroom is left in the weights.",
)
@click.option(
    "--train",
    default="all",
    help="Layers that the device may train: all, head, first-half, second-half, depthwise or pointwise.",
)
@click.option(
    "--allow-drop",
    type=click.FloatRange(0),
    default=MOST_DROP,
    metavar="POINTS",
    help="Fail when the device's network is worse than the float one by more.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 2), default=0, help="Seed of initial weights and batches.")
@click.option("--name", help="Name of the result.  [default: made from the network, its size and the data set]")
@click.option("--out", type=click.Path(path_type=Path), default=Path("artifacts"), help="Where results are kept.")
def main(
    model: str | None,
    width: int,
    alpha: float,
    stem: str | None,
    input_size: int | None,
    keras_file: Path | None,
    tflite_file: Path | None,
    strip_softmax: bool,
    dataset: str,
    data_dir: Path | None,
    limit: int | None,
    input_range: tuple[float, float],
    quantization: str | None,
    epochs: int | None,
    qat_epochs: int | None,
    batch: int,
    lr: float,
    qat_lr: float,
    mu_max: int,
    train: str,
    allow_drop: float,
    seed: int,
    name: str | None,
    out: Path,
) -> None:
    """Turn a network into a device image: OUT/NAME/NAME.zimg.

    Pre-trains one of the built-in networks on a data set, or takes a Keras or an int8 .tflite model of yours;
    quantises it to int8, leaves headroom for the probes of zeroth-order training, compares the accuracy of every
    form, and writes the image that `python -m pipeline.train_ondevice` puts on a board. What an earlier call with
    the same options made is reused.

    \b
    Examples:
      python -m pipeline.convert --name demo
      python -m pipeline.convert --model mobilenet_v2 --input-size 64 --dataset eurosat --data-dir ~/EuroSAT
      python -m pipeline.convert --keras my_model.keras --dataset eurosat --data-dir ~/EuroSAT --input-range 0 255
      python -m pipeline.convert --tflite my_model.tflite --dataset fashion_mnist
    """
    if sum(given is not None for given in (model, keras_file, tflite_file)) > 1:
        raise UserError("--model, --keras and --tflite each say where the network comes from: give one of them.")
    if tflite_file is not None and quantization is not None:
        raise UserError("--quantization does not apply to --tflite: that model is quantised already.")
    if not input_range[0] < input_range[1]:
        raise UserError(f"--input-range {input_range[0]:g} {input_range[1]:g} is empty: LO has to be below HI.")
    spec = None
    if keras_file is None and tflite_file is None:
        size = input_size or 32
        stem = stem or ("small" if size <= 64 else "standard")
        classes = len(datasets.class_names(dataset))
        spec = ModelSpec(model or "resnet18", size, 3, classes, width, stem, alpha)
    given = keras_file or tflite_file
    settings = Settings(
        name=name or _default_name(spec, given, dataset),
        out=out,
        model=spec,
        keras=keras_file,
        tflite=tflite_file,
        strip_softmax=strip_softmax,
        input_size=input_size,
        dataset=dataset,
        data_dir=data_dir,
        limit=limit,
        quantization=quantization,
        epochs=TRAINING[dataset][0] if epochs is None else epochs,
        qat_epochs=TRAINING[dataset][1] if qat_epochs is None else qat_epochs,
        batch=batch,
        learning_rate=lr,
        qat_learning_rate=qat_lr,
        seed=seed,
        mu_max=mu_max,
        preprocessing=Preprocessing((input_range[0],), (input_range[1],)),
        train=train,
        allow_drop=allow_drop,
    )
    path, report = convert(settings)
    click.echo(f"wrote {path} ({path.stat().st_size:,} bytes), {100 * report.headroom:.2f} % right")


def _default_name(spec: ModelSpec | None, given: Path | None, dataset: str) -> str:
    if spec is None:
        return given.stem
    own = f"w{spec.width}" if spec.name == "resnet18" else f"a{round(100 * spec.alpha):03}"
    return f"{spec.name}_{own}_{spec.input_size}_{dataset}"


if __name__ == "__main__":
    main()
