"""ResNet18 (He et al. 2015): four stages of two basic blocks, flat and functional, logits out.

The first stage is `width` wide (64 in the paper), each later one twice the one before, at half the resolution. The
standard stem is 7x7 stride 2 and a 3x3 stride 2 max-pool; the small one, for inputs of 64 and less, is 3x3 stride 1
and the same max-pool: at 32x32 the standard stem would leave 1x1 maps, where most weights multiply padding.
"""

from __future__ import annotations

from converters.keras_env import keras

layers = keras.layers


def resnet18(input_size: int, channels: int, classes: int, width: int = 64, stem: str = "standard") -> keras.Model:
    """Maps float [n, size, size, channels] to logits [n, classes]."""
    image = layers.Input((input_size, input_size, channels), name="image")
    kernel, stride = (7, 2) if stem == "standard" else (3, 1)
    x = _conv_norm(image, width, kernel, stride, "stem")
    x = layers.ReLU(name="stem_relu")(x)
    x = layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)
    for stage in range(4):
        for block in range(2):
            x = _basic_block(x, width << stage, 2 if stage and not block else 1, f"stage{stage + 1}_block{block + 1}")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(image, layers.Dense(classes, name="logits")(x), name="resnet18")


def _basic_block(x, filters: int, stride: int, name: str):
    shortcut = x
    if stride != 1 or x.shape[-1] != filters:
        shortcut = _conv_norm(x, filters, 1, stride, f"{name}_shortcut")
    x = _conv_norm(x, filters, 3, stride, f"{name}_conv1")
    x = layers.ReLU(name=f"{name}_relu1")(x)
    x = _conv_norm(x, filters, 3, 1, f"{name}_conv2")
    x = layers.Add(name=f"{name}_add")([x, shortcut])
    return layers.ReLU(name=f"{name}_relu2")(x)


def _conv_norm(x, filters: int, kernel: int, stride: int, name: str):
    x = layers.Conv2D(
        filters, kernel, stride, padding="same", use_bias=False, kernel_initializer="he_normal", name=name
    )(x)
    # Momentum 0.9, not Keras' 0.99: a short training has to move the averages too.
    return layers.BatchNormalization(momentum=0.9, name=f"{name}_bn")(x)
