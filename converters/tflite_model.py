"""Reading and patching int8 ``.tflite`` models: what can be trained, headroom, weights in index order.

A model is patched in place, byte for byte, wherever only numbers change; the flatbuffer is rebuilt only where its
structure does (``strip_softmax``). Schema: tensorflow/compiler/mlir/lite/schema/schema.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from converters.errors import UserError

# Ops that plan.py compiles for the int8 runner.
SUPPORTED_OPS = (
    "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "MEAN", "MAX_POOL_2D", "AVERAGE_POOL_2D",
    "PAD", "PADV2", "RESHAPE", "SOFTMAX", "QUANTIZE", "RELU", "RELU6", "HARD_SWISH", "LOGISTIC", "TANH", "LEAKY_RELU",
    "SUB", "MUL", "CONCATENATION", "RESIZE_NEAREST_NEIGHBOR", "TRANSPOSE_CONV", "REDUCE_MAX", "SQUEEZE",
    "SLICE", "STRIDED_SLICE", "SPLIT", "MINIMUM", "MAXIMUM", "PRELU",
)  # fmt: skip
# Ops whose filter is trained. TRANSPOSE_CONV's is not: classifiers hardly have it.
WEIGHT_OPS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")

HEADROOM_CANDIDATES = 9  # growths of a scale that add_headroom tries

_OP_NAMES = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}
_TYPE_NAMES = {v: k for k, v in vars(schema.TensorType).items() if not k.startswith("_")}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the graph; ``data`` is the (offset, size) of its constant bytes in the file, or None."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    scales: np.ndarray  # float32 [channels] or [1] or []
    zero_points: np.ndarray  # int64, like scales
    axis: int
    buffer: int
    data: tuple[int, int] | None
    scales_at: int  # offset of the scales in the file

    @property
    def scale(self) -> np.float32:
        return self.scales[0]

    @property
    def zero_point(self) -> int:
        return int(self.zero_points[0])


@dataclass(frozen=True)
class Op:
    index: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: object | None


@dataclass(frozen=True)
class Graph:
    """The only subgraph of a model, as far as running and training it is concerned."""

    raw: bytes
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def place(self, op: Op) -> str:
        """Where an op stands, for messages: its number, kind and the name of its output."""
        name = self.tensors[op.outputs[0]].name if op.outputs else "?"
        return f"operator {op.index + 1} of {len(self.ops)}, {op.kind} ('{shorten(name)}')"

    def constant(self, tensor: Tensor, dtype: np.dtype | type) -> np.ndarray:
        """The constant data of a tensor, in its shape (a copy)."""
        assert tensor.data is not None
        offset, size = tensor.data
        return np.frombuffer(self.raw, dtype, size // np.dtype(dtype).itemsize, offset).reshape(tensor.shape).copy()


@dataclass(frozen=True)
class Segment:
    """One trainable tensor: int8 filter ``count`` bytes long at ``offset`` in the .tflite file."""

    name: str
    op: str
    offset: int
    count: int


@dataclass(frozen=True)
class IoSpec:
    input_shape: tuple[int, int, int]  # height, width, channels
    input_scale: float
    input_zero_point: int
    classes: int
    output_scale: float
    output_zero_point: int


def shorten(name: str, limit: int = 60) -> str:
    """A tensor name that fits into a sentence (the converter joins all fused names with ';')."""
    name = name.split(";")[0]
    return name if len(name) <= limit else "..." + name[-limit:]


def read_graph(tflite: bytes, source: str = "the model") -> Graph:
    """Parse a .tflite file. Raises UserError when it is none or has more than one subgraph."""
    if len(tflite) < 8 or tflite[4:8] != b"TFL3":
        raise UserError(f"{source} is not a TensorFlow Lite model (no 'TFL3' identifier): give a .tflite file.")
    try:
        graph = _parse(tflite, source)
    except (struct.error, IndexError, ValueError, TypeError, AttributeError, UnicodeDecodeError) as e:
        raise UserError(f"{source} is damaged: its flatbuffer cannot be read ({e}). Make or copy it anew.") from e
    return graph


def _parse(tflite: bytes, source: str) -> Graph:
    model = schema.Model.GetRootAs(tflite, 0)
    if model.SubgraphsLength() < 1:
        raise UserError(f"{source} has no network in it: make or copy it anew.")
    if model.SubgraphsLength() > 1:
        raise UserError(f"{source} has several subgraphs (control flow); only a single one can be run and trained.")
    sub = model.Subgraphs(0)
    tensors = tuple(_parse_tensor(tflite, model, sub.Tensors(i), i) for i in range(sub.TensorsLength()))
    ops = []
    for i in range(sub.OperatorsLength()):
        op = sub.Operators(i)
        code = model.OperatorCodes(op.OpcodeIndex())
        builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        kind = _OP_NAMES.get(builtin, f"operator code {builtin}")
        if kind == "CUSTOM" and code.CustomCode():
            kind = f"CUSTOM {code.CustomCode().decode()}"
        ops.append(Op(i, kind, _ints(op, "Inputs"), _ints(op, "Outputs"), _options(op)))
    graph = Graph(tflite, tensors, tuple(ops), _ints(sub, "Inputs"), _ints(sub, "Outputs"))
    used = [t for op in graph.ops for t in op.inputs + op.outputs] + [*graph.inputs, *graph.outputs]
    if any(t < -1 or t >= len(tensors) for t in used):
        raise ValueError("a tensor index out of range")
    return graph


def _ints(table: object, field: str) -> tuple[int, ...]:
    return tuple(int(getattr(table, field)(i)) for i in range(getattr(table, field + "Length")()))


def _options(op: object) -> object | None:
    """The op's options as the schema's object of their type, by the schema's own union factory."""
    return schema.BuiltinOptionsCreator(op.BuiltinOptionsType(), op.BuiltinOptions())


