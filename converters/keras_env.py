"""TensorFlow as this project needs it: tf-keras for quantisation-aware training, and quiet.

Import `tf`, `keras` and `tfmot` from here and nowhere else: TF_USE_LEGACY_KERAS has to be set before TensorFlow is
first imported (tensorflow-model-optimization works with tf-keras only).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

if "tensorflow" in sys.modules and os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
    raise ImportError("set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported")

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the networks are tiny, and the figures should not depend on a GPU
warnings.filterwarnings("ignore", module=r"tensorflow.*|tf_keras.*|keras.*")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what TensorFlow's C++ prints off stderr (its log level does not reach all of it)."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


with quiet():
    # tflite-runtime first: imported after TensorFlow it cannot read a model's signatures any more.
    import tflite_runtime.interpreter  # noqa: F401
    import tensorflow as tf  # isort: skip
    import tensorflow_model_optimization as tfmot
    import tf_keras as keras

tf.get_logger().setLevel("ERROR")
logging.getLogger("absl").setLevel(logging.ERROR)

__all__ = ["keras", "quiet", "tf", "tfmot"]
