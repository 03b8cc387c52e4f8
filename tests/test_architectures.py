"""Networks in the shape of the public ones: accepted, and every op of each bit-equal to both oracles."""

import numpy as np
import pytest
from architectures import ARCHITECTURES, shufflenet
from oracle_comparison import differing_op, logits_difference
from random_models import to_int8

from converters.errors import UserError
from converters.keras_env import keras
from converters.plan import compile_plan
from converters.tflite_model import add_headroom, check_trainable

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


def test_a_channel_shuffle_is_refused_by_name():
    with pytest.raises(UserError, match=r"an op that the int8 runner does not have: operator .* TRANSPOSE"):
        compile_plan(check_trainable(classifier(shufflenet)))
