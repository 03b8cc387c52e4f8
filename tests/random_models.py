"""Random int8 networks through the TFLite converter: what the runner has to equal the oracles on, whatever users bring.

``python tests/random_models.py --count 1000 [--first SEED]`` checks that many against both oracles and names the seeds
that fail; test_random_models.py checks the first few. A seed makes the same network on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import click
import numpy as np
from app_library import SANITIZE
from oracles import random_pixels, tflite_reference, tflm_reference

from converters import device_image
from converters.device_image import Preprocessing
from converters.keras_env import keras, quiet, tf
from converters.tflite_model import add_headroom, read_graph
from pipeline.targets.boards import open_board

layers = keras.layers

Rng = np.random.Generator
ACTIVATIONS = (None, "relu", "relu6")


def conv(x, rng: Rng, filters: int | None = None, **options):
    """A convolution of random kernel, stride or dilation, padding and activation."""
    kernel = (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
    step = {"strides": int(rng.integers(1, 4))} if rng.random() < 0.6 else {"dilation_rate": int(rng.integers(1, 3))}
    settings = {
        "kernel_size": kernel,
        "padding": str(rng.choice(["same", "valid"])),
        "activation": ACTIVATIONS[rng.integers(3)],
        "use_bias": bool(rng.random() < 0.8),
        "bias_initializer": keras.initializers.RandomNormal(0, 0.3),
        **step,
        **options,
    }
    return fitting(x, settings, lambda s: layers.Conv2D(filters or int(rng.integers(1, 25)), **s))


def depthwise(x, rng: Rng, **options):
    settings = {
        "kernel_size": int(rng.integers(1, 6)),
        "padding": str(rng.choice(["same", "valid"])),
        "activation": ACTIVATIONS[rng.integers(3)],
        "depth_multiplier": int(rng.choice([1, 1, 1, 2, 3])),
        "bias_initializer": keras.initializers.RandomNormal(0, 0.3),
        **({"strides": int(rng.integers(1, 3))} if rng.random() < 0.6 else {"dilation_rate": int(rng.integers(1, 3))}),
        **options,
    }
    return fitting(x, settings, lambda s: layers.DepthwiseConv2D(**s))


def fitting(x, settings: dict, layer: Callable[[dict], object]):
    """The layer on x; with "same" padding where a valid window would not fit."""
    size = np.broadcast_to(settings["kernel_size"], 2)
    extent = (size - 1) * settings.get("dilation_rate", 1) + 1
    if (np.array(x.shape[1:3]) < extent).any():
        settings = settings | {"padding": "same"}
    return layer(settings)(x)


def pool(x, rng: Rng):
    kind = layers.MaxPool2D if rng.random() < 0.5 else layers.AveragePooling2D
    size = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    padding = "same" if min(x.shape[1:3]) < 3 else str(rng.choice(["same", "valid"]))
    return kind(size, int(rng.integers(1, 3)), padding=padding)(x)


def pad(x, rng: Rng):
    a, b, c, d = (int(v) for v in rng.integers(0, 3, 4))
    return layers.ZeroPadding2D(((a, b), (c, d)))(x)


def residual(x, rng: Rng):
    """ADD of branches with different scales."""
    branch = conv(x, rng, x.shape[-1], padding="same", strides=1, dilation_rate=1)
    factor = float(rng.uniform(0.2, 5))
    scaled = layers.Lambda(lambda t: factor * t)(conv(x, rng, x.shape[-1], **PLAIN))
    out = layers.Add()([branch, scaled if rng.random() < 0.5 else x])
    return layers.ReLU(6.0 if rng.random() < 0.5 else None)(out) if rng.random() < 0.5 else out


PLAIN = {"padding": "same", "strides": 1, "dilation_rate": 1, "activation": None}


def reshape(x, rng: Rng):
    _, h, w, c = x.shape
    return layers.Reshape((w, h, c) if rng.random() < 0.5 else (h * w, 1, c))(x)


def reduce(x, rng: Rng):
    axes = [a for a in (1, 2, 3) if rng.random() < 0.5] or [1, 2]
    return layers.Lambda(lambda t: tf.reduce_mean(t, axes, keepdims=True))(x)


BLOCKS: tuple[tuple[float, Callable], ...] = (
    (0.34, conv), (0.2, depthwise), (0.14, pool), (0.12, residual), (0.08, pad), (0.07, reshape), (0.05, reduce),
)  # fmt: skip


def random_chain(x, rng: Rng):
    """Two to seven random blocks, one after the other."""
    weights = np.array([w for w, _ in BLOCKS])
    for _ in range(int(rng.integers(2, 8))):
        block = BLOCKS[rng.choice(len(BLOCKS), p=weights / weights.sum())][1]
        x = block(x, rng)
    return x


# -- the shapes of well-known networks, with random sizes --------------------------------------------------------------


def separable(x, filters: int, stride: int, activation: str = "relu"):
    x = layers.DepthwiseConv2D(3, strides=stride, padding="same", activation=activation)(x)
    return layers.Conv2D(filters, 1, activation=activation)(x)


def inverted_residual(x, rng: Rng, filters: int, stride: int, kernel: int = 3):
    y = layers.Conv2D(x.shape[-1] * int(rng.integers(2, 5)), 1, activation="relu6")(x)
    y = layers.DepthwiseConv2D(kernel, strides=stride, padding="same", activation="relu6")(y)
    y = layers.Conv2D(filters, 1)(y)
    return layers.Add()([x, y]) if stride == 1 and filters == x.shape[-1] else y


def mobilenet_v1(x, rng: Rng):
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    for filters, stride in ((12, 1), (20, 2), (20, 1), (33, 2)):
        x = separable(x, filters, stride)
    return x


def mobilenet_v2(x, rng: Rng):
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu6")(x)
    for filters, stride in ((8, 1), (12, 2), (12, 1), (20, 2), (20, 1)):
        x = inverted_residual(x, rng, filters, stride)
    return x


def efficientnet_lite(x, rng: Rng):
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu6")(x)
    for filters, stride in ((8, 1), (16, 2), (16, 1)):
        x = inverted_residual(x, rng, filters, stride, kernel=int(rng.choice([3, 5])))
    return layers.Conv2D(40, 1, activation="relu6")(x)


def resnet(x, rng: Rng):
    x = layers.MaxPool2D(3, 2, padding="same")(layers.Conv2D(8, 7, strides=2, padding="same", activation="relu")(x))
    for filters, stride in ((8, 1), (16, 2)):
        y = layers.Conv2D(filters, 3, strides=stride, padding="same", activation="relu")(x)
        y = layers.Conv2D(filters, 3, padding="same")(y)
        if filters != x.shape[-1]:
            x = layers.Conv2D(filters, 1, strides=stride)(x)
        x = layers.ReLU()(layers.Add()([x, y]))
    return x


def ds_cnn(x, rng: Rng):
    x = layers.Conv2D(16, (10, 4), strides=2, padding="same", activation="relu")(x)
    for _ in range(3):
        x = separable(x, 16, 1)
    return layers.AveragePooling2D((min(2, x.shape[1]), min(2, x.shape[2])))(x)


KNOWN = (mobilenet_v1, mobilenet_v2, efficientnet_lite, resnet, ds_cnn)


def build(seed: int) -> bytes:
    """The int8 .tflite of a seed. Every second one is a chain of random blocks, the others have a well-known shape."""
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    shape = tuple(int(v) for v in (rng.integers(7, 26), rng.integers(7, 26), rng.choice([1, 2, 3, 4])))
    image = keras.Input(shape, batch_size=1)
    body = random_chain if seed % 2 else KNOWN[seed // 2 % len(KNOWN)]
    x = body(image, rng)
    x = layers.GlobalAveragePooling2D()(x) if rng.random() < 0.5 and seed % 2 == 0 else layers.Flatten()(x)
    if rng.random() < 0.15:
        x = layers.Softmax()(layers.Dense(12)(x))
    model = keras.Model(image, layers.Dense(int(rng.integers(2, 13)))(x))
    return to_int8(model, shape, rng)


def to_int8(model: keras.Model, shape: tuple[int, int, int], rng: Rng) -> bytes:
    """Per channel or (one in four) per tensor; ranges from noise, so that random inputs make the outputs vary."""
    forward = tf.function(lambda x: model(x, training=False), input_signature=[tf.TensorSpec((1, *shape), tf.float32)])
    samples = rng.uniform(-1, 1, (24, 1, *shape)).astype(np.float32)
    with quiet():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([forward.get_concrete_function()])
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([x] for x in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
        converter._experimental_disable_per_channel_quantization_for_dense_layers = True
        converter._experimental_disable_per_channel = bool(rng.random() < 0.25)
        return converter.convert()


# -- the comparison ----------------------------------------------------------------------------------------------------


def difference(seed: int, inputs: int = 8) -> tuple[str | None, bool]:
    """What is not equal for the network of a seed (None: nothing), and whether its outputs vary with its input."""
    tflite = build(seed)
    image = device_image.build(add_headroom(tflite, 4), Preprocessing())
    board = open_board("native", image, threads=1, sanitize=SANITIZE)
    try:
        spec = board.image.input
        pixels = random_pixels(inputs, (spec.height, spec.width, spec.channels), seed)
        board.write_samples(0, pixels, np.zeros(inputs))
        board.select(range(inputs))
        logits, quantised = board.logits(), board.image.quantize_pixels(pixels)
    finally:
        board.close()
    for name, oracle in (("tflite-runtime BUILTIN_REF", tflite_reference), ("tflite-micro", tflm_reference)):
        count = int((oracle(board.image.tflite, quantised) != logits).sum())
        if count:
            ops = ", ".join(op.kind for op in read_graph(tflite).ops)
            return f"seed {seed}: {count} of {logits.size} logits differ from {name} ({ops})", True
    return None, bool(logits.std(axis=0).max() > 0)


@click.command()
@click.option("--first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
def main(first: int, count: int) -> None:
    """Compare COUNT random networks, from seed FIRST on, with both oracles."""
    failures = constant = 0
    with click.progressbar(range(first, first + count), label="networks") as seeds:
        for seed in seeds:
            found, varies = difference(seed)
            failures += found is not None
            constant += not varies
            if found:
                click.echo(f"\n{found}")
    click.echo(f"{count - failures} of {count} networks equal; {constant} gave the same output for every input")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
