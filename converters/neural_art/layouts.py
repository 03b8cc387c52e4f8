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
        _, rows, columns, inputs = dims
        return ((o * rows + h) * columns + w) * inputs + i


@dataclass(frozen=True)
class Blocked:
    """Blocks of G output by b input channels, the input blocks inside; a block is [G][H][W][b]. The last ones are smaller."""

    G: Index
    b: Index
    family: ClassVar[int] = 1

    def size(self, dims: Dims) -> Index:
        return math.prod(dims)

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        outputs, rows, columns, inputs = dims
        o0, i0 = o - o % self.G, i - i % self.b
        g, d = np.minimum(self.G, outputs - o0), np.minimum(self.b, inputs - i0)
        return (o0 * inputs + g * i0) * rows * columns + (((o - o0) * rows + h) * columns + w) * d + i - i0


@dataclass(frozen=True)
class Deep:
    """1x1 only. Frames of OB output by IB input channels, the input frames inside; a frame is groups of S output
    channels, a group is [IB][S]; zeros pad every frame to a multiple of M bytes. The last of each kind are smaller."""

    OB: Index
    IB: Index
    S: Index = 8
    M: Index = 3
    family: ClassVar[int] = 2

    def size(self, dims: Dims) -> Index:
        outputs, _, _, inputs = dims
        return outputs // self.OB * self._row(self.OB, inputs) + self._row(outputs % self.OB, inputs)

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        outputs, _, _, inputs = dims
        o0, i0 = o - o % self.OB, i - i % self.IB
        n, d = np.minimum(self.OB, outputs - o0), np.minimum(self.IB, inputs - i0)
        s0 = (o - o0) - (o - o0) % self.S
        s = np.minimum(self.S, n - s0)
        frame = o // self.OB * self._row(self.OB, inputs) + i // self.IB * self._frame(n, self.IB)
        return frame + s0 * d + (i - i0) * s + (o - o0 - s0) + 0 * (h + w)

    def _frame(self, n: Index, d: Index) -> Index:
        return -(-n * d // self.M) * self.M

    def _row(self, n: Index, inputs: int) -> Index:
        return inputs // self.IB * self._frame(n, self.IB) + self._frame(n, inputs % self.IB)


@dataclass(frozen=True)
class Inflated:
    """Depthwise only. [C][H][W][b], where channel c has its weights at j = c % b and zeros at every other j."""

    b: Index
    family: ClassVar[int] = 3

    def size(self, dims: Dims) -> Index:
        return math.prod(dims) * self.b

    def at(self, dims: Dims, o: Index, h: Index, w: Index, i: Index) -> Index:
        _, rows, columns, _ = dims
        return ((i * rows + h) * columns + w) * self.b + i % self.b + 0 * o


Layout = Plain | Blocked | Deep | Inflated
FAMILIES: tuple[type[Layout], ...] = (Plain, Blocked, Deep, Inflated)


def parameters(layout: Layout) -> dict[str, int]:
    return {field.name: int(getattr(layout, field.name)) for field in fields(layout)}


def describe(layout: Layout) -> str:
    """'blocked G=8 b=8'."""
    return " ".join([type(layout).__name__.lower(), *(f"{k}={v}" for k, v in parameters(layout).items())])


def valid(layout: Layout, dims: Dims) -> bool:
    """Whether the parameters make sense for a box of these dimensions."""
    outputs, rows, columns, inputs = dims
    match layout:
        case Plain():
            return True
        case Blocked(G, b):
            return 1 <= G <= outputs and 1 <= b <= inputs
        case Deep(OB, IB, S, M):
            return rows == columns == 1 and 1 <= OB <= outputs and 1 <= IB <= inputs and 1 <= S <= 256 and 1 <= M <= 256
        case Inflated(b):
            return outputs == 1 and 1 <= b <= 256


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
            0 <= first and 1 <= n and first + n <= whole
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
