"""Small networks in the shape of those that people bring: layers and operators as in the originals, few channels.

Each takes an input tensor and a random generator (for what random_models.py varies) and gives features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from converters.keras_env import keras, tf

layers = keras.layers

Rng = np.random.Generator


def conv(x, filters: int, kernel: int | tuple[int, int] = 3, stride: int = 1, activation: str | None = "relu"):
    return layers.Conv2D(filters, kernel, strides=stride, padding="same", activation=activation)(x)


def separable(x, filters: int, stride: int, activation: str = "relu"):
    x = layers.DepthwiseConv2D(3, strides=stride, padding="same", activation=activation)(x)
    return conv(x, filters, 1, activation=activation)


def mobilenet_v1(x, rng: Rng):
    """Howard et al. 2017; MLPerf Tiny's visual wake words."""
    x = conv(x, 8, stride=2)
    for filters, stride in ((12, 1), (20, 2), (20, 1), (33, 2)):
        x = separable(x, filters, stride)
    return x


def inverted_residual(
    x, rng: Rng, filters: int, stride: int, kernel: int = 3, activation: str | Callable = "relu6", squeeze=None
):
    y = layers.Conv2D(x.shape[-1] * int(rng.integers(2, 5)), 1, activation=activation)(x)
    y = layers.DepthwiseConv2D(kernel, strides=stride, padding="same", activation=activation)(y)
    y = squeeze(y) if squeeze else y
    y = layers.Conv2D(filters, 1)(y)
    return layers.Add()([x, y]) if stride == 1 and filters == x.shape[-1] else y


def mobilenet_v2(x, rng: Rng):
    x = conv(x, 8, stride=2, activation="relu6")
    for filters, stride in ((8, 1), (12, 2), (12, 1), (20, 2), (20, 1)):
        x = inverted_residual(x, rng, filters, stride)
    return x


def hard_sigmoid(x):
    return layers.ReLU(6.0)(x + 3.0) * (1 / 6)


def hard_swish(x):
    return layers.Multiply()([x, hard_sigmoid(x)])


