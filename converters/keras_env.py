"""TensorFlow as this project needs it: tf-keras for quantisation-aware training, and quiet.

Import `tf`, `keras` and `tfmot` from here and nowhere else: TF_USE_LEGACY_KERAS has to be set before TensorFlow is
first imported (tensorflow-model-optimization works with tf-keras only).
"""

from __future__ import annotations

import os
import sys
import warnings

if "tensorflow" in sys.modules and os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
    raise ImportError("set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported")

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the networks are tiny, and the figures should not depend on a GPU
warnings.filterwarnings("ignore", module=r"tensorflow.*|tf_keras.*|keras.*")

import tensorflow as tf  # noqa: E402
import tensorflow_model_optimization as tfmot  # noqa: E402
import tf_keras as keras  # noqa: E402

tf.get_logger().setLevel("ERROR")

__all__ = ["keras", "tf", "tfmot"]
