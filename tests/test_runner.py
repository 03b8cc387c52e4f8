"""The C app's forward pass against tflite-runtime BUILTIN_REF and the tflite-micro wheel, bit for bit."""

import copy
from functools import cache
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from app_library import SANITIZE
from oracle_comparison import differing_op
from oracles import random_pixels, tflite_reference, tflm_reference

from converters import device_image
from converters.device_image import Preprocessing
from converters.errors import UserError
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
    forward = tf.function(lambda x: model(x, training=False), input_signature=[tf.TensorSpec((1, *shape), tf.float32)])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([forward.get_concrete_function()])
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
    "hard_swish": lambda x: hard_swish(4 * conv(x)),
    "logistic": lambda x: layers().Activation("sigmoid")(6 * conv(x)),
    "tanh": lambda x: layers().Activation("tanh")(3 * conv(x)),
    "leaky_relu": lambda x: layers().LeakyReLU(0.3)(conv(x)),
    "swish": lambda x: layers().Activation("swish")(5 * conv(x)),
    "hard_sigmoid": lambda x: layers().Activation("hard_sigmoid")(4 * conv(x)),
    "maximum": lambda x: maximum(conv(x), mean_over(conv(x), [1, 2], True)),
    "prelu": lambda x: layers().PReLU("random_normal", shared_axes=[1, 2])(conv(x)),
    "prelu_everywhere": lambda x: layers().PReLU("random_normal")(conv(x)),
    "squeeze_and_excite": lambda x: squeeze_and_excite(conv(x, 12)),
    "mul": lambda x: layers().Multiply()([conv(x, 4), conv(x, 4, activation="relu6")]),
    "mul_of_rows_and_columns": lambda x: layers().Multiply()(
        [mean_over(conv(x), [1], True), mean_over(conv(x), [2], True)]
    ),
    "add_of_a_channel": lambda x: layers().Add()([conv(x, 1), 3 * conv(x, 5)]),
    "add_of_means": lambda x: layers().ReLU(6.0)(conv(x, 5) + mean_over(conv(x, 5), [1, 2], True)),
    "sub": lambda x: layers().Subtract()([conv(x, 4, padding="same"), 5 * conv(x, 4, padding="same")]),
    "sub_of_means": lambda x: layers().ReLU()(layers().Subtract()([mean_over(conv(x, 5), [1, 2], True), conv(x, 5)])),
    "constants_for_each_channel": lambda x: conv(x * np.float32([0.3, -1, 2]) - np.float32([0.1, 0.2, -0.7])),
    "constants_for_all": lambda x: conv(1.5 - layers().MaxPool2D(2)(x) * 0.3 + 0.2),
    "concatenate_channels": lambda x: layers().Concatenate()([conv(x, 3), conv(x, 5, activation="relu"), conv(x, 1)]),
    "concatenate_rows": lambda x: layers().Concatenate(1)([conv(x), mean_over(conv(x), [1], True)]),
    "concatenate_columns": lambda x: layers().Concatenate(2)([mean_over(conv(x), [2], True), conv(x)]),
    "concatenate_vectors": lambda x: layers().Concatenate()([mean_over(conv(x), [1, 2]), mean_over(conv(x), [1, 2])]),
    "upsample": lambda x: conv(layers().UpSampling2D((2, 3))(conv(x))),
    "resize_corners": lambda x: resize(conv(x), (5, 17), align_corners=True),
    "resize_plain": lambda x: resize(conv(x), (13, 4)),
    "slices": lambda x: conv(x, 8)[:, 1:, ::3, 2:5],
    "split": lambda x: split_and_join(conv(x, 6)),
    "transpose_conv": lambda x: transpose_conv(conv(x, strides=2), strides=2, padding="same"),
    "transpose_conv_valid": lambda x: transpose_conv(x, kernel_size=(4, 2), strides=(3, 2)),
    "transpose_conv_without_bias": lambda x: transpose_conv(x, kernel_size=2, strides=3, use_bias=False),
    "global_max_pool": lambda x: layers().GlobalMaxPool2D()(conv(x, 12)),
    "slice": lambda x: sliced(mean_over(conv(x, 12), [1], True)),
}


