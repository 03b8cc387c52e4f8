"""The C app's forward pass against tflite-runtime BUILTIN_REF and the tflite-micro wheel, bit for bit."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from app_library import SANITIZE
from oracles import random_pixels, tflite_reference, tflm_reference

from converters import device_image
from converters.device_image import Preprocessing
from converters.tflite_model import SUPPORTED_OPS, add_headroom, read_graph
from pipeline.targets.boards import open_board
from pipeline.targets.target import NEAREST, Update

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*_*.tflite"))


def open_model(tflite: bytes, threads: int = 2):
    image = device_image.build(add_headroom(tflite, 4), Preprocessing())
    return open_board("native", image, threads=threads, sanitize=SANITIZE)


def board_logits(board, pixels):
    board.write_samples(0, pixels, np.zeros(len(pixels)))
    board.select(range(len(pixels)))
    return board.logits()


def assert_equals_oracles(board, pixels, *, least_spread):
    logits = board_logits(board, pixels)
    tflite, inputs = board.read_tflite(), board.image.quantize_pixels(pixels)
    np.testing.assert_array_equal(logits, tflite_reference(tflite, inputs))
    np.testing.assert_array_equal(logits, tflm_reference(tflite, inputs))
    assert logits.std(axis=0).mean() >= least_spread, "constant logits prove nothing"
    return logits


@pytest.mark.parametrize("model", FIXTURES, ids=lambda p: p.stem)
def test_networks_equal_oracles_before_and_after_updates(model):
    board = open_model(model.read_bytes())
    try:
        pixels = random_pixels(200, board_shape(board), seed=1)
        first = assert_equals_oracles(board, pixels, least_spread=1.0)
        for step in range(3):
            seeds = tuple(range(8 * step, 8 * step + 8))
            result = board.update(Update(NEAREST, 0, seeds, tuple(20000 * (-1) ** j for j in range(8))))
            assert result.changed > 0.1 * board.info.weights
        second = assert_equals_oracles(board, pixels, least_spread=0.1)
        assert (first != second).any()
    finally:
        board.close()


def board_shape(board):
    spec = board.image.input
    return spec.height, spec.width, spec.channels


# -- op by op: small random networks through the TFLite converter ------------------------------------------------------


def to_int8(model, shape, seed=0, low=-1.0):
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.uniform(low, 1, (1, *shape)).astype(np.float32)] for _ in range(20)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    converter._experimental_disable_per_channel_quantization_for_dense_layers = True
    return converter.convert()


def layers():
    import tf_keras

    return tf_keras.layers


def conv(x, filters=7, **options):
    return layers().Conv2D(filters, **{"kernel_size": 3, "bias_initializer": "random_normal", **options})(x)


def depthwise(x, **options):
    return layers().DepthwiseConv2D(**{"kernel_size": 3, "bias_initializer": "random_normal", **options})(x)


NETWORKS = {
    "conv_same": lambda x: conv(x, padding="same", activation="relu"),
    "conv_stride_2_same": lambda x: conv(x, strides=2, padding="same"),
    "conv_5x3_stride_3x2": lambda x: conv(x, kernel_size=(5, 3), strides=(3, 2), padding="same"),
    "conv_dilated": lambda x: conv(x, dilation_rate=2, padding="same", activation="relu6"),
    "conv_valid_without_bias": lambda x: conv(x, use_bias=False),
    "conv_1x1": lambda x: conv(x, kernel_size=1, filters=33),
    "conv_1x1_stride_2": lambda x: conv(x, kernel_size=1, strides=2),
    "depthwise": lambda x: depthwise(conv(x), padding="same", activation="relu6"),
    "depthwise_multiplier_stride": lambda x: depthwise(x, depth_multiplier=3, strides=2, padding="same"),
    "depthwise_dilated": lambda x: depthwise(conv(x), dilation_rate=2, padding="valid"),
    "add_of_different_scales": lambda x: layers().Add()([conv(x, 4, padding="same"), 9 * conv(x, 4, padding="same")]),
    "add_relu": lambda x: layers().ReLU()(layers().Add()([conv(x, 4, padding="same"), conv(x, 4, padding="same")])),
    "max_pool": lambda x: layers().MaxPool2D(3, 2, padding="same")(conv(x)),
    "max_pool_valid": lambda x: layers().MaxPool2D(2)(conv(x, activation="relu")),
    "average_pool": lambda x: layers().AveragePooling2D(3, 2, padding="same")(conv(x)),
    "average_pool_valid": lambda x: layers().AveragePooling2D((2, 4))(x),
    "pad": lambda x: conv(layers().ZeroPadding2D(((1, 2), (3, 0)))(conv(x)), strides=2),
    "mean": lambda x: layers().GlobalAveragePooling2D()(conv(x, 12)),
    "mean_keepdims": lambda x: conv(layers().GlobalAveragePooling2D(keepdims=True)(conv(x)), kernel_size=1),
    "mean_height": lambda x: mean_over(conv(x), [1]),
    "mean_channels": lambda x: mean_over(conv(x), [3]),
    "mean_width_channels": lambda x: mean_over(conv(x), [2, 3]),
    "reshape": lambda x: layers().Reshape((9, 11, -1))(conv(x, 4, padding="same")),
    "softmax_inside": lambda x: layers().Softmax()(3 * layers().Flatten()(conv(x, 4, strides=5))),
    "softmax_rows": lambda x: layers().Softmax()(conv(x, 5)),
    # MEAN takes no fused activation. RELU6 is served where its scales are equal: on inputs that never are negative.
    "relu_alone": lambda x: layers().ReLU()(mean_over(conv(x, 24), [1])),
    "relu6_alone": lambda x: layers().ReLU(6.0)(mean_over(conv(x, 24, activation="relu"), [1])),
}


def mean_over(x, axes):
    import tensorflow as tf
    import tf_keras

    return tf_keras.layers.Lambda(lambda t: tf.reduce_mean(t, axes))(x)


@cache
def build_network(name, seed=3, shape=(11, 9, 3)):
    import tf_keras

    tf_keras.utils.set_random_seed(seed)
    image = tf_keras.Input(shape, batch_size=1)
    features = layers().Flatten()(NETWORKS[name](image))
    return to_int8(tf_keras.Model(image, layers().Dense(10)(features)), shape)


def test_every_op_occurs():
    kinds = {op.kind for name in NETWORKS for op in read_graph(build_network(name)).ops}
    assert kinds | {"QUANTIZE", "PADV2"} == set(SUPPORTED_OPS)  # QUANTIZE has its own test, PADV2 shares PAD's kernel


@pytest.mark.parametrize("name", NETWORKS)
def test_ops_equal_oracles(name):
    board = open_model(build_network(name))
    try:
        assert_equals_oracles(board, random_pixels(60, (11, 9, 3), seed=2), least_spread=0.5)
    finally:
        board.close()


def with_quantize_in_front(tflite: bytes) -> bytes:
    """The same network behind an int8-to-int8 QUANTIZE of its input."""
    import copy

    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    sub = model.subgraphs[0]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.QUANTIZE
    code.version = 2
    model.operatorCodes.append(code)
    image = copy.deepcopy(sub.tensors[sub.inputs[0]])
    image.name, image.buffer = b"image", 0
    image.quantization.scale = [image.quantization.scale[0] * 1.7]
    image.quantization.zeroPoint = [-11]
    sub.tensors.append(image)
    op = schema.OperatorT()
    op.opcodeIndex = len(model.operatorCodes) - 1
    op.inputs, op.outputs = [len(sub.tensors) - 1], [sub.inputs[0]]
    sub.operators.insert(0, op)
    sub.inputs = op.inputs
    for signature in model.signatureDefs or []:
        signature.inputs[0].tensorIndex = op.inputs[0]
    builder = flatbuffers.Builder(len(tflite))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def test_quantize_equals_oracles():
    board = open_model(with_quantize_in_front(build_network("conv_same")))
    try:
        assert_equals_oracles(board, random_pixels(60, (11, 9, 3), seed=2), least_spread=0.5)
    finally:
        board.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_result_does_not_depend_on_threads(threads):
    tflite = FIXTURES[0].read_bytes()
    pixels = random_pixels(31, (32, 32, 3), seed=5)
    labels = np.arange(31) % 10
    results = []
    for n in (2, threads):
        board = open_model(tflite, threads=n)
        board.write_samples(0, pixels, labels)
        board.select(range(31))
        results.append((board.loss(), board.probe(77, 3), board.weights_crc()))
        board.close()
    assert results[0] == results[1]
    assert results[0][2] == board.info.weights_crc
