"""The ops of a network as a device image's PLAN has them, for the commands that count what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from converters import device_image
from converters.device_image import Preprocessing
from converters.plan import compile_plan
from converters.tflite_model import add_headroom, read_graph

KINDS = (
    "", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "MEAN", "MAX_POOL_2D", "AVERAGE_POOL_2D", "PAD",
    "SOFTMAX", "QUANTIZE", "RELU6", "TABLE", "BROADCAST_ADD", "SUB", "MUL", "PLACE", "PICK", "TRANSPOSE_CONV",
    "MINIMUM", "MAXIMUM", "PRELU",
)  # fmt: skip


@dataclass(frozen=True)
class PlanOp:
    """kind: one of KINDS. shape: height x width x channels of the first input and of the output, and the window."""

    kind: str
    shape: str


def plan_ops(tflite: bytes) -> list[PlanOp]:
    """The ops of the plan, in order."""
    words = compile_plan(read_graph(tflite)).words
    tensors = words[8 : 8 + 5 * words[0]].reshape(-1, 5)
    ops, at = [], int(words[5])
    for _ in range(words[1]):
        kind, length, first, _, out = (int(v) for v in words[at : at + 5])
        kernel = f" {words[at + 7]}x{words[at + 8]}/{words[at + 9]}" if kind in (1, 2, 6, 7) else ""
        shapes = ("x".join(map(str, tensors[t][1:4])) for t in (first, out))
        ops.append(PlanOp(KINDS[kind], " -> ".join(shapes) + kernel))
        at += length
    return ops


def image_of(tflite: Path) -> bytes:
    """A device image of a .tflite file, with headroom for probes of up to 4. Raises UserError, as conversion does."""
    return device_image.build(add_headroom(tflite.read_bytes(), 4), Preprocessing(), source=str(tflite))
