"""Keras -> full-integer .tflite: int8 in and out, per-channel convolutions, per-tensor FULLY_CONNECTED.

Two ways: quantisation-aware training (`quantize_aware`, then `to_tflite`), for tf-keras models, which is what
tensorflow-model-optimization knows; and post-training quantisation (`post_training`), for Keras 3 models too.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import UserError
from converters.keras_env import keras, quiet, tf, tfmot

_CALIBRATION_BATCH = 64


def load_keras(path: Path) -> tuple[Any, bool]:
    """A saved model and whether it is a Keras 3 one.

    Reads `.keras` and `.h5` files of both generations of Keras; they carry the version that wrote them.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    version = _keras_version(path)
    is_keras3 = not version.startswith("2.")
    if is_keras3:
        import keras as library  # Keras 3, whatever TF_USE_LEGACY_KERAS says
    else:
        library = keras
    try:
        model = library.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its layers raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} was written by Keras {version} and cannot be loaded: {reason}") from error
    return model, is_keras3


def _keras_version(path: Path) -> str:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if "metadata.json" in archive.namelist():
                return str(json.loads(archive.read("metadata.json")).get("keras_version", "3"))
    else:
        import h5py

        with contextlib.suppress(OSError), h5py.File(path, "r") as archive:
            version = archive.attrs.get("keras_version", "2.")
            return version.decode() if isinstance(version, bytes) else str(version)
    raise UserError(f"{path} is no Keras model: name a .keras or .h5 file written by model.save().")


def check_shape(model: Any) -> tuple[tuple[int, int, int], int]:
    """(height, width, channels) and classes of a classifier; UserError for any other kind of model."""
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise UserError(
            f"the Keras model has {len(model.inputs)} inputs and {len(model.outputs)} outputs; a classifier with "
            "one of each can be converted."
        )
    inputs, outputs = tuple(model.inputs[0].shape), tuple(model.outputs[0].shape)
    if len(inputs) != 4 or None in inputs[1:] or len(outputs) != 2 or outputs[1] is None:
        raise UserError(
            f"the Keras model maps {inputs} to {outputs}; (None, height, width, channels) to (None, classes) is needed."
        )
    return inputs[1:], outputs[1]


def ends_in_softmax(model: Any) -> bool:
    last = model.layers[-1]
    activation = getattr(last, "activation", None)
    return type(last).__name__ == "Softmax" or getattr(activation, "__name__", "") == "softmax"


def without_softmax(model: Any) -> Any:
    """The same model with logits out; for a model that ends in a softmax layer or activation."""
    last = model.layers[-1]
    library = keras if isinstance(model, keras.Model) else __import__("keras")
    if not last.weights:  # a layer of its own
        return library.Model(model.inputs, last.input)
    config = last.get_config() | {"activation": "linear"}
    logits = type(last).from_config(config)
    output = logits(last.input)
    logits.set_weights(last.get_weights())
    return library.Model(model.inputs, output)


def with_new_head(model: Any, classes: int, seed: int) -> Any:
    """The same model with logits out, its last layer replaced by an untrained one for so many classes."""
    if ends_in_softmax(model):
        model = without_softmax(model)
    last = model.layers[-1]
    if type(last).__name__ != "Dense":
        raise UserError(
            f"the Keras model ends in a {type(last).__name__} layer: only a Dense one at the end can give way to a new "
            "head."
        )
    library = keras if isinstance(model, keras.Model) else __import__("keras")
    library.utils.set_random_seed(seed)
    return library.Model(model.inputs, library.layers.Dense(classes, name=last.name)(last.input))


def quantize_aware(model: keras.Model, calibration: np.ndarray) -> keras.Model:
    """A copy of `model` with fake quantisation, its activation ranges set from real inputs.

    tensorflow-model-optimization starts every activation range at +-6 and moves it by 0.1 % a batch, so a short
    training would end with ranges that have little to do with the network. Here they start at the extremes that
    the float model shows on `calibration` (float32 [n, h, w, c], as the network takes them).
    """
    try:
        with quiet():
            aware = tfmot.quantization.keras.quantize_model(model)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"tensorflow-model-optimization cannot quantise this model ({str(error).splitlines()[0]}): it takes flat "
            "functional tf-keras models; use --quantization ptq."
        ) from error
    ranges = _activation_ranges(model, calibration)
    for layer in aware.layers:
        low, high = ranges.get(layer.name.removeprefix("quant_"), (calibration.min(), calibration.max()))
        by_name = {v.name.split(":")[0].split("/")[-1]: v for v in layer.variables}
        for name, variable in by_name.items():
            if not name.endswith(("_min", "_max")):
                continue
            sign = -1.0 if name.endswith("_min") else 1.0
            weights = by_name.get(name[:-4])
            if weights is not None:  # its range follows it in training; set it for a network that is trained no more
                axes = tuple(range(len(weights.shape) - 1)) if variable.shape.rank else None
                variable.assign(sign * np.abs(weights.numpy()).max(axis=axes))
            else:
                variable.assign(max(sign * low, sign * high, 0.0) * sign)
    return aware


def _activation_ranges(model: keras.Model, calibration: np.ndarray) -> dict[str, tuple[float, float]]:
    """Smallest and largest output of every layer over the calibration inputs, by layer name."""
    names = [layer.name for layer in model.layers]
    probe = keras.Model(model.inputs, [layer.output for layer in model.layers])
    extremes = tf.function(lambda x: [(tf.reduce_min(y), tf.reduce_max(y)) for y in probe(x, training=False)])
    seen = []
    for first in range(0, len(calibration), _CALIBRATION_BATCH):
        seen.append(np.array(extremes(tf.constant(calibration[first : first + _CALIBRATION_BATCH]))))
    low, high = np.min([s[:, 0] for s in seen], axis=0), np.max([s[:, 1] for s in seen], axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


def to_tflite(aware: keras.Model) -> bytes:
    """The trained fake-quantised model as integers; its ranges are those that it was trained with."""
    return _convert(aware, None)


def post_training(model: Any, calibration: np.ndarray) -> bytes:
    """Post-training quantisation; activation ranges are those seen on `calibration` (float32 [n, h, w, c])."""
    return _convert(model, calibration)


def _convert(model: Any, calibration: np.ndarray | None) -> bytes:
    shape = (1, *tuple(model.inputs[0].shape)[1:])
    forward = tf.function(lambda x: model(x, training=False), input_signature=[tf.TensorSpec(shape, tf.float32)])
    with quiet():
        # Without the model as second argument the graph is frozen directly; with it, it goes through a SavedModel on
        # disk, which takes a minute for the same result.
        converter = tf.lite.TFLiteConverter.from_concrete_functions([forward.get_concrete_function()])
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.inference_input_type = converter.inference_output_type = tf.int8
        # Boards that predate per-channel FULLY_CONNECTED would compute garbage from it.
        converter._experimental_disable_per_channel_quantization_for_dense_layers = True
        if calibration is not None:
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.representative_dataset = lambda: ([x[None].astype(np.float32)] for x in calibration)
        try:
            return converter.convert()
        except Exception as error:  # the converter raises many kinds
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UserError(f"TensorFlow's converter cannot turn this model into int8: {reason}") from error
