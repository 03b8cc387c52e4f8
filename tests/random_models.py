"""Random int8 networks through the TFLite converter: what the runner has to equal the oracles on, whatever users bring.

``python tests/random_models.py --count 1000 [--first SEED]`` checks that many against both oracles and names the seeds
that fail; with --every-op it compares the output of every op as well. test_random_models.py checks the first few.
A seed makes the same network on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import click
import numpy as np
from architectures import ARCHITECTURES, hard_swish, squeeze_and_excite
from oracle_comparison import differing_op, logits_difference

from converters.errors import UserError
from converters.keras_env import keras, quiet, tf
from converters.tflite_model import add_headroom, read_graph

layers = keras.layers

Rng = np.random.Generator
ACTIVATIONS = (None, "relu", "relu6")
LARGEST = 1 << 14  # elements of a tensor that grows no more


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


def activation(x, rng: Rng):
    """A function that is an op of its own (or several)."""
    x = float(rng.uniform(0.5, 6)) * conv(x, rng, **PLAIN)
    kinds = (
        hard_swish,
        layers.Activation("sigmoid"),
        layers.Activation("tanh"),
        layers.Activation("swish"),
        layers.LeakyReLU(float(rng.uniform(0, 0.9))),
        layers.PReLU("random_normal", shared_axes=[1, 2] if rng.random() < 0.5 else None),
        layers.Activation("hard_sigmoid"),
    )
    return kinds[rng.integers(len(kinds))](x)


def binary(x, rng: Rng):
    """ADD, SUB or MUL of different scales, one of them broadcast over some axes, or with constants."""
    if rng.random() < 0.25:
        shape = [int(n) if rng.random() < 0.7 else 1 for n in x.shape[1:]]
        other = rng.normal(0, 1, shape if rng.random() < 0.5 else shape[2:]).astype(np.float32)
    else:
        axes = [a for a in (1, 2, 3) if rng.random() < 0.5]
        other = float(rng.uniform(0.3, 4)) * conv(x, rng, x.shape[-1], **PLAIN)
        if axes:
            other = layers.Lambda(lambda t: tf.reduce_mean(t, axes, keepdims=True))(other)
    kind = rng.integers(5)
    x, other = (other, x) if rng.random() < 0.3 else (x, other)
    combine = (tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum)[kind]
    x = combine(x, other)
    if kind > 2 or rng.random() < 0.6:  # only the first three take RELU6 in (alone it is refused, see docs/numerics.md)
        return x
    return layers.ReLU(6.0 if rng.random() < 0.5 else None)(x)


def concatenate(x, rng: Rng):
    axis = int(rng.choice([3, 3, 1, 2]))
    settings = PLAIN | {"activation": ACTIVATIONS[rng.integers(3)]}
    filters = None if axis == 3 else x.shape[-1]
    branches = [conv(x, rng, filters, **settings) for _ in range(rng.integers(1, 3))]
    return layers.Concatenate(axis)([x, *branches])


def upsample(x, rng: Rng):
    if np.prod(x.shape[1:]) > LARGEST // 4:
        return x
    if rng.random() < 0.5:
        settings = {
            "kernel_size": int(rng.integers(1, 5)),
            "strides": (int(rng.integers(1, 4)), int(rng.integers(1, 3))),
        }
        padding, bias = str(rng.choice(["same", "valid"])), bool(rng.random() < 0.7)
        return layers.Conv2DTranspose(int(rng.integers(1, 9)), padding=padding, use_bias=bias, **settings)(x)
    size = [int(rng.integers(1, 2 * n + 1)) for n in x.shape[1:3]]
    corners = bool(rng.random() < 0.3)
    resize = tf.compat.v1.image.resize_nearest_neighbor
    half = not corners and bool(rng.random() < 0.5)
    return layers.Lambda(lambda t: resize(t, size, align_corners=corners, half_pixel_centers=half))(x)


def cut_out(x, rng: Rng):
    """A slice with steps, or the pieces of a split side by side."""
    _, h, w, c = x.shape
    if c % 2 == 0 and rng.random() < 0.5:
        axis = int(rng.integers(1, 3))  # not in the layer, which runs more than once
        return layers.Lambda(lambda t: tf.concat(tf.split(t, 2, axis=-1), axis=axis))(x)
    top, left, first = (int(rng.integers(0, (n + 1) // 2)) for n in (h, w, c))
    step_y, step_x = (int(rng.integers(1, 4)) for _ in range(2))
    return layers.Lambda(lambda t: t[:, top::step_y, left : w - int(w > 3) : step_x, first:])(x)


def squeeze(x, rng: Rng):
    return (
        squeeze_and_excite(x, "relu")
        if rng.random() < 0.5
        else squeeze_and_excite(x, "swish", keras.activations.sigmoid)
    )


BLOCKS: tuple[tuple[float, Callable], ...] = (
    (0.28, conv), (0.16, depthwise), (0.1, pool), (0.08, residual), (0.06, pad), (0.05, reshape), (0.05, reduce),
    (0.1, activation), (0.1, binary), (0.06, concatenate), (0.05, upsample), (0.04, cut_out), (0.04, squeeze),
)  # fmt: skip


def random_chain(x, rng: Rng):
    """Two to seven random blocks, one after the other."""
    weights = np.array([w for w, _ in BLOCKS])
    for _ in range(int(rng.integers(2, 8))):
        block = BLOCKS[rng.choice(len(BLOCKS), p=weights / weights.sum())][1]
        x = block(x, rng)
    return x


def build(seed: int) -> bytes:
    """The int8 .tflite of a seed. Every second one is a chain of random blocks, the others have a well-known shape."""
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    shape = tuple(int(v) for v in (rng.integers(7, 26), rng.integers(7, 26), rng.choice([1, 2, 3, 4])))
    image = keras.Input(shape, batch_size=1)
    body = random_chain if seed % 2 else ARCHITECTURES[seed // 2 % len(ARCHITECTURES)]
    x = body(image, rng)
    draw = rng.random()
    if draw < 0.4 and seed % 2 == 0:
        x = layers.GlobalAveragePooling2D()(x)
    elif draw < 0.5:
        x = layers.GlobalMaxPool2D()(x)
    else:
        x = layers.Flatten()(x)
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


def difference(seed: int, every_op: bool = False) -> tuple[str | None, bool]:
    """What is not equal for the network of a seed (None: nothing), and whether its outputs vary with its input."""
    tflite = add_headroom(build(seed), 4)
    found, varies = logits_difference(tflite, seed)
    if not found and every_op:
        found = differing_op(tflite, seed)
    if found:
        found = f"seed {seed}: {found} ({', '.join(op.kind for op in read_graph(tflite).ops)})"
    return found, varies


@click.command()
@click.option("--first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--every-op", is_flag=True, help="Compare the output of every op, not of the last alone.")
def main(first: int, count: int, every_op: bool) -> None:
    """Compare COUNT random networks, from seed FIRST on, with both oracles."""
    failures = constant = refused = 0
    with click.progressbar(range(first, first + count), label="networks") as seeds:
        for seed in seeds:
            try:
                found, varies = difference(seed, every_op)
            except UserError as error:
                refused += 1
                click.echo(f"\nseed {seed} is refused: {error}")
                continue
            failures += found is not None
            constant += not varies
            if found:
                click.echo(f"\n{found}")
    click.echo(
        f"{count - failures - refused} of {count} networks equal, {failures} not, {refused} refused; "
        f"{constant} gave the same output for every input"
    )
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
