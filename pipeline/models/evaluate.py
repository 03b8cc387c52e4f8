"""Accuracy of an int8 .tflite on the host, with tflite-runtime's fast kernels.

They differ from the exact reference kernels by a few output steps now and then, which an accuracy does not feel.
"""

from __future__ import annotations

import numpy as np
import tflite_runtime.interpreter as tflite_runtime

from converters.device_image import Preprocessing, input_spec
from converters.tflite_model import io_spec, read_graph
from pipeline.cli import progress
from pipeline.datasets import Split


def tflite_accuracy(tflite: bytes, split: Split, preprocessing: Preprocessing, title: str) -> float:
    """Share of right answers; pixels become int8 by the same table as on a board."""
    spec = input_spec(io_spec(read_graph(tflite)), preprocessing)
    # One thread: images are so small that threads mostly wait for each other.
    interpreter = tflite_runtime.Interpreter(model_content=tflite, num_threads=1)
    interpreter.allocate_tensors()
    source, sink = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    right = 0
    with progress(len(split), title, "image") as bar:
        for image, label in zip(split.images, split.labels, strict=True):
            pixels = np.stack([spec.lut[c][image[..., c]] for c in range(spec.channels)], axis=-1)
            interpreter.set_tensor(source, pixels[None])
            interpreter.invoke()
            right += int(np.argmax(interpreter.get_tensor(sink)) == label)
            bar.update()
    return right / len(split)