def squeeze_and_excite(x, inner: str = "relu", gate: Callable = hard_sigmoid):
    y = layers.GlobalAveragePooling2D(keepdims=True)(x)
    y = conv(y, max(1, x.shape[-1] // 4), 1, activation=inner)
    return layers.Multiply()([x, gate(conv(y, x.shape[-1], 1, activation=None))])


def mobilenet_v3(x, rng: Rng):
    """Hard-swish, squeeze-and-excite with a hard sigmoid, 5x5 depthwise (Howard et al. 2019)."""
    x = hard_swish(conv(x, 8, stride=2, activation=None))
    x = inverted_residual(x, rng, 8, 2, activation="relu", squeeze=squeeze_and_excite)
    for filters, stride in ((12, 2), (12, 1)):
        x = inverted_residual(x, rng, filters, stride, 5, hard_swish, squeeze_and_excite)
    return hard_swish(conv(x, 30, 1, activation=None))


def efficientnet_lite(x, rng: Rng):
    x = conv(x, 8, stride=2, activation="relu6")
    for filters, stride in ((8, 1), (16, 2), (16, 1)):
        x = inverted_residual(x, rng, filters, stride, kernel=int(rng.choice([3, 5])))
    return conv(x, 40, 1, activation="relu6")


def efficientnet_b0(x, rng: Rng):
    """Swish, squeeze-and-excite with a sigmoid (Tan and Le 2019), and the constants that scale its input."""

    def squeeze(y):
        return squeeze_and_excite(y, "swish", layers.Activation("sigmoid"))

    mean = np.linspace(-0.1, 0.2, x.shape[-1], dtype=np.float32)
    x = conv((x - mean) * np.linspace(1, 2, x.shape[-1], dtype=np.float32), 8, stride=2, activation="swish")
    for filters, stride in ((8, 1), (12, 2), (12, 1)):
        x = inverted_residual(x, rng, filters, stride, int(rng.choice([3, 5])), "swish", squeeze)
    return conv(x, 30, 1, activation="swish")


def residual(x, filters: int, stride: int, shortcut: Callable | None = None):
    y = conv(conv(x, filters, stride=stride), filters, activation=None)
    if filters != x.shape[-1] or stride > 1:
        x = shortcut(x, filters, stride) if shortcut else conv(x, filters, 1, stride, None)
    return layers.ReLU()(layers.Add()([x, y]))


def resnet8(x, rng: Rng):
    """MLPerf Tiny's image classification."""
    x = conv(x, 8)
    for filters, stride in ((8, 1), (16, 2), (24, 2)):
        x = residual(x, filters, stride)
    return x


def resnet18(x, rng: Rng):
    x = layers.MaxPool2D(3, 2, padding="same")(conv(x, 8, 7, 2))
    for filters, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (24, 2), (24, 1), (32, 2), (32, 1)):
        x = residual(x, filters, stride)
    return x


def resnet20(x, rng: Rng):
    """For CIFAR: shortcuts without weights, every second pixel and channels of zeros (He et al. 2016, option A)."""

    def subsample(y, filters, stride):
        more = filters - y.shape[-1]
        return layers.Lambda(
            lambda t: tf.pad(t[:, ::stride, ::stride], [[0, 0], [0, 0], [0, 0], [more // 2, more - more // 2]])
        )(y)

    x = conv(x, 6)
    for filters, stride in ((6, 1), (6, 1), (6, 1), (10, 2), (10, 1), (10, 1), (14, 2), (14, 1), (14, 1)):
        x = residual(x, filters, stride, subsample)
    return x


def ds_cnn(x, rng: Rng):
    """MLPerf Tiny's keyword spotting."""
    x = conv(x, 16, (10, 4), 2)
    for _ in range(3):
        x = separable(x, 16, 1)
    return layers.AveragePooling2D((min(2, x.shape[1]), min(2, x.shape[2])))(x)


def squeezenet(x, rng: Rng):
    x = layers.MaxPool2D(3, 2, padding="same")(conv(x, 8, stride=2))
    for squeeze, expand in ((4, 8), (4, 8), (6, 12)):
        y = conv(x, squeeze, 1)
        x = layers.Concatenate()([conv(y, expand, 1), conv(y, expand, 3)])
    return conv(x, 16, 1)


def densenet(x, rng: Rng):
    x = conv(x, 8, stride=2)
    for _ in range(2):
        for _ in range(3):
            x = layers.Concatenate()([x, conv(conv(layers.ReLU()(x), 8, 1), 4)])
        x = layers.AveragePooling2D(2, padding="same")(conv(x, x.shape[-1] // 2, 1))
    return x


def inception(x, rng: Rng):
    x = conv(x, 8, stride=2)
    for _ in range(2):
        x = layers.Concatenate()(
            [
                conv(x, 4, 1),
                conv(conv(conv(x, 4, 1), 6, (1, 3)), 6, (3, 1)),
                conv(layers.AveragePooling2D(3, 1, padding="same")(x), 3, 1),
                conv(layers.MaxPool2D(3, 1, padding="same")(x), 3, 1),
            ]
        )
    return x


def darknet(x, rng: Rng):
    for filters in (6, 10, 16):
        x = layers.LeakyReLU(0.1)(conv(x, filters, activation=None))
        x = layers.MaxPool2D(2, padding="same")(x)
    return x


def unet(x, rng: Rng):
    """One level up by a transposed convolution, one by the nearest neighbour, with the skips concatenated."""
    full = conv(x, 6)
    half = conv(layers.MaxPool2D(2, padding="same")(full), 8)
    quarter = conv(layers.MaxPool2D(2, padding="same")(half), 12)
    up = layers.Conv2DTranspose(8, 2, strides=2, padding="same")(quarter)[:, : half.shape[1], : half.shape[2]]
    half = conv(layers.Concatenate()([half, up]), 8)
    up = layers.UpSampling2D(2)(half)[:, : full.shape[1], : full.shape[2]]
    return conv(layers.Concatenate()([full, up]), 8)


def convnet_tanh(x, rng: Rng):
    """LeNet."""
    for filters in (6, 16):
        x = layers.AveragePooling2D(2, padding="same")(conv(x, filters, 5, activation="tanh"))
    return x


def autoencoder(x, rng: Rng):
    """MLPerf Tiny's anomaly detection: fully connected through a bottleneck."""
    x = layers.Flatten()(x)
    for units in (32, 32, 8, 32, 32):
        x = layers.Dense(units, activation="relu")(x)
    return layers.Reshape((1, 1, 32))(x)


ARCHITECTURES = (
    mobilenet_v1, mobilenet_v2, mobilenet_v3, efficientnet_lite, efficientnet_b0, resnet8, resnet18, resnet20, ds_cnn,
    squeezenet, densenet, inception, darknet, unet, convnet_tanh, autoencoder,
)  # fmt: skip


def shufflenet(x, rng: Rng):
    """Its channel shuffle is a TRANSPOSE, which the runner lacks."""
    x = conv(x, 12)
    _, h, w, c = x.shape
    x = layers.Reshape((h, w, 3, c // 3))(x)
    return layers.Reshape((h, w, c))(layers.Permute((1, 2, 4, 3))(x))
