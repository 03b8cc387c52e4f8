"""Networks in the shape of the public ones: accepted, and every op of each bit-equal to both oracles."""

import numpy as np
import pytest
from app_library import SANITIZE
from architectures import ARCHITECTURES, mobilenet_v3, shufflenet, unet
from oracle_comparison import differing_op, logits_difference
from oracles import random_pixels, tflite_reference, tflm_reference
from random_models import to_int8

from converters import device_image
from converters.device_image import Preprocessing
from converters.errors import UserError
from converters.keras_env import keras
from converters.plan import compile_plan
from converters.tflite_model import add_headroom, check_trainable
from pipeline.targets.boards import open_board
from pipeline.targets.target import NEAREST, Update

SHAPE = (22, 19, 3)


def classifier(body) -> bytes:
    rng = np.random.default_rng(5)
    keras.utils.set_random_seed(5)
    image = keras.Input(SHAPE, batch_size=1)
    features = keras.layers.GlobalAveragePooling2D()(body(image, rng))
    return to_int8(keras.Model(image, keras.layers.Dense(10)(features)), SHAPE, rng)


@pytest.mark.parametrize("body", ARCHITECTURES, ids=lambda body: body.__name__)
def test_every_op_equals_oracles(body):
    tflite = add_headroom(classifier(body), 4)
    found, varies = logits_difference(tflite, seed=7, inputs=40)
    assert not found
    assert varies, "constant outputs prove nothing"
    assert not differing_op(tflite, seed=8)


@pytest.mark.parametrize("body", [mobilenet_v3, unet], ids=lambda body: body.__name__)
def test_training_keeps_it_equal(body):
    """Tables, constants and the filter of TRANSPOSE_CONV stay what they are while weights move around them."""
    tflite = add_headroom(classifier(body), 4)
    board = open_board("native", device_image.build(tflite, Preprocessing()), threads=2, sanitize=SANITIZE)
    try:
        pixels = random_pixels(16, SHAPE, seed=3)
        board.write_samples(0, pixels, np.zeros(16))
        board.select(range(16))
        before = board.logits()
        board.probe(5, 3)
        assert (board.logits() == before).all()
        assert board.update(Update(NEAREST, 0, (1, 2, 3), (20000, -30000, 25000))).changed > 0
        adapted, inputs = board.read_tflite(), board.image.quantize_pixels(pixels)
        assert (board.logits() != before).any()
        np.testing.assert_array_equal(board.logits(), tflm_reference(adapted, inputs))
        np.testing.assert_array_equal(board.logits(), tflite_reference(adapted, inputs))
    finally:
        board.close()


def test_a_channel_shuffle_is_refused_by_name():
    with pytest.raises(UserError, match=r"an op that the int8 runner does not have: operator .* TRANSPOSE"):
        compile_plan(check_trainable(classifier(shufflenet)))
