"""MobileNetV2 (Sandler et al. 2018): Keras' own graph with logits out."""

from __future__ import annotations

from converters.keras_env import keras


def mobilenet_v2(input_size: int, channels: int, classes: int, alpha: float = 1.0) -> keras.Model:
    """Maps float [n, size, size, channels] to logits [n, classes]."""
    model = keras.applications.MobileNetV2(
        (input_size, input_size, channels), alpha, weights=None, classes=classes, classifier_activation=None
    )
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # Keras' 0.999 leaves the averages near their start in a short training
    return model
