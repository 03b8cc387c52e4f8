"""The native board against both oracles: logits, and the output of every single op."""

from __future__ import annotations

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from app_library import SANITIZE, kernel_set, kernel_sets
from op_numerics import Value, every_value, one_op
from oracles import random_pixels, tflite_reference, tflm_reference

from converters import device_image
from converters.device_image import Preprocessing
from converters.fixed_point import logistic_table, tanh_table
from converters.tflite_model import WEIGHT_OPS, read_graph
from pipeline.targets.boards import open_board

MOST = 1 << 15  # outputs that an image may have


def logits_difference(tflite: bytes, seed: int, inputs: int = 8) -> tuple[str | None, bool]:
    """What is not equal (None: nothing) with any kernels, and whether the outputs vary; tflite has its headroom."""
    image = device_image.build(tflite, Preprocessing())
    logits = {}
    for kernels in kernel_sets():
        with kernel_set(kernels):
            board = open_board("native", image, threads=1, sanitize=SANITIZE)
        try:
            spec = board.image.input
            pixels = random_pixels(inputs, (spec.height, spec.width, spec.channels), seed)
            board.write_samples(0, pixels, np.zeros(inputs))
            board.select(range(inputs))
            logits[kernels], quantised = board.logits(), board.image.quantize_pixels(pixels)
        finally:
            board.close()
    oracles = {"tflite-micro": tflm_reference, "tflite-runtime BUILTIN_REF": tflite_reference}
    for name, oracle in oracles.items():
        wanted = oracle(tflite, quantised).astype(int)
        for kernels, found in logits.items():
            count = int((wanted != found).sum())
            if count and not (oracle is tflite_reference and sigmoids_differ(tflite)):
                most = int(np.abs(wanted - found).max())
                return f"{count} of {found.size} outputs of {kernels} differ from {name}, by up to {most}", True
    return None, bool(found.std(axis=0).max() > 0)


def sigmoids_differ(tflite: bytes) -> bool:
    """Whether TFLite's table of a LOGISTIC or TANH, made in floating point, is not TFLM's: one in 2,000 is not.

    test_fixed_point.py shows that ours are TFLM's.
    """
    graph = read_graph(tflite)
    for op in graph.ops:
        if op.kind in ("LOGISTIC", "TANH"):
            x, out = (graph.tensors[t[0]] for t in (op.inputs, op.outputs))
            model = one_op(
                op.kind, 2, [Value((1, 256), float(x.scale), x.zero_point)],
                Value((1, 256), float(out.scale), out.zero_point),
            )  # fmt: skip
            table = logistic_table if op.kind == "LOGISTIC" else tanh_table
            lite = tflite_reference(model, every_value()[None, 0])[0]
            if (lite != table(float(x.scale), x.zero_point)).any():
                return True
    return False


def differing_op(tflite: bytes, seed: int, last: int = 0) -> str | None:
    """The first op, of all or the last few, whose output is not equal: each in turn is made the end of the network."""
    graph = read_graph(tflite)
    for op in graph.ops[-last:]:
        out = graph.tensors[op.outputs[0]]
        size = int(np.prod(out.shape))
        trained = any(o.kind in WEIGHT_OPS for o in graph.ops[: op.index + 1])
        if op.kind == "RESHAPE" or not trained or not 2 <= size <= MOST or out.scale >= 16:
            continue
        found, _ = logits_difference(cut_after(tflite, op.index), seed, inputs=min(4, 2 * MOST // size))
        if found:
            return f"{graph.place(op)}: {found}"
    return None


def cut_after(tflite: bytes, index: int) -> bytes:
    """The network up to an op, whose output is flattened."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    sub = model.subgraphs[0]
    sub.operators = sub.operators[: index + 1]
    last = sub.operators[-1].outputs[0]
    out = sub.tensors[last]
    shape = np.array([1, np.prod(out.shape)], np.int32)
    data = schema.BufferT()
    data.data = np.frombuffer(shape.tobytes(), np.uint8)
    model.buffers.append(data)
    flat, size = schema.TensorT(), schema.TensorT()
    flat.name, flat.shape, flat.type, flat.quantization = b"flat", shape, out.type, out.quantization
    size.name, size.shape, size.type, size.buffer = b"size", [2], schema.TensorType.INT32, len(model.buffers) - 1
    sub.tensors += [flat, size]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RESHAPE
    code.version = 1
    model.operatorCodes.append(code)
    reshape = schema.OperatorT()
    reshape.opcodeIndex = len(model.operatorCodes) - 1
    reshape.inputs, reshape.outputs = [last, len(sub.tensors) - 1], [len(sub.tensors) - 2]
    reshape.builtinOptionsType, reshape.builtinOptions = schema.BuiltinOptions.ReshapeOptions, schema.ReshapeOptionsT()
    reshape.builtinOptions.newShape = shape
    sub.operators.append(reshape)
    sub.outputs = reshape.outputs
    model.signatureDefs = None
    builder = flatbuffers.Builder(len(tflite))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
