"""How far the runtimes are from TFLM, op by op: the table of docs/numerics.md.

``PYTHONPATH=. python tests/op_numerics.py [--cases 40]`` makes models of one op with random scales and data and runs
each on the tflite-micro wheel, tflite-runtime and LiteRT; FILES are whole networks, which get that many random images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ai_edge_litert.interpreter as litert
import click
import flatbuffers
import numpy as np
import tflite_runtime.interpreter as tflite_runtime
from ai_edge_litert import schema_py_generated as schema
from oracles import random_pixels
from tflite_micro import runtime as tflm

from converters.tflite_model import add_headroom, io_spec, read_graph

Rng = np.random.Generator


@dataclass
class Value:
    """A tensor: an activation if data is None, of int8 unless data says otherwise."""

    shape: Sequence[int]
    scale: float | Sequence[float] = 0.0
    zero_point: int = 0
    data: np.ndarray | None = None


def one_op(kind: str, version: int, inputs: list[Value], out: Value, options: str = "", **fields) -> bytes:
    """A model of a single op; its options table is named without "Options" ("" for none)."""
    model, sub, op, code = schema.ModelT(), schema.SubGraphT(), schema.OperatorT(), schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, kind)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [sub], [schema.BufferT()]
    sub.tensors, sub.operators = [], [op]
    for i, value in enumerate([*inputs, out]):
        t = schema.TensorT()
        t.name, t.shape, t.buffer, t.type = f"t{i}", list(value.shape), 0, schema.TensorType.INT8
        if value.data is not None:
            t.type = schema.TensorType.INT8 if value.data.dtype == np.int8 else schema.TensorType.INT32
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(value.data.tobytes(), np.uint8)
            t.buffer = len(model.buffers)
            model.buffers.append(buffer)
        if np.any(value.scale):
            q = schema.QuantizationParametersT()
            q.scale = np.atleast_1d(np.float32(value.scale))
            q.zeroPoint = np.full(len(q.scale), value.zero_point, np.int64)
            q.quantizedDimension = len(value.shape) - 1 if kind == "DEPTHWISE_CONV_2D" else 0
            t.quantization = q
        sub.tensors.append(t)
    op.inputs, op.outputs = list(range(len(inputs))), [len(inputs)]
    if options:
        table = getattr(schema, f"{options}OptionsT")()
        for name, value in fields.items():
            setattr(table, name, value)
        op.builtinOptionsType, op.builtinOptions = getattr(schema.BuiltinOptions, f"{options}Options"), table
    sub.inputs = [i for i, v in enumerate(inputs) if v.data is None]
    sub.outputs = op.outputs
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


# -- one random case of each op: model and inputs ----------------------------------------------------------------------


def scale(rng: Rng) -> float:
    return float(np.exp(rng.uniform(np.log(0.003), np.log(0.3))))


def zero(rng: Rng) -> int:
    return int(rng.integers(-128, 128))


def noise(rng: Rng, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


def every_value() -> np.ndarray:
    return np.arange(-128, 128).astype(np.int8).reshape(1, 256)


def every_pair() -> list[np.ndarray]:
    a, b = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    return [a.astype(np.int8).reshape(1, 256, 256, 1), b.astype(np.int8).reshape(1, 256, 256, 1)]


def unary(kind: str, options: str, version: int, out: tuple[float, int] | None, **fields) -> Callable:
    def case(rng: Rng):
        x = Value((1, 256), scale(rng), zero(rng))
        y = Value((1, 256), *(out or (x.scale * rng.uniform(0.5, 2), zero(rng))))
        values = {k: v(rng) for k, v in fields.items()}
        return one_op(kind, version, [x], y, options, **values), [every_value()]

    return case


def binary(kind: str, options: str) -> Callable:
    def case(rng: Rng):
        a, b = (Value((1, 256, 256, 1), scale(rng), zero(rng)) for _ in range(2))
        real = a.scale * b.scale * 60 if kind == "MUL" else a.scale + b.scale
        out = Value(a.shape, real * rng.uniform(0.5, 1.2), zero(rng))
        return one_op(kind, 2, [a, b], out, options), every_pair()

    return case


def weighted(
    kind: str, options: str, shape: tuple[int, ...], depth: int, out_shape: tuple[int, ...], **fields
) -> Callable:
    """shape: of the filter."""

    def case(rng: Rng):
        x = Value((1, 12, 12, 16) if len(shape) == 4 else (1, shape[1]), scale(rng), zero(rng))
        channels = shape[3] if kind == "DEPTHWISE_CONV_2D" else shape[0]
        groups = 1 if kind == "FULLY_CONNECTED" else channels
        scales = [scale(rng) / 10 for _ in range(groups)]
        w = Value(shape, scales, 0, noise(rng, *shape).clip(-127))
        bias_scale = np.float32(x.scale) * np.float32(scales)
        bias = Value((channels,), bias_scale, 0, rng.integers(-9999, 9999, channels).astype(np.int32))
        spread = x.scale * max(scales) * 74 * 90 * np.sqrt(depth)
        out = Value(out_shape, spread / 60 * rng.uniform(0.5, 1.5), zero(rng))
        inputs, version = [x, w, bias], 3
        if kind == "TRANSPOSE_CONV":
            inputs = [Value((4,), data=np.array(out_shape, np.int32)), w, x, bias]
        elif kind == "FULLY_CONNECTED":
            version = 4
        return one_op(kind, version, inputs, out, options, **fields), [noise(rng, *x.shape)]

    return case


def mean(rng: Rng):
    x = Value((1, 7, 9, 64), scale(rng), zero(rng))
    axes = Value((2,), data=np.array([1, 2], np.int32))
    out = Value((1, 64), x.scale * rng.uniform(0.1, 0.5), zero(rng))
    return one_op("MEAN", 2, [x, axes], out, "Reducer", keepDims=False), [noise(rng, *x.shape)]


def average_pool(rng: Rng):
    x = Value((1, 12, 12, 16), scale(rng), zero(rng))
    out = Value((1, 6, 6, 16), x.scale, x.zero_point)
    pool = {"filterHeight": 3, "filterWidth": 3, "strideH": 2, "strideW": 2, "padding": schema.Padding.SAME}
    return one_op("AVERAGE_POOL_2D", 2, [x], out, "Pool2D", **pool), [noise(rng, *x.shape)]


def softmax(rng: Rng):
    x, out = Value((64, 20), scale(rng), zero(rng)), Value((64, 20), 1 / 256, -128)
    return one_op("SOFTMAX", 2, [x], out, "Softmax", beta=1.0), [noise(rng, 64, 20)]


SAME_2 = {"strideH": 2, "strideW": 2, "padding": schema.Padding.SAME}
SAME_1 = {"strideH": 1, "strideW": 1, "padding": schema.Padding.SAME}

CASES: dict[str, Callable] = {
    "CONV_2D 3x3": weighted("CONV_2D", "Conv2D", (24, 3, 3, 16), 144, (1, 12, 12, 24), **SAME_1),
    "DEPTHWISE_CONV_2D 3x3": weighted(
        "DEPTHWISE_CONV_2D", "DepthwiseConv2D", (1, 3, 3, 16), 9, (1, 12, 12, 16), **SAME_1, depthMultiplier=1
    ),
    "FULLY_CONNECTED": weighted("FULLY_CONNECTED", "FullyConnected", (500, 256), 256, (1, 500)),
    "TRANSPOSE_CONV 3x3": weighted("TRANSPOSE_CONV", "TransposeConv", (8, 3, 3, 16), 36, (1, 24, 24, 8), **SAME_2),
    "ADD": binary("ADD", "Add"),
    "SUB": binary("SUB", "Sub"),
    "MUL": binary("MUL", "Mul"),
    "MEAN": mean,
    "AVERAGE_POOL_2D": average_pool,
    "SOFTMAX": softmax,
    "QUANTIZE": unary("QUANTIZE", "Quantize", 2, None),
    "RELU": unary("RELU", "", 2, None),
    "RELU6, scales differ": unary("RELU6", "", 2, None),
    "HARD_SWISH": unary("HARD_SWISH", "HardSwish", 1, None),
    "LEAKY_RELU": unary("LEAKY_RELU", "LeakyRelu", 2, None, alpha=lambda rng: float(rng.uniform(0, 0.9))),
    "LOGISTIC": unary("LOGISTIC", "", 2, (1 / 256, -128)),
    "TANH": unary("TANH", "", 2, (1 / 128, 0)),
}

# -- runtimes ----------------------------------------------------------------------------------------------------------


def run_tflm(model: bytes, inputs: list[np.ndarray]) -> np.ndarray:
    interpreter = tflm.Interpreter.from_bytes(model, arena_size=4 << 20)
    for i, x in enumerate(inputs):
        interpreter.set_input(x, i)
    interpreter.invoke()
    return interpreter.get_output(0).copy()


def run_lite(library, resolver: str) -> Callable[[bytes, list[np.ndarray]], np.ndarray]:
    def run(model: bytes, inputs: list[np.ndarray]) -> np.ndarray:
        kind = getattr(library.OpResolverType, resolver)
        interpreter = library.Interpreter(model_content=model, experimental_op_resolver_type=kind, num_threads=1)
        interpreter.allocate_tensors()
        for details, x in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(details["index"], x)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return run


RUNTIMES = {
    "tflite-runtime 2.14 reference": run_lite(tflite_runtime, "BUILTIN_REF"),
    "tflite-runtime 2.14 default": run_lite(tflite_runtime, "BUILTIN"),
    "LiteRT 2.3 reference": run_lite(litert, "BUILTIN_REF"),
    "LiteRT 2.3 without XNNPACK": run_lite(litert, "BUILTIN_WITHOUT_DEFAULT_DELEGATES"),
    "LiteRT 2.3 default (XNNPACK)": run_lite(litert, "BUILTIN"),
}


def compare(case: Callable, count: int, run: Callable) -> str:
    """Outputs that are not TFLM's, of how many, and by how much at most."""
    wrong = total = most = 0
    for seed in range(count):
        model, inputs = case(np.random.default_rng(seed))
        wanted, got = (f(model, inputs).astype(int).ravel() for f in (run_tflm, run))
        wrong, total, most = (
            wrong + int((wanted != got).sum()),
            total + wanted.size,
            max(most, np.abs(wanted - got).max()),
        )
    return "=" if not wrong else f"{wrong:,} of {total:,} by {most}"


def network(path: Path) -> Callable:
    tflite = add_headroom(path.read_bytes(), 4)
    shape = io_spec(read_graph(tflite)).input_shape

    def case(rng: Rng):
        pixels = random_pixels(1, shape, int(rng.integers(1 << 30)))
        return tflite, [(pixels.astype(np.int16) - 128).astype(np.int8)]

    return case


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--cases", type=click.IntRange(1), default=40, show_default=True)
@click.option("--op", "only", default="", help="Ops that begin so.")
def main(files: tuple[Path, ...], cases: int, only: str) -> None:
    click.echo("| differs from TFLM | " + " | ".join(RUNTIMES) + " |")
    click.echo("|" + "---|" * (len(RUNTIMES) + 1))
    for name, case in {f.stem: network(f) for f in files}.items() if files else CASES.items():
        if name.startswith(only):
            click.echo(f"| {name} | " + " | ".join(compare(case, cases, run) for run in RUNTIMES.values()) + " |")


if __name__ == "__main__":
    main()