def hard_swish(x):
    return layers().Multiply()([x, layers().ReLU(6.0)(x + 3.0) * (1 / 6)])


def squeeze_and_excite(x):
    y = layers().GlobalAveragePooling2D(keepdims=True)(x)
    return layers().Multiply()(
        [x, conv(conv(y, 3, kernel_size=1, activation="relu"), 12, kernel_size=1, activation="sigmoid")]
    )


def maximum(*inputs):
    return layers().Maximum()(inputs)


def resize(x, size, **options):
    import tensorflow as tf

    return layers().Lambda(lambda t: tf.compat.v1.image.resize_nearest_neighbor(t, size, **options))(x)


def split_and_join(x):
    import tensorflow as tf

    return layers().Lambda(lambda t: tf.concat(tf.split(t, 3, axis=-1)[::-1], axis=1))(x)


def sliced(x):
    import tensorflow as tf

    return layers().Lambda(lambda t: tf.slice(tf.squeeze(t, 1), [0, 2, 1], [1, 4, 5]))(x)


def transpose_conv(x, filters=5, **options):
    return layers().Conv2DTranspose(filters, **{"kernel_size": 3, "bias_initializer": "random_normal", **options})(x)


def mean_over(x, axes, keepdims=False):
    import tensorflow as tf
    import tf_keras

    return tf_keras.layers.Lambda(lambda t: tf.reduce_mean(t, axes, keepdims))(x)


@cache
def build_network(name, seed=3, shape=(11, 9, 3)):
    import tf_keras

    tf_keras.utils.set_random_seed(seed)
    image = tf_keras.Input(shape, batch_size=1)
    features = layers().Flatten()(NETWORKS[name](image))
    return to_int8(tf_keras.Model(image, layers().Dense(10)(features)), shape)


def test_every_op_occurs():
    kinds = {op.kind for name in NETWORKS for op in read_graph(build_network(name)).ops}
    # QUANTIZE and SQUEEZE have their own tests, PADV2 shares PAD's kernel.
    assert kinds | {"QUANTIZE", "SQUEEZE", "PADV2"} == set(SUPPORTED_OPS)


@pytest.mark.parametrize("name", NETWORKS)
def test_ops_equal_oracles(name):
    tflite = add_headroom(build_network(name), 4)
    assert not differing_op(tflite, seed=4, last=3)  # a difference of 1 can drown in the layer behind
    board = open_model(tflite)
    try:
        assert_equals_oracles(board, random_pixels(60, (11, 9, 3), seed=2), least_spread=0.5)
    finally:
        board.close()


