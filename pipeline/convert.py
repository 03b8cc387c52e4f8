"""`python -m pipeline.convert`: a network, trained and quantised to int8, as an image that a device can train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from converters.device_image import Preprocessing
from converters.errors import UserError
from converters.neural_art import profile
from pipeline import cli, datasets, models, neural_art
from pipeline.conversion import Settings, convert
from pipeline.models import ModelSpec, default_stem
from pipeline.neural_art import NpuSettings
from pipeline.targets.boards import BOARDS
from pipeline.targets.memory import NPU_BOARDS

SCOPES = ("all", "head", "first-half", "second-half", "depthwise", "pointwise")


@dataclass(frozen=True)
class Training:
    """What suits a data set: its own image size, epochs of pre-training that bring a small network near its best and
    of QAT after it, and whether images are mirrored and moved about (they may be where the classes do not mind).

    Those of cifar10 and folder are guesses."""

    size: int
    epochs: int
    qat_epochs: int
    augment: bool


TRAINING = {
    "fashion_mnist": Training(32, 2, 1, False),
    "eurosat": Training(64, 10, 2, True),
    "stl10": Training(96, 60, 10, True),
    "cifar10": Training(32, 20, 4, True),
    "folder": Training(64, 20, 4, True),
}

# Options that mean something for one source of the network only.
RESNET18_ONLY, MOBILENET_ONLY = {"width", "stem"}, {"alpha"}
PRETRAINING = {"epochs", "lr"}
QUANTIZING = {"quantization", "qat_epochs", "qat_lr", "batch", "seed"}
NPU_ONLY = {"compiled", "compiled_probe", "any_npu_compiler"}


def _by_dataset(field: str) -> str:
    """'2, 10, 60 for fashion_mnist, eurosat, stl10', for help texts."""
    return f"{', '.join(str(getattr(t, field)) for t in TRAINING.values())} for {', '.join(TRAINING)}"


@cli.command()
@click.option("--model", type=click.Choice(models.NAMES), help="Train this network from scratch.  [default: resnet18]")
@click.option("--width", type=click.IntRange(1, 128), default=16, help="ResNet18: filters of the first stage.")
@click.option("--alpha", type=cli.FiniteRange(0.05, 2), default=0.35, help="MobileNetV2: width multiplier.")
@click.option(
    "--stem",
    type=click.Choice(("standard", "small")),
    help="ResNet18: 7x7 stride 2, or 3x3 stride 1 for small inputs.  [default: small up to 64x64]",
)
@click.option(
    "--input-size",
    type=click.IntRange(32, 512),
    help=f"Height and width of the input.  [default: {_by_dataset('size')}]",
)
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
@click.option(
    "--new-head",
    is_flag=True,
    help="--keras: replace its last layer by an untrained one for the data set's classes, for the device to train.",
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
    help="Directory of the data set's official files, or of your own folders of images, one a class (Fashion-MNIST is "
    "downloaded without it).",
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
@click.option("--epochs", type=click.IntRange(0), help=f"Epochs of pre-training.  [default: {_by_dataset('epochs')}]")
@click.option("--qat-epochs", type=click.IntRange(0), help=f"Epochs of QAT.  [default: {_by_dataset('qat_epochs')}]")
@click.option("--batch", type=click.IntRange(1), default=128, help="Images a step, in both trainings.")
@click.option("--lr", type=cli.FiniteRange(0, min_open=True), default=4e-3, help="Peak of Adam's step in pre-training.")
@click.option("--qat-lr", type=cli.FiniteRange(0, min_open=True), default=1e-3, help="Peak of Adam's step in QAT.")
@click.option(
    "--mu-max",
    type=click.IntRange(1, 32),
    default=4,
    help="Largest probe that a training may use: so much headroom is left in the weights.",
)
@click.option("--train", type=click.Choice(SCOPES), default="all", help="Layers that the device may train.")
@click.option(
    "--allow-drop",
    type=cli.FiniteRange(0),
    default=2.0,
    metavar="POINTS",
    help="Fail when the device's network is worse than the float one by more.",
)
@click.option(
    "--board",
    type=click.Choice(BOARDS),
    help="Fail when the image does not fit this board: before training where that can be known.  [default: no check]",
)
@click.option("--npu", type=click.Choice(("neural_art",)), help="Map the weights in a network compiled for this NPU.")
@click.option(
    "--variant", type=click.Choice(profile.VARIANTS), default="nucleo", help="Of --board stm32n6, and of --npu."
)
@click.option(
    "--compiled",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="--npu: directory of the compiled network.  [default: run the compiler]",
)
@click.option(
    "--compiled-probe",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="--npu: directory of the compiled probe, where weights repeat.",
)
@click.option("--any-npu-compiler", is_flag=True, help="--npu: accept a version of the compiler that is not known.")
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
    new_head: bool,
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
    board: str | None,
    npu: str | None,
    variant: str,
    compiled: Path | None,
    compiled_probe: Path | None,
    any_npu_compiler: bool,
    seed: int,
    name: str | None,
    out: Path,
) -> None:
    """Turn a network into a device image: OUT/NAME/NAME.zimg.

    Pre-trains one of the built-in networks on a data set, or takes a Keras or an int8 .tflite model of yours;
    quantises it to int8, leaves headroom for the probes of zeroth-order training, compares the accuracy of every
    form, and writes the image that `python -m pipeline.train_ondevice` puts on a board. What an earlier call with
    the same options made is reused. With --npu neural_art it also runs ST's compiler, or takes what it made elsewhere,
    and finds every weight in the compiled network (docs/neural_art.md).

    \b
    Examples:
      python -m pipeline.convert --name demo
      python -m pipeline.convert --model mobilenet_v2 --input-size 64 --dataset eurosat --data-dir ~/EuroSAT
      python -m pipeline.convert --keras my_model.keras --dataset eurosat --data-dir ~/EuroSAT --input-range 0 255
      python -m pipeline.convert --keras artifacts/demo/demo.keras --new-head --dataset cifar10 --data-dir ~/cifar
      python -m pipeline.convert --tflite my_model.tflite --dataset fashion_mnist --board qemu_an547
      python -m pipeline.convert --tflite my_model.tflite --dataset fashion_mnist
      python -m pipeline.convert --name demo --npu neural_art --variant nucleo
    """
    if sum(given is not None for given in (model, keras_file, tflite_file)) > 1:
        raise UserError("--model, --keras and --tflite each say where the network comes from: give one of them.")
    _refuse_stray_options(model or "resnet18", keras_file is not None, tflite_file is not None, npu is not None, board)
    if npu is not None and board not in (None, *NPU_BOARDS):
        raise UserError(
            f"--board {board} has no Neural-ART NPU: use --board {' or '.join(NPU_BOARDS)}, or leave --npu out."
        )
    training = TRAINING[dataset]
    if name is not None and (Path(name).name != name or name.startswith(".")):
        raise UserError(f"--name {name!r} is no plain name for a folder: leave slashes out, and say where with --out.")
    if not -math.inf < input_range[0] < input_range[1] < math.inf:
        raise UserError(
            f"--input-range {input_range[0]:g} {input_range[1]:g} is no range: LO has to be below HI, and both finite."
        )
    spec = None
    if keras_file is None and tflite_file is None:
        size = input_size or training.size
        stem = stem or default_stem(size)
        classes = len(datasets.class_names(dataset, data_dir))
        spec = ModelSpec(model or "resnet18", size, 3, classes, width, stem, alpha)
    given = keras_file or tflite_file
    settings = Settings(
        name=name or _default_name(spec, given, dataset),
        out=out,
        model=spec,
        keras=keras_file,
        tflite=tflite_file,
        strip_softmax=strip_softmax,
        new_head=new_head,
        input_size=input_size,
        dataset=dataset,
        data_dir=data_dir,
        limit=limit,
        quantization=quantization,
        epochs=training.epochs if epochs is None else epochs,
        qat_epochs=training.qat_epochs if qat_epochs is None else qat_epochs,
        batch=batch,
        learning_rate=lr,
        qat_learning_rate=qat_lr,
        augment=training.augment,
        seed=seed,
        mu_max=mu_max,
        preprocessing=Preprocessing((input_range[0],), (input_range[1],)),
        train=train,
        allow_drop=100.0 if new_head else allow_drop,  # what is untrained has nothing to lose
        board="stm32n6-dk" if (board, variant, npu) == ("stm32n6", "dk", None) else board,
        npu=variant if npu else None,
    )
    path, report = convert(settings)
    click.echo(f"wrote {path} ({path.stat().st_size:,} bytes), {100 * report.headroom:.2f} % right")
    if npu is not None:
        npu_settings = NpuSettings(variant, compiled, compiled_probe, any_npu_compiler, board)
        found = neural_art.prepare(npu_settings, path.with_suffix(".tflite"), train)
        click.echo(f"wrote {found} ({found.stat().st_size:,} bytes)")
        click.echo(f"its firmware: {neural_art.firmware_command(npu_settings, found.parent)}")


def _refuse_stray_options(model: str, keras: bool, tflite: bool, npu: bool, board: str | None) -> None:
    """An option that would change nothing is a mistake, and may cost an hour of training the wrong network."""
    if tflite:
        source, stray = "--tflite", RESNET18_ONLY | MOBILENET_ONLY | PRETRAINING | QUANTIZING | {"new_head"}
    elif keras:
        source, stray = "--keras", RESNET18_ONLY | MOBILENET_ONLY | PRETRAINING
    else:
        source = f"--model {model}"
        stray = (MOBILENET_ONLY if model == "resnet18" else RESNET18_ONLY) | {"strip_softmax", "new_head"}
    context = click.get_current_context()
    for name in sorted(stray):
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no meaning with {source}: leave it out.")
    for name in sorted(NPU_ONLY):
        if not npu and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no meaning without --npu: leave it out.")
    if not npu and board != "stm32n6" and context.get_parameter_source("variant") == ParameterSource.COMMANDLINE:
        raise click.UsageError("--variant has no meaning without --board stm32n6 or --npu: leave it out.")


def _default_name(spec: ModelSpec | None, given: Path | None, dataset: str) -> str:
    if spec is None:
        return given.stem
    own = f"w{spec.width}" if spec.name == "resnet18" else f"a{round(100 * spec.alpha):03}"
    return f"{spec.name}_{own}_{spec.input_size}_{dataset}"


if __name__ == "__main__":
    main()
