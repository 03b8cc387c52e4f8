"""How an int8 filter lies in a parameter buffer of a compiled network: four layouts, of a filter or of a box of one.

A filter has the dimensions (O, H, W, I) of a .tflite: output channels, rows, columns, input channels; a depthwise one
is (1, H, W, C), a fully connected one (O, 1, 1, I). ``at`` maps the weight (o, h, w, i) to its byte in the buffer,
``size`` is the buffer's bytes. Bytes that no weight maps to are zero. All of them work on numpy arrays, of weights and
of parameters, so the solver tries many parameters at once.

The families were found by comparing public builds of STEdgeAI 2.1, 2.2 (X-CUBE-AI 10.2) and 3.0 with their .tflite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

Dims = tuple[int, int, int, int]
Index = int | np.ndarray


@dataclass(frozen=True)
class Plain:
    """The bytes of the .tflite: [O][H][W][I]."""

    family: ClassVar[int] = 0

    def size(self, dims: Dims) -> Index:
        return math.prod(dims)

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        _, nh, nw, ni = dims
        return ((o * nh + h) * nw + w) * ni + i


@dataclass(frozen=True)
class Blocked:
    """Blocks of so many output by input channels, along the inputs first; a block is [outputs][H][W][inputs].
    The last block of either kind is smaller."""

    outputs: Index
    inputs: Index
    family: ClassVar[int] = 1

    def size(self, dims: Dims) -> Index:
        return math.prod(dims)

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        no, nh, nw, ni = dims
        o0, i0 = o - o % self.outputs, i - i % self.inputs
        n, d = np.minimum(self.outputs, no - o0), np.minimum(self.inputs, ni - i0)
        return (o0 * ni + n * i0) * nh * nw + (((o - o0) * nh + h) * nw + w) * d + i - i0


@dataclass(frozen=True)
class Deep:
    """1x1 only. Frames of so many output by input channels, along the inputs first; a frame is groups of output
    channels, a group is [inputs][group]; zeros pad each frame to a multiple of bytes. The last of each is smaller."""

    outputs: Index
    inputs: Index
    group: Index = 8
    multiple: Index = 3
    family: ClassVar[int] = 2

    def size(self, dims: Dims) -> Index:
        no, _, _, ni = dims
        return no // self.outputs * self._row(self.outputs, ni) + self._row(no % self.outputs, ni)

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        no, _, _, ni = dims
        o0, i0 = o - o % self.outputs, i - i % self.inputs
        n, d = np.minimum(self.outputs, no - o0), np.minimum(self.inputs, ni - i0)
        g0 = (o - o0) - (o - o0) % self.group
        g = np.minimum(self.group, n - g0)
        frame = o // self.outputs * self._row(self.outputs, ni) + i // self.inputs * self._frame(n, self.inputs)
        return frame + g0 * d + (i - i0) * g + (o - o0 - g0) + 0 * (h + w)

    def _frame(self, n: Index, d: Index) -> Index:
        return -(-n * d // self.multiple) * self.multiple

    def _row(self, n: Index, ni: int) -> Index:
        return ni // self.inputs * self._frame(n, self.inputs) + self._frame(n, ni % self.inputs)


@dataclass(frozen=True)
class Inflated:
    """Depthwise only. [C][H][W][depth], where channel c has its weights at c % depth and structural zeros beside."""

    depth: Index
    family: ClassVar[int] = 3

    def size(self, dims: Dims) -> Index:
        return math.prod(dims) * self.depth

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        _, nh, nw, _ = dims
        return ((i * nh + h) * nw + w) * self.depth + i % self.depth + 0 * o


Layout = Plain | Blocked | Deep | Inflated
FAMILIES: tuple[type[Layout], ...] = (Plain, Blocked, Deep, Inflated)


def parameters(layout: Layout) -> dict[str, int]:
    return {field.name: int(getattr(layout, field.name)) for field in fields(layout)}


def describe(layout: Layout) -> str:
    """'blocked outputs=8 inputs=8'."""
    return " ".join([type(layout).__name__.lower(), *(f"{k}={v}" for k, v in parameters(layout).items())])


def valid(layout: Layout, dims: Dims) -> bool:
    """Whether the parameters make sense for a box of these dimensions."""
    no, nh, nw, ni = dims
    match layout:
        case Plain():
            return True
        case Blocked(outputs, inputs):
            return outputs in range(1, no + 1) and inputs in range(1, ni + 1)
        case Deep(outputs, inputs, group, multiple):
            frames = outputs in range(1, no + 1) and inputs in range(1, ni + 1)
            return nh == nw == 1 and frames and group in range(1, 257) and multiple in range(1, 257)
        case Inflated(depth):
            return no == 1 and depth in range(1, 257)


@dataclass(frozen=True)
class Box:
    """A part of a filter: its first (o, h, w, i) and its dimensions. ("Submask" in the compiler's names.)"""

    start: Dims
    dims: Dims

    @staticmethod
    def whole(dims: Dims) -> Box:
        return Box((0, 0, 0, 0), dims)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(first, first + n) for first, n in zip(self.start, self.dims, strict=True))

    def inside(self, dims: Dims) -> bool:
        return all(
            first >= 0 and n >= 1 and first + n <= whole
            for first, n, whole in zip(self.start, self.dims, dims, strict=True)
        )

    def overlaps(self, other: Box) -> bool:
        return all(
            a < b + m and b < a + n for a, n, b, m in zip(self.start, self.dims, other.start, other.dims, strict=True)
        )


