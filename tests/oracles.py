"""What the int8 runner has to equal, bit for bit, as functions: see pipeline.oracles."""

from __future__ import annotations

import numpy as np

from pipeline.oracles import TfliteInterpreter, TflmInterpreter
from pipeline.validate import random_pixels as random_pixels


def tflite_reference(tflite: bytes, inputs: np.ndarray) -> np.ndarray:
    """int8 [n, classes] for int8 inputs [n, h, w, c]."""
    interpreter = TfliteInterpreter(tflite)
    return np.array([interpreter.run(x) for x in inputs])


def tflm_reference(tflite: bytes, inputs: np.ndarray) -> np.ndarray:
    interpreter = TflmInterpreter(tflite)
    return np.array([interpreter.run(x) for x in inputs])