def _parse_tensor(tflite: bytes, model: object, t: object, index: int) -> Tensor:
    q = t.Quantization()
    scales, zero_points, axis, scales_at = np.zeros(0, np.float32), np.zeros(0, np.int64), 0, 0
    if q is not None and q.ScaleLength():
        scales = q.ScaleAsNumpy().copy()
        zero_points = q.ZeroPointAsNumpy().copy() if q.ZeroPointLength() else np.zeros(len(scales), np.int64)
        axis = q.QuantizedDimension()
        scales_at = q._tab.Vector(q._tab.Offset(8))
    buffer = model.Buffers(t.Buffer())
    data = None
    if buffer.DataLength():
        data = (buffer._tab.Vector(buffer._tab.Offset(4)), buffer.DataLength())
        if data[0] + data[1] > len(tflite):
            raise ValueError("a buffer beyond the end of the file")
    shape = _ints(t, "Shape")
    dtype = _TYPE_NAMES.get(t.Type(), str(t.Type()))
    name = (t.Name() or b"").decode()
    return Tensor(index, name, shape, dtype, scales, zero_points, axis, t.Buffer(), data, scales_at)


def check_trainable(tflite: bytes, source: str = "the model") -> Graph:
    """Refuse, in one sentence, a model that the runner cannot execute or the training cannot change."""
    graph = read_graph(tflite, source)
    _check_io(graph, source)
    for op in graph.ops:
        if op.kind not in SUPPORTED_OPS:
            raise UserError(
                f"{source} needs an op that the int8 runner does not have: {graph.place(op)}. "
                f"Supported: {', '.join(SUPPORTED_OPS)}."
            )
    if graph.ops[-1].kind == "SOFTMAX":
        raise UserError(
            f"{source} ends in SOFTMAX, which flattens the loss to int8 steps: "
            "pass --strip-softmax to train on the logits in front of it."
        )
    if not any(op.kind in WEIGHT_OPS for op in graph.ops):
        raise UserError(f"{source} has no convolution or fully connected layer: there is nothing to train.")
    for op, weights in weight_tensors(graph):
        _check_weights(graph, op, weights, source)
    return graph


