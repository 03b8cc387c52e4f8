"""What backpropagation reaches on the same images: python -m pipeline.ceiling --image artifacts/NAME/NAME.zimg.

The float network that an image was made of is trained on the images that `train_ondevice` would put on the device, then
quantised with fake quantisation on the same images, and tested on the same test images. Neither runs on the device: it
is the bound that stands beside the results of zeroth-order training.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline import cli, datasets
from pipeline.datasets import Split, shifts
from pipeline.stages import write
from pipeline.train_ondevice import read_image, shifted_splits

SCOPES = ("all", "head")


@cli.command()
@click.option("--image", "image_file", type=click.Path(path_type=Path), required=True, help="Device image (.zimg).")
@click.option("--float", "float_file", type=click.Path(path_type=Path), help="Its float network.  [default: beside it]")
@click.option("--dataset", type=click.Choice(datasets.NAMES), help="Data set; the image's own by default.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where the data set's files are.")
@click.option("--shift", type=click.Choice(shifts.SHIFTS), default="brightness", help="What changed in the field.")
@click.option("--severity", type=click.IntRange(1, 5), default=3, help="How much of it.")
@click.option("--samples", type=click.IntRange(1, 65536), default=1000, help="Labelled images.")
@click.option("--eval-images", type=click.IntRange(1, 65536), default=2000, help="Shifted test images to evaluate on.")
@click.option("--scope", type=click.Choice(SCOPES), default="all", help="Layers that are trained.")
@click.option("--epochs", type=click.IntRange(1), default=30, help="In float, and as many with fake quantisation.")
@click.option("--batch", type=click.IntRange(1), default=64, help="Images a step.")
@click.option("--lr", type=cli.FiniteRange(0, min_open=True), default=1e-3, help="Peak of Adam's step.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 2), default=1, help="Seed of batches.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the result there, as JSON.")
def main(image_file: Path, float_file: Path | None, out: Path | None, **options: Any) -> None:
    """Train the float network of a device image with backpropagation on the images that a device would have.

    Prints accuracies on the shifted test images: before, after training in float, and as int8 after as many epochs of
    quantisation-aware training on the same images.
    """
    image = read_image(image_file)
    file = float_file or image_file.with_suffix(".keras")
    name = options["dataset"] or image.meta.get("dataset")
    if name not in datasets.NAMES:
        raise UserError(f"{image_file} does not say which data set it was made for: name one with --dataset.")
    names = ("data_dir", "shift", "severity", "samples", "eval_images")
    train, test = shifted_splits(image, dataset=name, **{key: options[key] for key in names})
    training = {key: options[key] for key in ("scope", "epochs", "batch", "lr", "seed")}
    result = measure(image, file, train, test, **training)
    for title, value in result["accuracy"].items():
        click.echo(f"  {title:<32}{100 * value:6.1f} %")
    if out is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
        write(out, (json.dumps({"image": str(image_file), **settings, **result}, indent=1) + "\n").encode())
        click.echo(f"wrote {out}")


def measure(
    image: DeviceImage,
    file: Path,
    train: Split,
    test: Split,
    *,
    scope: str,
    epochs: int,
    batch: int,
    lr: float,
    seed: int,
) -> dict[str, Any]:
    """Accuracies (0..1) by title, and seconds. file: the float network. Raises UserError for another one."""
    from converters import keras_to_int8
    from converters.keras_env import keras
    from pipeline.models import training
    from pipeline.models.evaluate import tflite_accuracy

    start = time.monotonic()
    preprocessing = image.input.preprocessing
    scale = preprocessing.lo, preprocessing.hi
    model, is_keras3 = keras_to_int8.load_keras(file)
    if is_keras3:
        raise UserError(f"{file} is a Keras 3 model; quantisation-aware training knows tf-keras models only.")
    if keras_to_int8.ends_in_softmax(model):
        model = keras_to_int8.without_softmax(model)
    shape, classes = keras_to_int8.check_shape(model)
    if (shape, classes) != ((image.input.height, image.input.width, image.input.channels), image.classes):
        raise UserError(
            f"{file} maps {shape} to {classes} classes, which is not the image's network: name its float one."
        )
    accuracy = {
        "before, float": training.accuracy(model, test, *scale),
        "before, int8 (the image)": tflite_accuracy(image.tflite, test, preprocessing, "testing the image"),
    }
    for layer in model.layers[:-1]:
        layer.trainable = scope == "all"
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # its averages follow within the few steps that there are
    keras.utils.set_random_seed(seed)
    schedule = training.Schedule(epochs, lr, batch)
    training.fit(model, train, *scale, schedule, seed, "training in float")
    accuracy["after, float"] = training.accuracy(model, test, *scale)
    aware = keras_to_int8.quantize_aware(model, training.scale(train.images, *scale).numpy())
    training.fit(aware, train, *scale, schedule, seed + 1, "training with fake quantisation")
    tflite = keras_to_int8.to_tflite(aware)
    accuracy["after, int8"] = tflite_accuracy(tflite, test, preprocessing, "testing the int8 network")
    return {"accuracy": accuracy, "seconds": round(time.monotonic() - start, 1)}


if __name__ == "__main__":
    main()
