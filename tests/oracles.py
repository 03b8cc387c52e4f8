"""What the int8 runner has to equal, bit for bit: tflite-runtime's reference kernels and upstream TFLM."""

from __future__ import annotations

import numpy as np
from tflite_micro import runtime as tflm
from tflite_runtime.interpreter import Interpreter, OpResolverType


def tflite_reference(tflite: bytes, inputs: np.ndarray) -> np.ndarray:
    """int8 [n, classes] for int8 inputs [n, h, w, c]."""
    interpreter = Interpreter(model_content=tflite, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    input_at = interpreter.get_input_details()[0]["index"]
    output_at = interpreter.get_output_details()[0]["index"]
    outputs = []
    for x in inputs:
        interpreter.set_tensor(input_at, x[None])
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(output_at).reshape(-1))
    return np.array(outputs)


def tflm_reference(tflite: bytes, inputs: np.ndarray) -> np.ndarray:
    interpreter = tflm.Interpreter.from_bytes(tflite, arena_size=32 << 20)
    outputs = []
    for x in inputs:
        interpreter.set_input(x[None], 0)
        interpreter.invoke()
        outputs.append(interpreter.get_output(0).reshape(-1).copy())
    return np.array(outputs)


def random_pixels(count: int, shape: tuple[int, int, int], seed: int) -> np.ndarray:
    """uint8 [n, h, w, c]: noise, and smooth images (noise alone saturates nothing and excites little)."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (count, *shape))
    ramps = np.linspace(0, 255, shape[0])[:, None, None] * rng.random((count, 1, 1, shape[2]))
    smooth = ramps + np.linspace(0, 255, shape[1])[None, :, None] * rng.random((count, 1, 1, shape[2]))
    mix = rng.random((count, 1, 1, 1))
    return np.clip(mix * noise + (1 - mix) * smooth, 0, 255).astype(np.uint8)