def _check_io(graph: Graph, source: str) -> None:
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise UserError(
            f"{source} has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs; "
            "one image in and one vector of logits out are needed: export that part of the network."
        )
    if not graph.ops:
        raise UserError(f"{source} has no operators: there is nothing to run.")
    image, logits = graph.tensors[graph.inputs[0]], graph.tensors[graph.outputs[0]]
    if image.dtype == "FLOAT32" or logits.dtype == "FLOAT32":
        int8_weights = any(graph.tensors[op.inputs[1]].dtype == "INT8" for op in graph.ops if op.kind in WEIGHT_OPS)
        kind = "a dynamic-range model (int8 weights, float activations)" if int8_weights else "a float model"
        if any(op.kind in ("QUANTIZE", "DEQUANTIZE") for op in graph.ops):
            kind = "a model with float input or output"
        raise UserError(
            f"{source} is {kind}: convert with full-integer quantisation, int8 input and output "
            "(python -m pipeline.convert --keras FILE does it; in TensorFlow: inference_input_type = "
            "inference_output_type = tf.int8)."
        )
    if image.dtype != "INT8" or logits.dtype != "INT8":
        raise UserError(f"{source} has {image.dtype} input and {logits.dtype} output; both must be INT8.")
    if len(image.shape) != 4 or image.shape[0] != 1:
        raise UserError(f"{source} takes input of shape {list(image.shape)}; [1, height, width, channels] is needed.")
    if int(np.prod(logits.shape)) != logits.shape[-1] or logits.shape[-1] < 2:
        raise UserError(f"{source} gives output of shape {list(logits.shape)}; [1, classes] is needed.")
    for t in (image, logits):
        if len(t.scales) != 1:
            raise UserError(f"{source}: tensor '{shorten(t.name)}' has no scale: it is not an int8 model.")


def _check_weights(graph: Graph, op: Op, weights: Tensor, source: str) -> None:
    what = f"{source}: the weights of {graph.place(op)}"
    if weights.data is None:
        raise UserError(f"{what} are computed in the graph, not stored; only stored weights can be trained.")
    if weights.dtype != "INT8" or len(weights.scales) == 0:
        raise UserError(f"{what} are {weights.dtype}; they must be INT8: convert with full-integer quantisation.")
    if weights.zero_points.any():
        raise UserError(f"{what} have a zero point; TFLite's symmetric int8 weights (zero point 0) are needed.")
    if graph.constant(weights, np.int8).min() == -128:
        raise UserError(f"{what} contain -128; the symmetric range -127..127 is needed: requantise the model.")
    if len(weights.scales) > 1 and len(weights.scales) != weights.shape[weights.axis]:
        raise UserError(f"{what} have {len(weights.scales)} scales for {weights.shape[weights.axis]} channels.")
    if op.kind == "FULLY_CONNECTED" and len(weights.scales) > 1:
        raise UserError(
            f"{what} have one scale a channel, which TFLite's reference kernel ignores: convert with "
            "_experimental_disable_per_channel_quantization_for_dense_layers = True."
        )


def weight_tensors(graph: Graph) -> Iterator[tuple[Op, Tensor]]:
    """(op, filter) of every op with weights, in graph order; a shared filter comes once an op."""
    for op in graph.ops:
        if op.kind in WEIGHT_OPS:
            yield op, graph.tensors[op.inputs[1]]


def io_spec(graph: Graph) -> IoSpec:
    image, logits = graph.tensors[graph.inputs[0]], graph.tensors[graph.outputs[0]]
    h, w, c = image.shape[1:]
    return IoSpec(
        (h, w, c), float(image.scale), image.zero_point, logits.shape[-1], float(logits.scale), logits.zero_point
    )


