"""Compile an int8 graph to the PLAN section: ops with everything that TFLM derives when it prepares.

Multipliers come from the very doubles and floats that TFLM uses (tensorflow/lite/micro/kernels/*_common.cc), computed
from what the .tflite stores, so runner, TFLM and tflite-runtime agree bit for bit. Layout: docs/device_image.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from converters import fixed_point
from converters.errors import UserError
from converters.fixed_point import quantize_multiplier, round_away
from converters.tflite_model import Graph, Op, Tensor, shorten, weight_tensors

# Op kinds of the PLAN section; tflm_app/image/plan.h has the same list.
CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED, ADD, MEAN = 1, 2, 3, 4, 5
MAX_POOL_2D, AVERAGE_POOL_2D, PAD, SOFTMAX, QUANTIZE, RELU6 = 6, 7, 8, 9, 10, 11
TABLE, BROADCAST_ADD, SUB, MUL, PLACE, PICK, TRANSPOSE_CONV = 12, 13, 14, 15, 16, 17, 18
MINIMUM, MAXIMUM, PRELU = 19, 20, 21
NONE = 0xFFFFFFFF  # no bias, no constant operand
# Ops that change the shape alone: their output lies where their input does.
ALIASES = ("RESHAPE", "SQUEEZE")
ARENA_ALIGN = 16
# Widest axis of a tensor; keeps every index and every accumulator of the runner inside int32.
MAX_DIM, MAX_ELEMENTS = 1 << 15, 1 << 27


@dataclass(frozen=True)
class Plan:
    """words: the section as uint32; arena: bytes of activations; a PLAN op each: name, graph tensor that it writes."""

    words: np.ndarray
    arena: int
    op_names: tuple[str, ...]
    outputs: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return self.words.astype("<u4").tobytes()


def compile_plan(graph: Graph) -> Plan:
    """Raises UserError for an op in a form that the runner lacks, named with its place."""
    return _Compiler(graph).run()


class _Compiler:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.alias: dict[int, int] = {}  # output of RESHAPE -> tensor whose bytes it shares
        self.trained = {weights.buffer for _, weights in weight_tensors(graph)}
        self.ids: dict[int, int] = {}  # graph tensor -> PLAN tensor
        self.records: list[list[int]] = []
        self.pool: list[int] = []  # constants (multipliers and shifts) that records point into
        self.names: list[str] = []
        self.uses: list[tuple[int, int]] = []  # (step, graph tensor) of every read and write

    def run(self) -> Plan:
        graph = self.graph
        self._use(-1, graph.inputs[0])
        for op in graph.ops:
            if op.kind in ALIASES:
                self._reshape(op)
            elif op.kind == "CONCATENATION":
                self._concatenation(op)
            elif op.kind == "SPLIT":
                self._split(op)
            else:
                emit = getattr(self, f"_{op.kind.lower()}")
                self._append(op, emit(op, len(self.records)))
        self._use(len(self.records), graph.outputs[0])
        offsets, arena = self._place_tensors()
        tensors = {number: tensor for tensor, number in self.ids.items()}
        outputs = tuple(tensors[record[4]] for record in self.records)
        return Plan(self._assemble(offsets), arena, tuple(self.names), outputs)

    def _append(self, op: Op, record: list[int]) -> None:
        self.records.append(record)
        self.names.append(self.graph.place(op))

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _use(self, step: int, tensor: int) -> int:
        self.uses.append((step, tensor))
        return self.ids.setdefault(tensor, len(self.ids))

    def _root(self, tensor: int) -> int:
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor

    def _place_tensors(self) -> tuple[dict[int, int], int]:
        """Greedy by size (as TFLM's GreedyMemoryPlanner): the largest tensor first, each at the lowest free offset."""
        life: dict[int, tuple[int, int]] = {}
        for step, tensor in self.uses:
            root = self._root(tensor)
            first, last = life.get(root, (step, step))
            life[root] = (min(first, step), max(last, step))
        placed: list[tuple[int, int, int, int]] = []  # first, last, offset, end
        offsets: dict[int, int] = {}
        for root in sorted(life, key=lambda t: (-self._elements(t), life[t])):
            first, last = life[root]
            size = -(-self._elements(root) // ARENA_ALIGN) * ARENA_ALIGN
            at = 0
            for _, _, start, end in sorted((p for p in placed if p[0] <= last and first <= p[1]), key=lambda p: p[2]):
                if at + size <= start:
                    break
                at = max(at, end)
            offsets[root] = at
            placed.append((first, last, at, at + size))
        return offsets, max(end for *_, end in placed)

    def _elements(self, tensor: int) -> int:
        return int(np.prod(self._hwc(self.graph.tensors[tensor])))

    def _hwc(self, t: Tensor) -> tuple[int, int, int]:
        shape = t.shape
        if t.data is not None:  # a constant operand, which may lack the batch and lines up with others at the right
            shape = (1,) * (4 - len(shape)) + shape
        if len(shape) > 4 or (len(shape) > 1 and shape[0] != 1) or 0 in shape:
            raise UserError(
                f"tensor '{shorten(t.name)}' has shape {list(shape)}: at most 4 dimensions with a batch of one are "
                "supported; convert the model with batch size 1."
            )
        hwc = (1, 1, 1, *(shape[1:] if len(shape) > 1 else shape))[-3:]
        if max(hwc) > MAX_DIM or math.prod(hwc) > MAX_ELEMENTS:
            raise UserError(f"tensor '{shorten(t.name)}' of shape {list(shape)} is too large for the int8 runner.")
        return hwc

    def _activation(self, op: Op, index: int, *, output: bool = False, constant: bool = False) -> Tensor:
        """An int8 activation of an op; refuses other types, and constants unless they are welcome, by name."""
        t = self.graph.tensors[(op.outputs if output else op.inputs)[index]]
        if t.dtype != "INT8" or len(t.scales) != 1:
            raise UserError(f"{self.graph.place(op)} works on {t.dtype} '{shorten(t.name)}': only INT8 is supported.")
        if t.data is not None and not constant:
            raise UserError(f"{self.graph.place(op)} has a constant operand '{shorten(t.name)}', which is unsupported.")
        return t

    def _refuse(self, op: Op, why: str) -> UserError:
        return UserError(f"{self.graph.place(op)}: the int8 runner does not support {why}.")

    # -- records -----------------------------------------------------------------------------------------------------

    def _head(
        self, op: Op, step: int, kind: int, inputs: tuple[int, ...], activation: int = 0, output: int = 0
    ) -> list[int]:
        """kind, words (filled in later), in0, in1, out, activation minimum and maximum (CalculateActivationRange)."""
        ids = [self._operand(step, op.inputs[i]) for i in inputs]
        out = self._activation(op, output, output=True)
        self._hwc(out)
        low, high = self._activation_range(op, out, activation)
        return [kind, 0, ids[0], ids[1] if len(ids) > 1 else ids[0], self._use(step, op.outputs[output]), low, high]

    def _operand(self, step: int, tensor: int) -> int:
        """The PLAN tensor of an input: constants are read where they are stored and take no room in the arena."""
        constant = self.graph.tensors[tensor].data is not None
        return self.ids.setdefault(tensor, len(self.ids)) if constant else self._use(step, tensor)

    def _stored(self, op: Op, t: Tensor) -> int:
        """Offset of a constant that the runner reads in place and training must not change."""
        assert t.data is not None
        if t.buffer in self.trained:
            raise self._refuse(op, f"'{shorten(t.name)}', which shares its bytes with weights that are trained")
        return t.data[0]

    def _activation_range(self, op: Op, out: Tensor, activation: int) -> tuple[int, int]:
        """tflite::CalculateActivationRangeQuantized, kernel_util.cc (float division, round half away)."""

        def quantized(real: float) -> int:
            return out.zero_point + round_away(float(np.float32(real) / out.scale))

        kinds = schema.ActivationFunctionType
        low, high = -128, 127
        if activation == kinds.RELU:
            low = max(low, quantized(0.0))
        elif activation == kinds.RELU6:
            low, high = max(low, quantized(0.0)), min(high, quantized(6.0))
        elif activation == kinds.RELU_N1_TO_1:
            low, high = max(low, quantized(-1.0)), min(high, quantized(1.0))
        elif activation != kinds.NONE:
            raise self._refuse(op, f"fused activation {activation}")
        return low, high

    def _constants(self, values: np.ndarray | list[int]) -> int:
        at = len(self.pool)
        self.pool.extend(int(v) for v in values)
        return at

    def _weights(self, op: Op, x: Tensor, w: Tensor, out: Tensor, channels: int, bias_input: int = 2) -> list[int]:
        """weights offset, bias offset, offset of the multipliers (then shifts) in the constant pool."""
        if w.data is None or w.dtype != "INT8":
            raise self._refuse(op, "weights that are not stored as INT8")
        bias_at = NONE
        if len(op.inputs) > bias_input and op.inputs[bias_input] >= 0:
            bias = self.graph.tensors[op.inputs[bias_input]]
            if bias.data is None or bias.dtype != "INT32" or bias.data[1] != 4 * channels or bias.data[0] % 4:
                raise self._refuse(op, "a bias that is not one aligned, stored INT32 a channel")
            bias_at = bias.data[0]
        if op.kind == "FULLY_CONNECTED":  # GetQuantizedConvolutionMultipler: the product in float32 first
            reals = [float(x.scale * w.scale) / float(out.scale)] * channels
        else:  # PopulateConvolutionQuantizationParams: everything in double
            scales = w.scales if len(w.scales) > 1 else np.repeat(w.scales, channels)
            reals = [float(x.scale) * float(s) / float(out.scale) for s in scales]
        pairs = [quantize_multiplier(r) for r in reals]
        at = self._constants([m for m, _ in pairs])
        self._constants([s for _, s in pairs])
        return [w.data[0], bias_at, at]

    def _window(self, op: Op, x: Tensor, kernel: tuple[int, int], out: Tensor) -> list[int]:
        """kernel, stride, dilation, top and left padding: tflite::ComputePaddingHeightWidth, padding.h."""
        o = op.options
        stride = (o.strideH, o.strideW)
        dilation = (getattr(o, "dilationHFactor", 1), getattr(o, "dilationWFactor", 1))
        pads = []
        for axis in range(2):
            size, n_out = self._hwc(x)[axis], self._hwc(out)[axis]
            effective = (kernel[axis] - 1) * dilation[axis] + 1
            same = o.padding == schema.Padding.SAME
            expected = -(-size // stride[axis]) if same else -(-(size - effective + 1) // stride[axis])
            if n_out != expected:
                raise self._refuse(op, f"an output of {n_out} where {expected} follows from the input")
            pads.append(max(0, (n_out - 1) * stride[axis] + effective - size) // 2)
        return [*kernel, *stride, *dilation, *pads]

    def _conv_2d(self, op: Op, step: int) -> list[int]:
        x, out, w = self._activation(op, 0), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        n_out, kh, kw, n_in = w.shape
        if n_in != self._hwc(x)[2]:
            raise self._refuse(op, f"grouped convolution ({self._hwc(x)[2]} channels in, {n_in} a filter)")
        record = self._head(op, step, CONV_2D, (0,), op.options.fusedActivationFunction)
        return record + self._window(op, x, (kh, kw), out) + self._weights(op, x, w, out, n_out)

    def _depthwise_conv_2d(self, op: Op, step: int) -> list[int]:
        x, out, w = self._activation(op, 0), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        _, kh, kw, n_out = w.shape
        if n_out % self._hwc(x)[2]:
            raise self._refuse(op, "a depth multiplier that is not a whole number")
        record = self._head(op, step, DEPTHWISE_CONV_2D, (0,), op.options.fusedActivationFunction)
        return record + self._window(op, x, (kh, kw), out) + self._weights(op, x, w, out, n_out)

    def _fully_connected(self, op: Op, step: int) -> list[int]:
        x, out, w = self._activation(op, 0), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        if op.options.weightsFormat != schema.FullyConnectedOptionsWeightsFormat.DEFAULT:
            raise self._refuse(op, "shuffled weights")
        n_out, n_in = w.shape
        if self._elements(x.index) % n_in:
            raise self._refuse(op, f"{self._elements(x.index)} inputs for {n_in} weights an output")
        record = self._head(op, step, FULLY_CONNECTED, (0,), op.options.fusedActivationFunction)
        return record + self._weights(op, x, w, out, n_out)

    def _add(self, op: Op, step: int) -> list[int]:
        """add_common.cc: both inputs to a common scale with 20 extra bits, then to the output's."""
        a, b, out = self._operands(op)
        twice = 2.0 * float(max(a.scale, b.scale))
        reals = (float(a.scale) / twice, float(b.scale) / twice, twice / ((1 << 20) * float(out.scale)))
        if self._hwc(a) == self._hwc(b) and a.data is None and b.data is None:
            record = self._head(op, step, ADD, (0, 1), op.options.fusedActivationFunction)
            return record + self._common_scale(op, reals)
        return self._binary(op, step, BROADCAST_ADD, self._common_scale(op, reals))

    def _sub(self, op: Op, step: int) -> list[int]:
        """sub_common.cc: as ADD, but in float32."""
        a, b, out = self._operands(op)
        twice = np.float32(2) * max(a.scale, b.scale)
        reals = (a.scale / twice, b.scale / twice, twice / (np.float32(1 << 20) * out.scale))
        return self._binary(op, step, SUB, self._common_scale(op, tuple(float(r) for r in reals)))

    def _mul(self, op: Op, step: int) -> list[int]:
        """mul_common.cc: everything in double."""
        a, b, out = self._operands(op)
        scale = quantize_multiplier(float(a.scale) * float(b.scale) / float(out.scale))
        return self._binary(op, step, MUL, [0, 0, 0, 0, *scale])

    def _extremum(self, op: Op, step: int, kind: int) -> list[int]:
        """maximum_minimum.h compares the integers: all scales have to be equal."""
        a, b, out = self._operands(op)
        self._same_scale(op, a, out)
        self._same_scale(op, b, out)
        return self._binary(op, step, kind, [0, 0, 0, 0, *quantize_multiplier(1.0)])

    def _minimum(self, op: Op, step: int) -> list[int]:
        return self._extremum(op, step, MINIMUM)

    def _maximum(self, op: Op, step: int) -> list[int]:
        return self._extremum(op, step, MAXIMUM)

    def _prelu(self, op: Op, step: int) -> list[int]:
        """prelu_common.cc: one multiplier for what is positive, one for the products with the slope."""
        x, slope, out = self._operands(op)
        identity = quantize_multiplier(float(x.scale) / float(out.scale))
        product = quantize_multiplier(float(x.scale) * float(slope.scale) / float(out.scale))
        return self._binary(op, step, PRELU, [*identity, *product, *quantize_multiplier(1.0)])

    def _operands(self, op: Op) -> tuple[Tensor, Tensor, Tensor]:
        a, b = self._activation(op, 0, constant=True), self._activation(op, 1, constant=True)
        out = self._activation(op, 0, output=True)
        shape = tuple(max(n, m) for n, m in zip(self._hwc(a), self._hwc(b), strict=True))
        fits = all(n in (m, 1) for t in (a, b) for n, m in zip(self._hwc(t), shape, strict=True))
        if not fits or self._hwc(out) != shape:
            raise self._refuse(op, f"{list(a.shape)} with {list(b.shape)} to {list(out.shape)}")
        return a, b, out

    def _common_scale(self, op: Op, reals: tuple[float, ...]) -> list[int]:
        if reals[2] >= 1:
            raise self._refuse(op, "an output scale so much finer than the inputs'")
        return [v for r in reals for v in quantize_multiplier(r)]

    def _binary(self, op: Op, step: int, kind: int, scales: list[int]) -> list[int]:
        operands = [self.graph.tensors[op.inputs[i]] for i in (0, 1)]
        constants = [NONE if t.data is None else self._stored(op, t) for t in operands]
        activation = getattr(op.options, "fusedActivationFunction", schema.ActivationFunctionType.NONE)
        return [*self._head(op, step, kind, (0, 1), activation), *scales, *constants]

    def _reduced(self, op: Op) -> tuple[Tensor, Tensor, set[int]]:
        """Input, output and the axes that go, 1 height, 2 width, 3 channels."""
        x, out, axes = self._activation(op, 0), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        if axes.data is None or axes.dtype != "INT32":
            raise self._refuse(op, "axes computed in the graph")
        rank = len(x.shape)
        return x, out, {int(a) % rank + 4 - rank for a in self.graph.constant(axes, np.int32).ravel()} - {0}

    def _mean(self, op: Op, step: int) -> list[int]:
        """reduce.h, QuantizedMeanOrSum: 1/count folded into the multiplier."""
        x, out, reduced = self._reduced(op)
        mask = sum(1 << (a - 1) for a in reduced)  # bit 0 height, 1 width, 2 channels
        count = math.prod(self._hwc(x)[a - 1] for a in reduced)
        multiplier, shift = quantize_multiplier(float(x.scale) / float(out.scale))
        move = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << move) // count, shift - move
        return [*self._head(op, step, MEAN, (0,)), mask, count, multiplier, shift]

    def _reduce_max(self, op: Op, step: int) -> list[int]:
        """Over height and width it is the largest of one window."""
        x, out, reduced = self._reduced(op)
        h, w, c = self._hwc(x)
        if reduced != {1, 2} or self._hwc(out) != (1, 1, c):
            raise self._refuse(op, "axes other than height and width")
        self._same_scale(op, x, out)
        return [*self._head(op, step, MAX_POOL_2D, (0,)), h, w, 1, 1, 1, 1, 0, 0]

    def _same_scale(self, op: Op, x: Tensor, out: Tensor) -> None:
        if x.scale != out.scale or x.zero_point != out.zero_point:
            raise self._refuse(op, "an input and an output of different scales")

    def _pool(self, op: Op, step: int, kind: int) -> list[int]:
        x, out, o = self._activation(op, 0), self._activation(op, 0, output=True), op.options
        if abs(float(x.scale) - float(out.scale)) > 1e-6 or x.zero_point != out.zero_point:
            raise self._refuse(op, "different scales before and after pooling")
        record = self._head(op, step, kind, (0,), o.fusedActivationFunction)
        return record + self._window(op, x, (o.filterHeight, o.filterWidth), out)

    def _max_pool_2d(self, op: Op, step: int) -> list[int]:
        return self._pool(op, step, MAX_POOL_2D)

    def _average_pool_2d(self, op: Op, step: int) -> list[int]:
        return self._pool(op, step, AVERAGE_POOL_2D)

    def _pad(self, op: Op, step: int) -> list[int]:
        x, out, pads = self._activation(op, 0), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        if pads.data is None or pads.dtype != "INT32":
            raise self._refuse(op, "paddings computed in the graph")
        table = self.graph.constant(pads, np.int32).reshape(-1, 2)
        table = np.concatenate([np.zeros((4 - len(table), 2), np.int32), table])
        if table[0].any():
            raise self._refuse(op, "padding of the batch axis")
        value = out.zero_point
        if len(op.inputs) > 2 and op.inputs[2] >= 0:  # PADV2
            constant = self.graph.tensors[op.inputs[2]]
            if constant.data is None:
                raise self._refuse(op, "a pad value computed in the graph")
            value = int(self.graph.constant(constant, np.int8).ravel()[0])
        expected = tuple(n + int(p.sum()) for n, p in zip(self._hwc(x), table[1:], strict=True))
        if self._hwc(out) != expected:
            raise self._refuse(op, f"an output of {list(out.shape)} where {list(expected)} follows from the paddings")
        return [*self._head(op, step, PAD, (0,)), *(int(p) for p in table[1:].ravel()), value]

    _padv2 = _pad

    def _softmax(self, op: Op, step: int) -> list[int]:
        """PreprocessSoftmaxScaling and CalculateInputRadius with 5 integer bits, quantization_util.cc."""
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        if float(out.scale) != 1 / 256 or out.zero_point != -128:
            raise self._refuse(op, "an output scale other than 1/256 with zero point -128")
        real = min(float(np.float32(op.options.beta)) * float(x.scale) * (1 << 26), float((1 << 31) - 1))
        multiplier, shift = quantize_multiplier(real)
        radius = math.floor(1.0 * ((1 << 5) - 1) * (1 << 26) / (1 << shift)) if shift >= 0 else 0
        if shift < 0:
            raise self._refuse(op, "an input scale this fine")
        return [*self._head(op, step, SOFTMAX, (0,)), multiplier, shift, -radius]

    def _rescale(self, op: Op, step: int, real: float, activation: int) -> list[int]:
        return [*self._head(op, step, QUANTIZE, (0,), activation), *quantize_multiplier(real)]

    def _quantize(self, op: Op, step: int) -> list[int]:
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        return self._rescale(op, step, float(x.scale) / float(out.scale), schema.ActivationFunctionType.NONE)

    def _relu(self, op: Op, step: int) -> list[int]:
        """activations_common.cc: the quotient in float32, then as QUANTIZE with a lower bound."""
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        return self._rescale(op, step, float(x.scale / out.scale), schema.ActivationFunctionType.RELU)

    def _relu6(self, op: Op, step: int) -> list[int]:
        """TFLM clamps without rescaling, TFLite rescales: they agree, and are served, where the scales are equal."""
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        if x.scale != out.scale or x.zero_point != out.zero_point:
            raise self._refuse(op, "RELU6 between different scales (TFLM and TFLite disagree there)")
        return self._head(op, step, RELU6, (0,), schema.ActivationFunctionType.RELU6)

    # Functions of one value: 256 of them, computed here (fixed_point.py).

    def _table(self, op: Op, step: int, values: np.ndarray) -> list[int]:
        return [*self._head(op, step, TABLE, (0,)), self._constants(values.view("<i4"))]

    def _sigmoid(
        self, op: Op, step: int, function: Callable[[float, int], np.ndarray], scale: float, zero_point: int
    ) -> list[int]:
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        if float(out.scale) != scale or out.zero_point != zero_point:
            raise self._refuse(op, f"an output scale other than 1/{round(1 / scale)} with zero point {zero_point}")
        try:
            return self._table(op, step, function(float(x.scale), x.zero_point))
        except ValueError as error:
            raise self._refuse(op, str(error)) from error

    def _logistic(self, op: Op, step: int) -> list[int]:
        return self._sigmoid(op, step, fixed_point.logistic_table, 1 / 256, -128)

    def _tanh(self, op: Op, step: int) -> list[int]:
        return self._sigmoid(op, step, fixed_point.tanh_table, 1 / 128, 0)

    def _hard_swish(self, op: Op, step: int) -> list[int]:
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        try:
            return self._table(op, step, fixed_point.hard_swish_table(x.scale, x.zero_point, out.scale, out.zero_point))
        except ValueError as error:
            raise self._refuse(op, str(error)) from error

    def _leaky_relu(self, op: Op, step: int) -> list[int]:
        x, out, alpha = self._activation(op, 0), self._activation(op, 0, output=True), op.options.alpha
        if alpha < 0:
            raise self._refuse(op, "a negative slope (TFLM's versions disagree there)")
        values = fixed_point.leaky_relu_table(x.scale, x.zero_point, out.scale, out.zero_point, alpha)
        return self._table(op, step, values)

    # Ops that move bytes.

    def _concatenation(self, op: Op) -> None:
        """concatenation.cc wants all scales equal. One record an input, which it copies to its place."""
        out, options = self._activation(op, 0, output=True), op.options
        if options.fusedActivationFunction != schema.ActivationFunctionType.NONE:
            raise self._refuse(op, "a fused activation")
        rank = len(out.shape)
        axis = options.axis % rank + 4 - rank - 1  # 0 height, 1 width, 2 channels
        if axis < 0:
            raise self._refuse(op, "a concatenation of batches")
        at = [0, 0, 0]
        for i in range(len(op.inputs)):
            x = self._activation(op, i)
            self._same_scale(op, x, out)
            self._append(op, [*self._head(op, len(self.records), PLACE, (i,)), *at])
            at[axis] += self._hwc(x)[axis]

    def _pick(
        self, op: Op, step: int, ranges: tuple[list[int], list[int], list[int]], input: int = 0, output: int = 0
    ) -> list[int]:
        """The rows, columns and channels of the input that the output has; the channels lie together."""
        x, out = self._activation(op, input), self._activation(op, output, output=True)
        self._same_scale(op, x, out)
        rows, columns, channels = ranges
        shape = (len(rows), len(columns), len(channels))
        if self._hwc(out) != shape:
            raise self._refuse(op, f"an output of {list(out.shape)} where {list(shape)} follows from the input")
        if channels != list(range(channels[0], channels[0] + len(channels))):
            raise self._refuse(op, "steps over channels")
        head = self._head(op, step, PICK, (input,), output=output)
        return [*head, self._constants([*rows, *columns]), channels[0]]

    def _resize_nearest_neighbor(self, op: Op, step: int) -> list[int]:
        """GetNearestNeighbor, reference/resize_nearest_neighbor.h: in float32."""
        x, out, options = self._activation(op, 0), self._activation(op, 0, output=True), op.options
        offset = np.float32(0.5 if options.halfPixelCenters else 0)

        def nearest(size: int, n_out: int) -> list[int]:
            corners = options.alignCorners and n_out > 1
            scale = np.float32(size - 1 if corners else size) / np.float32(n_out - 1 if corners else n_out)
            real = [float((np.float32(i) + offset) * scale) for i in range(n_out)]
            return [min(round_away(v) if options.alignCorners else math.floor(v), size - 1) for v in real]

        (h, w, c), (out_h, out_w, _) = self._hwc(x), self._hwc(out)
        return self._pick(op, step, (nearest(h, out_h), nearest(w, out_w), list(range(c))))

    def _integers(self, op: Op, index: int) -> list[int]:
        t = self.graph.tensors[op.inputs[index]]
        if t.data is None or t.dtype != "INT32":
            raise self._refuse(op, "positions or sizes computed in the graph")
        return [int(v) for v in self.graph.constant(t, np.int32).ravel()]

    def _sliced(self, op: Op, step: int, slices: list[slice]) -> list[int]:
        """slices: one an axis of the input."""
        x = self._activation(op, 0)
        batch, *axes = [[0]][len(x.shape) > 1 :] + [list(range(n))[s] for n, s in zip(x.shape, slices, strict=True)]
        rows, columns, channels = [[0]] * (3 - len(axes)) + axes  # as _hwc does it
        if batch != [0] or not (rows and columns and channels):
            raise self._refuse(op, "an empty slice")
        return self._pick(op, step, (rows, columns, channels))

    def _slice(self, op: Op, step: int) -> list[int]:
        begins, sizes = self._integers(op, 1), self._integers(op, 2)
        return self._sliced(op, step, [slice(b, None if n < 0 else b + n) for b, n in zip(begins, sizes, strict=True)])

    def _strided_slice(self, op: Op, step: int) -> list[int]:
        o, rank = op.options, len(self._activation(op, 0).shape)
        begins, ends, steps = (self._integers(op, i) for i in (1, 2, 3))
        if o.ellipsisMask or o.newAxisMask or o.shrinkAxisMask or min(steps) < 1 or len(begins) != rank:
            raise self._refuse(op, "a slice that adds, drops or reverses axes")
        free = [(o.beginMask >> i & 1, o.endMask >> i & 1) for i in range(rank)]
        return self._sliced(
            op,
            step,
            [
                slice(None if any_begin else b, None if any_end else e, s)
                for (any_begin, any_end), b, e, s in zip(free, begins, ends, steps, strict=True)
            ],
        )

    def _split(self, op: Op) -> None:
        x = self._activation(op, 1)
        rank = len(x.shape)
        axis = self._integers(op, 0)[0] % rank + 4 - rank - 1  # 0 height, 1 width, 2 channels
        if axis < 0:
            raise self._refuse(op, "a split of the batch")
        for i in range(len(op.outputs)):
            ranges = [list(range(n)) for n in self._hwc(x)]
            size = self._hwc(x)[axis] // len(op.outputs)
            ranges[axis] = ranges[axis][i * size : (i + 1) * size]
            record = self._pick(op, len(self.records), (ranges[0], ranges[1], ranges[2]), input=1, output=i)
            self._append(op, record)

    def _transpose_conv(self, op: Op, step: int) -> list[int]:
        """Padding and stride are those of the convolution that it transposes. Its filter is not trained."""
        x, out, w = self._activation(op, 2), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        n_out, kh, kw, n_in = w.shape
        if (n_out, n_in) != (self._hwc(out)[2], self._hwc(x)[2]) or w.zero_points.any() or not len(w.scales):
            raise self._refuse(op, "a filter that does not fit or has a zero point")
        if op.options.fusedActivationFunction != schema.ActivationFunctionType.NONE:
            raise self._refuse(op, "a fused activation here (tflite-runtime 2.14, which the twin uses, has none)")
        head = self._head(op, step, TRANSPOSE_CONV, (2,))
        filter_words = self._weights(op, x, w, out, n_out, bias_input=3)
        self._stored(op, w)
        return head + self._window(op, out, (kh, kw), x) + filter_words

    def _reshape(self, op: Op) -> None:
        x, out = self._activation(op, 0), self._activation(op, 0, output=True)
        if self._elements(x.index) != self._elements(out.index):
            raise self._refuse(op, f"a reshape of {list(x.shape)} to {list(out.shape)}")
        self.alias[op.outputs[0]] = op.inputs[0]

    # -- section -----------------------------------------------------------------------------------------------------

    def _assemble(self, offsets: dict[int, int]) -> np.ndarray:
        """header (8 words), tensors (5 words each), op records, constant pool; see docs/device_image.md."""
        tensors: list[int] = []
        arena = 0
        for t in sorted(self.ids, key=self.ids.__getitem__):
            h, w, c = self._hwc(self.graph.tensors[t])
            at = offsets.get(self._root(t), 0)  # constants are not in the arena
            arena = max(arena, at + h * w * c)
            tensors += [at, h, w, c, self.graph.tensors[t].zero_point]
        for record in self.records:
            record[1] = len(record)
        ops = [v for record in self.records for v in record]
        header = [
            len(self.ids),
            len(self.records),
            self.ids[self.graph.inputs[0]],
            self.ids[self.graph.outputs[0]],
            -(-arena // ARENA_ALIGN) * ARENA_ALIGN,
            8 + len(tensors),  # first op record, in words
            8 + len(tensors) + len(ops),  # constant pool, in words
            len(self.pool),
        ]
        return np.array([v & 0xFFFFFFFF for v in header + tensors + ops + self.pool], np.uint32)