def edited(tflite: bytes, edit) -> bytes:
    """The flatbuffer after edit(model, its subgraph)."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    edit(model, model.subgraphs[0])
    builder = flatbuffers.Builder(len(tflite))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def operator_code(model, builtin: int, version: int) -> int:
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = version
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def quantize_in_front(model, sub) -> None:
    """An int8-to-int8 QUANTIZE of the input."""
    image = copy.deepcopy(sub.tensors[sub.inputs[0]])
    image.name, image.buffer = b"image", 0
    image.quantization.scale = [image.quantization.scale[0] * 1.7]
    image.quantization.zeroPoint = [-11]
    sub.tensors.append(image)
    op = schema.OperatorT()
    op.opcodeIndex = operator_code(model, schema.BuiltinOperator.QUANTIZE, 2)
    op.inputs, op.outputs = [len(sub.tensors) - 1], [sub.inputs[0]]
    sub.operators.insert(0, op)
    sub.inputs = op.inputs
    for signature in model.signatureDefs or []:
        signature.inputs[0].tensorIndex = op.inputs[0]


def squeeze_for_reshape(model, sub) -> None:
    """SQUEEZE in place of the RESHAPE of [1, 1, width, channels]."""
    codes = [code.builtinCode for code in model.operatorCodes]
    (op, *_) = (op for op in sub.operators if codes[op.opcodeIndex] == schema.BuiltinOperator.RESHAPE)
    op.opcodeIndex = operator_code(model, schema.BuiltinOperator.SQUEEZE, 1)
    op.inputs = op.inputs[:1]
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.SqueezeOptions, schema.SqueezeOptionsT()
    op.builtinOptions.squeezeDims = [1]


@pytest.mark.parametrize(("name", "edit"), [("conv_same", quantize_in_front), ("slice", squeeze_for_reshape)])
def test_edited_networks_equal_oracles(name, edit):
    board = open_model(edited(build_network(name), edit))
    try:
        assert_equals_oracles(board, random_pixels(60, (11, 9, 3), seed=2), least_spread=0.5)
    finally:
        board.close()


# What the runner refuses by name: an edit that makes a network so, and the words.
def set_option(kind, **options):
    def edit(model, sub) -> None:
        codes = [code.builtinCode for code in model.operatorCodes]
        for op in sub.operators:
            if codes[op.opcodeIndex] == getattr(schema.BuiltinOperator, kind):
                for name, value in options.items():
                    setattr(op.builtinOptions, name, value)

    return edit


def set_scale(kind, *, output: bool, **values):
    def edit(model, sub) -> None:
        codes = [code.builtinCode for code in model.operatorCodes]
        (op, *_) = (op for op in sub.operators if codes[op.opcodeIndex] == getattr(schema.BuiltinOperator, kind))
        quantization = sub.tensors[(op.outputs if output else op.inputs)[0]].quantization
        for name, value in values.items():
            setattr(quantization, name, [value])

    return edit


def share_constant_with_filter(model, sub) -> None:
    codes = [code.builtinCode for code in model.operatorCodes]
    (op, *_) = (op for op in sub.operators if codes[op.opcodeIndex] == schema.BuiltinOperator.CONV_2D)
    (mul, *_) = (op for op in sub.operators if codes[op.opcodeIndex] == schema.BuiltinOperator.MUL)
    sub.tensors[mul.inputs[1]].buffer = sub.tensors[op.inputs[1]].buffer


REFUSED = [
    ("leaky_relu", set_option("LEAKY_RELU", alpha=-0.5), "a negative slope"),
    ("concatenate_rows", set_option("CONCATENATION", fusedActivationFunction=1), "a fused activation"),
    ("concatenate_channels", set_option("CONCATENATION", axis=0), "concatenation of batches"),
    ("concatenate_channels", set_scale("CONCATENATION", output=True, scale=0.5), "different scales"),
    ("upsample", set_scale("RESIZE_NEAREST_NEIGHBOR", output=True, scale=0.5), "different scales"),
    ("slices", set_option("STRIDED_SLICE", shrinkAxisMask=1), "adds, drops or reverses"),
    ("logistic", set_scale("LOGISTIC", output=True, scale=0.5), "an output scale other than 1/256"),
    ("logistic", set_scale("LOGISTIC", output=False, scale=1e-9), "an input scale so coarse or so fine"),
    ("tanh", set_scale("TANH", output=True, zeroPoint=1), "an output scale other than 1/128"),
    ("hard_swish", set_scale("HARD_SWISH", output=True, scale=1e-5), "scales so far apart"),
    ("transpose_conv", set_option("TRANSPOSE_CONV", fusedActivationFunction=1), "a fused activation"),
    ("sub", set_scale("SUB", output=True, scale=1e-9), "an output scale so much finer"),
    ("constants_for_each_channel", share_constant_with_filter, "shares its bytes with weights"),
]


@pytest.mark.parametrize(("name", "edit", "words"), REFUSED)
def test_what_is_refused_names_the_op(name, edit, words):
    with pytest.raises(UserError, match=f"operator .*the int8 runner does not support .*{words}"):
        open_model(edited(build_network(name), edit))


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