def trainable_segments(graph: Graph, scope: str = "all") -> tuple[Segment, ...]:
    """The index space: one segment per distinct buffer, in order of first use (design contract "Index space").

    scope: "all"; "head" (the last op with weights); "first-half" and "second-half" (of the ops with weights);
    "depthwise"; "pointwise" (1x1 convolutions and fully connected layers).
    Raises UserError for a buffer that two ops use under different scales.
    """
    pairs = list(weight_tensors(graph))
    first_use: dict[int, tuple[Op, Tensor]] = {}
    for op, weights in pairs:
        seen = first_use.setdefault(weights.buffer, (op, weights))
        if not np.array_equal(seen[1].scales, weights.scales) or seen[1].axis != weights.axis:
            raise UserError(
                f"the weights of {graph.place(seen[0])} and of {graph.place(op)} are the same bytes under different "
                "scales, so one update cannot serve both: convert the model without buffer sharing."
            )
    distinct = list(first_use.values())
    half = (len(distinct) + 1) // 2
    scopes = {
        "all": lambda i, op, w: True,
        "head": lambda i, op, w: i == len(distinct) - 1,
        "first-half": lambda i, op, w: i < half,
        "second-half": lambda i, op, w: i >= half,
        "depthwise": lambda i, op, w: op.kind == "DEPTHWISE_CONV_2D",
        "pointwise": lambda i, op, w: op.kind == "FULLY_CONNECTED" or (op.kind == "CONV_2D" and w.shape[1:3] == (1, 1)),
    }
    if scope not in scopes:
        raise UserError(f"--train {scope} is unknown: choose one of {', '.join(scopes)}.")
    chosen = [(op, w) for i, (op, w) in enumerate(distinct) if scopes[scope](i, op, w)]
    if not chosen:
        raise UserError(f"--train {scope} selects no layer of this model.")
    return tuple(Segment(shorten(w.name), op.kind, *w.data) for op, w in chosen)


def read_weights(tflite: bytes, segments: tuple[Segment, ...]) -> np.ndarray:
    """int8 [d]: all trainable weights in index order (a copy)."""
    return np.concatenate([np.frombuffer(tflite, np.int8, s.count, s.offset) for s in segments])


def write_weights(tflite: bytes, segments: tuple[Segment, ...], weights: np.ndarray) -> bytes:
    """The same model with these weights, int8 [d] in index order."""
    assert weights.dtype == np.int8 and weights.shape == (sum(s.count for s in segments),)
    out, at = bytearray(tflite), 0
    for s in segments:
        out[s.offset : s.offset + s.count] = weights[at : at + s.count].tobytes()
        at += s.count
    return bytes(out)


def add_headroom(tflite: bytes, mu_max: int) -> bytes:
    """Re-quantise so that every weight lies within +-(127 - mu_max) and probes of up to mu_max never saturate.

    Per scale group (a channel, or the whole tensor where it has one scale) and only where it is needed, the scale
    grows, by at most 127 / (127 - mu_max); weights, bias values and bias scales follow.
    """
    graph = read_graph(tflite)
    out, limit = bytearray(tflite), 127 - mu_max
    rescaled: dict[int, np.ndarray] = {}  # weight buffer -> float64 growth of each scale group
    scaled: set[int] = set()  # weight tensors whose scales follow already (two tensors may share a buffer)
    bias_done: dict[int, np.ndarray] = {}  # bias buffer -> growth that was applied
    for op, weights in weight_tensors(graph):
        if weights.buffer not in rescaled:
            rescaled[weights.buffer] = _grow_weights(out, weights, graph.constant(weights, np.int8), limit)
        growth = rescaled[weights.buffer]
        if weights.index not in scaled:
            scaled.add(weights.index)
            _store_scales(out, weights, weights.scales.astype(np.float64) * growth)
        bias = graph.tensors[op.inputs[2]] if len(op.inputs) > 2 and op.inputs[2] >= 0 else None
        if bias is None or bias.data is None:
            continue
        before = graph.constant(bias, np.int32)
        factor = growth if len(growth) == len(before.ravel()) else np.full(before.size, growth[0])
        if bias.buffer in bias_done:
            if before.any() and not np.array_equal(bias_done[bias.buffer], factor):
                raise UserError(f"the bias of {graph.place(op)} is shared with another op: convert without sharing.")
            continue
        bias_done[bias.buffer] = factor
        if (growth != 1).any():
            _grow_bias(out, graph, op, weights, bias, before, growth)
    return bytes(out)


