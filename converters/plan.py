"""Compile an int8 graph to the PLAN section: ops with everything that TFLM derives when it prepares.

Multipliers come from the very doubles and floats that TFLM uses (tensorflow/lite/micro/kernels/*_common.cc), computed
from what the .tflite stores, so runner, TFLM and tflite-runtime agree bit for bit. Layout: docs/device_image.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from converters.errors import UserError
from converters.tflite_model import Graph, Op, Tensor, shorten

# Op kinds of the PLAN section; tflm_app/image/plan.h has the same list.
CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED, ADD, MEAN = 1, 2, 3, 4, 5
MAX_POOL_2D, AVERAGE_POOL_2D, PAD, SOFTMAX, QUANTIZE, RELU6 = 6, 7, 8, 9, 10, 11
NONE = 0xFFFFFFFF  # no bias
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


def quantize_multiplier(real: float) -> tuple[int, int]:
    """(Q31 multiplier, left shift): tflite::QuantizeMultiplier, quantization_util.cc."""
    if real == 0.0:
        return 0, 0
    fraction, shift = math.frexp(real)
    scaled = fraction * (1 << 31)
    q = math.floor(scaled + 0.5) if scaled >= 0 else math.ceil(scaled - 0.5)  # std::round: half away from zero
    if q == 1 << 31:
        q //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    return q, shift


def compile_plan(graph: Graph) -> Plan:
    """Raises UserError for an op in a form that the runner lacks, named with its place."""
    return _Compiler(graph).run()


class _Compiler:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.alias: dict[int, int] = {}  # RESHAPE output -> tensor whose bytes it shares
        self.ids: dict[int, int] = {}  # graph tensor -> PLAN tensor
        self.records: list[list[int]] = []
        self.pool: list[int] = []  # constants (multipliers and shifts) that records point into
        self.names: list[str] = []
        self.uses: list[tuple[int, int]] = []  # (step, graph tensor) of every read and write

    def run(self) -> Plan:
        graph = self.graph
        self._use(-1, graph.inputs[0])
        for op in graph.ops:
            if op.kind == "RESHAPE":
                self._reshape(op)
            else:
                emit = getattr(self, f"_{op.kind.lower()}")
                step = len(self.records)
                self.records.append(emit(op, step))
                self.names.append(graph.place(op))
        self._use(len(self.records), graph.outputs[0])
        offsets, arena = self._place_tensors()
        tensors = {number: tensor for tensor, number in self.ids.items()}
        outputs = tuple(tensors[record[4]] for record in self.records)
        return Plan(self._assemble(offsets), arena, tuple(self.names), outputs)

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
        if len(shape) > 4 or (len(shape) > 1 and shape[0] != 1) or 0 in shape:
            raise UserError(
                f"tensor '{shorten(t.name)}' has shape {list(shape)}: at most 4 dimensions with a batch of one are "
                "supported; convert the model with batch size 1."
            )
        hwc = (1, 1, 1, *(shape[1:] if len(shape) > 1 else shape))[-3:]
        if max(hwc) > MAX_DIM or math.prod(hwc) > MAX_ELEMENTS:
            raise UserError(f"tensor '{shorten(t.name)}' of shape {list(shape)} is too large for the int8 runner.")
        return hwc

    def _activation(self, op: Op, index: int, *, output: bool = False) -> Tensor:
        """An int8 activation of an op; refuses constants and other types by name."""
        t = self.graph.tensors[(op.outputs if output else op.inputs)[index]]
        if t.dtype != "INT8" or len(t.scales) != 1:
            raise UserError(f"{self.graph.place(op)} works on {t.dtype} '{shorten(t.name)}': only INT8 is supported.")
        if t.data is not None:
            raise UserError(f"{self.graph.place(op)} has a constant operand '{shorten(t.name)}', which is unsupported.")
        return t

    def _refuse(self, op: Op, why: str) -> UserError:
        return UserError(f"{self.graph.place(op)}: the int8 runner does not support {why}.")

    # -- records -----------------------------------------------------------------------------------------------------

    def _head(self, op: Op, step: int, kind: int, inputs: tuple[int, ...], activation: int = 0) -> list[int]:
        """kind, words (filled in later), in0, in1, out, activation minimum and maximum (CalculateActivationRange)."""
        ids = [self._use(step, op.inputs[i]) for i in inputs]
        out = self._activation(op, 0, output=True)
        self._hwc(out)
        low, high = self._activation_range(op, out, activation)
        return [kind, 0, ids[0], ids[1] if len(ids) > 1 else ids[0], self._use(step, op.outputs[0]), low, high]

    def _activation_range(self, op: Op, out: Tensor, activation: int) -> tuple[int, int]:
        """tflite::CalculateActivationRangeQuantized, kernel_util.cc (float division, round half away)."""

        def quantized(real: float) -> int:
            x = float(np.float32(real) / out.scale)
            return out.zero_point + (math.floor(x + 0.5) if x >= 0 else math.ceil(x - 0.5))

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

    def _weights(self, op: Op, x: Tensor, w: Tensor, out: Tensor, channels: int) -> list[int]:
        """weights offset, bias offset, offset of the multipliers (then shifts) in the constant pool."""
        if w.data is None or w.dtype != "INT8":
            raise self._refuse(op, "weights that are not stored as INT8")
        bias_at = NONE
        if len(op.inputs) > 2 and op.inputs[2] >= 0:
            bias = self.graph.tensors[op.inputs[2]]
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
        """add.cc: both inputs to a common scale with 20 extra bits, then to the output's."""
        a, b, out = self._activation(op, 0), self._activation(op, 1), self._activation(op, 0, output=True)
        if not (self._hwc(a) == self._hwc(b) == self._hwc(out)):
            raise self._refuse(op, f"broadcasting {list(a.shape)} + {list(b.shape)}")
        twice = 2.0 * float(max(a.scale, b.scale))
        reals = (float(a.scale) / twice, float(b.scale) / twice, twice / ((1 << 20) * float(out.scale)))
        if reals[2] >= 1:
            raise self._refuse(op, "an output scale so much finer than the inputs'")
        record = self._head(op, step, ADD, (0, 1), op.options.fusedActivationFunction)
        return record + [v for r in reals for v in quantize_multiplier(r)]

    def _mean(self, op: Op, step: int) -> list[int]:
        """reduce.h, QuantizedMeanOrSum: 1/count folded into the multiplier."""
        x, out, axes = self._activation(op, 0), self._activation(op, 0, output=True), self.graph.tensors[op.inputs[1]]
        if axes.data is None or axes.dtype != "INT32":
            raise self._refuse(op, "axes computed in the graph")
        rank = len(x.shape)
        reduced = {int(a) % rank + 4 - rank for a in self.graph.constant(axes, np.int32).ravel()} - {0}
        mask = sum(1 << (a - 1) for a in reduced)  # bit 0 height, 1 width, 2 channels
        count = math.prod(self._hwc(x)[a - 1] for a in reduced)
        multiplier, shift = quantize_multiplier(float(x.scale) / float(out.scale))
        move = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << move) // count, shift - move
        return [*self._head(op, step, MEAN, (0,)), mask, count, multiplier, shift]

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
            at = offsets[self._root(t)]
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