@dataclass(frozen=True)
class Piece:
    """A box of a filter of dimensions ``filter`` in a buffer of its own, in one layout."""

    filter: Dims
    box: Box
    layout: Layout

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return int(self.layout.size(self.box.dims))

    @property
    def live(self) -> int:
        """Bytes that are weights."""
        return math.prod(self.box.dims)

    @property
    def structural_zeros(self) -> int:
        """Zeros between weights, which the NPU multiplies with: another value there mixes channels."""
        return self.size - self.live if isinstance(self.layout, Inflated) else 0

    @property
    def pad(self) -> int:
        """Zeros after frames."""
        return self.size - self.live - self.structural_zeros

    def offsets(self) -> np.ndarray:
        """int64 of box.dims: the byte in the buffer of each weight of the box."""
        return np.asarray(self.layout.at(self.box.dims, *np.indices(self.box.dims, np.int64, sparse=True)))

    def weights(self) -> np.ndarray:
        """int64 of box.dims: the index in the filter, in the order of the .tflite, of each weight of the box."""
        grid = np.indices(self.box.dims, np.int64, sparse=True)
        return Plain().at(self.filter, *(g + first for g, first in zip(grid, self.box.start, strict=True)))

    def zeros(self) -> np.ndarray:
        """int64, ascending: the bytes of the buffer that are no weights."""
        free = np.ones(self.size, bool)
        free[self.offsets().ravel()] = False
        return np.flatnonzero(free)

    def gather(self, buffer: np.ndarray) -> np.ndarray:
        """The box as a new array, int8 of box.dims, out of a buffer, int8 [size]."""
        return buffer[self.offsets()]

    def scatter(self, buffer: np.ndarray, values: np.ndarray) -> None:
        """Write the box, int8 of box.dims, into a buffer, int8 [size]; leaves every other byte alone."""
        buffer[self.offsets()] = values

    def __str__(self) -> str:
        text = describe(self.layout)
        if self.box.dims == self.filter:
            return text
        return text + " of " + ",".join(f"{f}:{f + n}" for f, n in zip(self.box.start, self.box.dims, strict=True))


def covers(pieces: list[Piece], dims: Dims) -> bool:
    """Whether the boxes hold every weight of a filter exactly once."""
    boxes = [piece.box for piece in pieces]
    return (
        all(box.inside(dims) for box in boxes)
        and sum(math.prod(box.dims) for box in boxes) == math.prod(dims)
        and not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
    )