def _grow_weights(out: bytearray, weights: Tensor, w: np.ndarray, limit: int) -> np.ndarray:
    """Requantise a filter in place; returns how much the scale of each group has to grow, float64 [groups]."""
    per_group = np.moveaxis(w, weights.axis, 0).reshape(len(weights.scales), -1).astype(np.float64)
    new_scales = (weights.scales.astype(np.float64) * _least_change(per_group, limit)).astype(np.float32)
    growth = new_scales.astype(np.float64) / weights.scales.astype(np.float64)
    shape = [1] * w.ndim
    if len(growth) > 1:
        shape[weights.axis] = len(growth)
    requantised = np.clip(np.rint(w / growth.reshape(shape)), -limit, limit).astype(np.int8)
    offset, size = weights.data
    out[offset : offset + size] = requantised.tobytes()
    return growth


def _store_scales(out: bytearray, tensor: Tensor, scales: np.ndarray) -> None:
    stored = scales.astype(np.float32).tobytes()
    out[tensor.scales_at : tensor.scales_at + len(stored)] = stored


def _least_change(groups: np.ndarray, limit: int) -> np.ndarray:
    """For weights [groups, n]: the growth of each group's scale that moves its weights least, in squares.

    Full growth (127 / limit) rounds every weight anew, none clips the largest: a 3x3 depthwise filter does best with
    the former, a channel of a thousand weights, of which one is at the rail, with the latter or something between.
    """
    growth = np.ones(len(groups))
    least = np.where(np.abs(groups).max(axis=1) > limit, np.inf, 0.0)  # groups that have room stay as they are
    for candidate in np.linspace(1, 127 / limit, HEADROOM_CANDIDATES):
        moved = np.clip(np.rint(groups / candidate), -limit, limit) * candidate - groups
        error = (moved**2).sum(axis=1)
        growth[error < least] = candidate
        least = np.minimum(error, least)
    return growth


def _grow_bias(
    out: bytearray, graph: Graph, op: Op, weights: Tensor, bias: Tensor, before: np.ndarray, growth: np.ndarray
) -> None:
    input_scale = graph.tensors[op.inputs[0]].scales.astype(np.float64)[0]
    weight_scales = np.frombuffer(out, np.float32, len(weights.scales), weights.scales_at).astype(np.float64)
    groups = len(bias.scales)
    new_scales = np.where(growth[:groups] != 1, input_scale * weight_scales[:groups], bias.scales).astype(np.float32)
    ratio = bias.scales.astype(np.float64) / new_scales.astype(np.float64)
    values = np.rint(before.ravel() * (ratio if groups == before.size else ratio[0])).astype(np.int32)
    offset, size = bias.data
    out[offset : offset + size] = values.tobytes()
    _store_scales(out, bias, new_scales)


def strip_softmax(tflite: bytes) -> bytes:
    """Drop a SOFTMAX at the end, so that the logits in front of it become the output."""
    graph = read_graph(tflite)
    if not graph.ops or graph.ops[-1].kind != "SOFTMAX":
        return tflite
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    sub = model.subgraphs[0]
    softmax = sub.operators.pop()
    sub.outputs = [int(softmax.inputs[0])]
    for signature in model.signatureDefs or []:
        for output in signature.outputs or []:
            output.tensorIndex = sub.outputs[0]
    return _pack(model)


def with_every_output(tflite: bytes) -> bytes:
    """The same graph, with what every op writes among its outputs: after them, in the order of the ops.

    An interpreter has to keep an output. Asked to preserve all tensors, tflite-runtime 2.14 still adds in place.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    sub = model.subgraphs[0]
    outputs = [int(tensor) for tensor in sub.outputs]
    written = (int(tensor) for op in sub.operators for tensor in op.outputs)
    sub.outputs = outputs + [tensor for tensor in written if tensor not in outputs]
    return _pack(model)


def _pack(model: schema.ModelT) -> bytes:
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
