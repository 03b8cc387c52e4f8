"""What a board takes for an image, to the byte, and whether a board has that much: decided before anything is sent.

`requirements` computes what tflm_app/runners/int8/runner.c (plan_memory) and the *_scratch functions beside it will,
`place` what tflm_app/app/load.c does with it. The board decides again when it loads. A network compiled for an NPU has
its activations where the compiler put them; what has to fit is the image, in two parts, and samples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from converters import plan as kinds
from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.neural_art.profile import PSRAM_SIZE
from pipeline.targets.target import NPU, Region, TargetInfo

ALIGN = 64
LOSS_TABLE_BYTES = 16 + 4 * 256  # in the image, but counted as training's
LABEL_BYTES = 2
MAX_SAMPLES = 1 << 20  # app/load.c
MIB = 1 << 20


@dataclass(frozen=True)
class Requirements:
    """Bytes for an image with one set of kernels, or (NPU in their place) for a compiled network.

    activations and scratch are a worker's; op_scratch: what each op of the plan would take, of which scratch is the
    most. image: the file as it is loaded, weights the part of it that is trained. sample: an image with its label.
    blob: of a compiled network, the end of the file, which goes where its weights are (image is the rest then).
    elsewhere: its activations, in memory that the compiler was given.
    """

    kernels: str
    image: int
    weights: int
    activations: int
    op_scratch: tuple[int, ...]
    sample: int
    blob: int = 0
    elsewhere: int = 0

    @property
    def scratch(self) -> int:
        return max(map(_aligned, self.op_scratch), default=0)

    def work(self, workers: int) -> int:
        """Activations and scratch of all workers."""
        return workers * (self.activations + self.scratch)

    def rows(self, workers: int, samples: int) -> dict[str, int]:
        """The rows of HELLO's memory report that depend on the image and the number of samples."""
        return {
            "weights": self.weights,
            "model": self.image + self.blob - self.weights - LOSS_TABLE_BYTES,
            "activations": workers * self.activations + self.elsewhere,
            "scratch": workers * self.scratch,
            "packed": 0,
            "samples": samples * self.sample,
        }


@dataclass(frozen=True)
class BoardMemory:
    """What a board has: the memory for image, work, samples and a compiled network's weights (purposes with the same
    number share a region), the name of each region by its number, and what decides how much is taken."""

    board: str
    kernels: str
    workers: int
    regions: tuple[Region, ...]
    names: Mapping[int, str]

    @staticmethod
    def of(info: TargetInfo) -> BoardMemory | None:
        """What a board says of itself. None where it does not say, or has a runner whose needs are not known here.

        Kernels that pack weights give way to portable ones where memory is short, so those count.
        """
        kernels = {"int8 words": "words", "int8 mve": "mve", NPU: NPU}.get(info.runner, "portable")
        if not info.regions or not info.runner.startswith(("int8 ", NPU)):
            return None
        board = info.board.partition("-")[0]  # stm32n6-nucleo
        boards = NPU_BOARDS if kernels == NPU else BOARDS
        if info.board in boards and info.regions == boards[info.board].regions:  # with its PSRAM
            board = info.board
        names = boards[board].names if board in boards else {}
        return BoardMemory(info.board, kernels, info.threads, info.regions, names)

    def name(self, purpose: int) -> str:
        return self.names.get(self.regions[purpose].number, "memory")


_DDR = Region(0, 1024 * MIB)
_NONE = Region(3, 0)  # no compiled network
_AXISRAM1 = Region(0, 736 << 10)
# Boards as they start without options; boards/BOARD/port.c has the same figures.
BOARDS = {
    "native": BoardMemory("native", "portable", min(os.cpu_count() or 1, 64), (_DDR,) * 3 + (_NONE,), {0: "memory"}),
    "qemu_an547": BoardMemory("qemu_an547", "words", 1, (_DDR, Region(1, 4 * MIB), _DDR, _NONE), {0: "DDR", 1: "SRAM"}),
    "stm32n6": BoardMemory(
        "stm32n6",
        "mve",
        1,
        (Region(0, 1792 << 10), Region(1, MIB), Region(2, 864 << 10), _NONE),
        {0: "AXISRAM3 to 6", 1: "AXISRAM2", 2: "AXISRAM1"},
    ),
    "stm32n6-dk": BoardMemory(
        "stm32n6-dk",
        "mve",
        1,
        (Region(0, PSRAM_SIZE), Region(1, MIB), Region(0, PSRAM_SIZE), _NONE),
        {0: "PSRAM", 1: "AXISRAM2"},
    ),
}
# Builds for the NPU: AXISRAM2 to 6 belong to the compiled network, which says how much of it its weights may take.
NPU_BOARDS = {
    "stm32n6": BoardMemory(
        "stm32n6", NPU, 1, (_AXISRAM1,) * 3 + (Region(3, 1792 << 10),), {0: "AXISRAM1", 3: "the pool of the weights"}
    ),
}


def board_memory(board: str, kernels: str | None = None, pool: int | None = None) -> BoardMemory:
    """What a board has before it is started, with its usual kernels or these.

    pool: bytes for the weights of a compiled network, where the kernels are NPU. Raises UserError without such an NPU.
    """
    if kernels == NPU:
        if board not in NPU_BOARDS:
            raise UserError(f"the board {board} has no Neural-ART NPU: use {' or '.join(NPU_BOARDS)}.")
        found = NPU_BOARDS[board]
        return found if pool is None else replace(found, regions=(*found.regions[:3], Region(3, pool)))
    return replace(BOARDS[board], kernels=kernels or BOARDS[board].kernels)


def with_psram(memory: BoardMemory, image: int) -> BoardMemory:
    """What the STM32N6570-DK has for an image of so many bytes, where the other board has memory: PSRAM for samples,
    and for images that do not fit AXISRAM3 to 6."""
    if image > memory.regions[0].size:
        return replace(BOARDS["stm32n6-dk"], kernels=memory.kernels)
    regions = (*memory.regions[:2], Region(2, PSRAM_SIZE), *memory.regions[3:])
    return replace(memory, regions=regions, names={**memory.names, 2: "PSRAM"})


@dataclass(frozen=True)
class Shortage:
    """Something that does not fit: what, bytes of it, bytes that there are for it, in which memory."""

    what: str
    needed: int
    there: int
    memory: str
    most: int | None = None  # samples that fit, where they are what is too much

    def __str__(self) -> str:
        takes = "take" if self.what.endswith("s") else "takes"
        more = f"{self.needed - self.there:,} more than the {self.there:,} that are there for it in {self.memory}"
        return f"{self.what} {takes} {self.needed:,} bytes, {more}"


@dataclass(frozen=True)
class Placement:
    """Where an image has been placed: bytes free of each region by its number, and samples that fit."""

    free: Mapping[int, int]
    capacity: int


def place(need: Requirements, board: BoardMemory, samples: int = 1) -> Placement | Shortage:
    """Share out a board's memory as the board does. samples: how many are wanted at least."""
    free = {r.number: r.size for r in board.regions}
    image, work, store = (r.number for r in board.regions[:3])
    if need.blob and need.blob > (there := board.regions[3].size):
        return Shortage("the compiled network's memory file", need.blob, there, board.name(3))
    if need.image > free[image]:
        return Shortage("the image", need.image, free[image], board.name(0))
    free[image] -= min(_aligned(need.image), free[image])
    total = need.work(board.workers)
    if total > free[work]:
        words = f"activations ({board.workers * need.activations:,}) and the scratch of the {need.kernels} kernels"
        return Shortage(words, total, free[work], board.name(1))
    free[work] -= total
    room = max(free[store] - 2 * ALIGN, 0)  # labels and images are padded
    room = min(room, MAX_SAMPLES * need.sample)
    capacity = room // need.sample
    if capacity < max(samples, 1):
        words = f"{samples:,} samples" if samples > 1 else "one sample"
        return Shortage(words, samples * need.sample, room, board.name(2), capacity)
    free[store] -= samples * need.sample
    return Placement(free, capacity)


def fit(need: Requirements, board: BoardMemory, samples: int = 1, advice: str = "") -> str | None:
    """None when a board has what an image needs, else a sentence: what is too large, by how much, in which memory.

    advice: what to do, where something better is known than bounds.
    """
    found = place(need, board, samples)
    if isinstance(found, Placement):
        return None
    if found.most:
        advice = f"at most {found.most:,} samples of {need.sample:,} bytes fit"
    return f"the network does not fit the board {board.board}: {found}; {advice or bounds(need, board)}."


def bounds(need: Requirements, board: BoardMemory) -> str:
    """What a board offers, in words."""
    image, work = board.regions[:2]
    if need.blob:
        return (
            f"use a smaller network or input: the map of its weights ({need.image:,} bytes) and samples share "
            f"{image.size:,} bytes, that file may have {board.regions[3].size:,} (it has {need.blob:,})"
        )
    smaller = "use a smaller network or input" + (" or fewer --threads" if board.workers > 1 else "")
    if image.number == work.number:
        return (
            f"{smaller}: image, activations, scratch and samples share {image.size:,} bytes, of which this image alone "
            f"takes {need.image:,}"
        )
    return (
        f"{smaller}: the image may have at most {image.size:,} bytes (it has {need.image:,}), activations and scratch "
        f"{work.size // board.workers:,} (they have {need.activations + need.scratch:,})"
    )


def requirements(image: DeviceImage, kernels: str) -> Requirements:
    """What an image needs with "portable", "words" or "mve" kernels; one for the NPU, whatever is said.

    Raises UserError for a plan that is damaged.
    """
    if image.npu is not None:
        head, sent = image.written[0], len(image.for_board())
        sample = image.input.size + LABEL_BYTES
        return Requirements(NPU, head, image.weights, 0, (), sample, sent - head, image.npu.activations)
    try:
        plan = _Plan(image.plan)
        op_scratch = tuple(_scratch(plan, op, kernels) for op in plan.ops)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise UserError("the image's plan is inconsistent: make the image anew.") from error
    return Requirements(
        kernels=kernels,
        image=len(image.raw),
        weights=image.weights,
        activations=_aligned(plan.arena),
        op_scratch=op_scratch,
        sample=image.input.size + LABEL_BYTES,
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


# -- the plan (tflm_app/image/plan.h) --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    height: int
    width: int
    channels: int

    @property
    def elements(self) -> int:
        return self.height * self.width * self.channels


@dataclass(frozen=True)
class _Window:
    """Kernel, stride, dilation and padding before, each along height and width."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class _Op:
    kind: int
    input: _Tensor
    output: _Tensor
    rest: tuple[int, ...]  # words after the seven that all kinds have

    @property
    def window(self) -> _Window:
        return _Window(*(self.rest[i : i + 2] for i in (0, 2, 4, 6)))


class _Plan:
    def __init__(self, words: np.ndarray) -> None:
        values = words.tolist()
        tensors = [_Tensor(*values[8 + 5 * i + 1 : 8 + 5 * i + 4]) for i in range(values[0])]
        self.arena, at, pool = values[4:7]
        self.pool = words[pool:].view("<i4")
        self.ops = []
        for _ in range(values[1]):
            kind, length, first, _, out = values[at : at + 5]
            self.ops.append(_Op(kind, tensors[first], tensors[out], tuple(values[at + 7 : at + length])))
            at += length

    def shifts(self, op: _Op) -> np.ndarray:
        """Of each output channel of an op with a filter: its record ends with the place of its scales."""
        n = op.output.channels
        return self.pool[op.rest[-1] + n : op.rest[-1] + 2 * n]


# -- scratch of each kernel, in bytes --------------------------------------------------------------------------------


def _scratch(plan: _Plan, op: _Op, kernels: str) -> int:
    if kernels == "mve" and (own := _mve_scratch(plan, op)) is not None:
        return own
    channels = op.output.channels
    if op.kind == kinds.CONV_2D:
        depth = op.window.taps * op.input.channels
        return 4 * (4 * channels + (4 if kernels == "words" else 2) * depth)
    if op.kind == kinds.MEAN:
        return 4 * op.output.elements
    if op.kind in (kinds.DEPTHWISE_CONV_2D, kinds.FULLY_CONNECTED, kinds.AVERAGE_POOL_2D, kinds.TRANSPOSE_CONV):
        return 4 * channels
    return 0


def _mve_scratch(plan: _Plan, op: _Op) -> int | None:
    """None where Helium is not used for this op."""
    if op.kind == kinds.MEAN:
        return 0 if op.rest[0] == 3 else None  # over height and width
    if op.kind == kinds.DEPTHWISE_CONV_2D:
        return _mve_depthwise(plan, op)
    if op.kind not in (kinds.CONV_2D, kinds.FULLY_CONNECTED) or op.output.channels < 4 or plan.shifts(op).max() > 0:
        return None
    if op.kind == kinds.FULLY_CONNECTED:
        return _mve_filters(op.output, op.input.elements // (op.output.elements // op.output.channels))
    return _mve_conv(op)


def _mve_filters(out: _Tensor, depth: int) -> int:
    """mve/filters.c: three words a channel, in fours, and both pixels' inputs in blocks of 16."""
    constants = 0 if out.height * out.width == 1 else 48 * -(-out.channels // 4)
    return constants + 32 * -(-depth // 16)


def _mve_conv(op: _Op) -> int:
    """mve/conv_2d.c: a strip of input rows, and a patch of one window where it is in no blocks."""
    w, x, out = op.window, op.input, op.output
    rows = _used_taps(w, 0, x.height, out.height)
    columns = _used_taps(w, 1, x.width, out.width) if rows == 1 else w.kernel[1]
    dilated = w.dilation[1] > 1
    piece = x.channels if dilated else columns * x.channels
    depth = rows * columns * x.channels
    strip_columns = (out.width - 1) * w.stride[1] + (columns - 1) * w.dilation[1] + 1
    return _mve_filters(out, depth) + rows * strip_columns * x.channels + (depth if piece % 16 else 0) + 16


def _used_taps(w: _Window, axis: int, size: int, n_out: int) -> int:
    """How many taps there are from the first to the last one that some output has inside the input."""
    stride = w.stride[axis]

    def is_used(tap: int) -> bool:
        at = tap * w.dilation[axis] - w.pad[axis]
        first = -(at // stride) if at < 0 else 0
        return first < n_out and at + first * stride < size

    taps = list(range(w.kernel[axis]))
    while len(taps) > 1 and not is_used(taps[0]):
        del taps[0]
    while len(taps) > 1 and not is_used(taps[-1]):
        del taps[-1]
    return len(taps)


def _mve_depthwise(plan: _Plan, op: _Op) -> int | None:
    """mve/planar.c, or mve/depthwise_conv_2d.c where a channel's plane is not usable."""
    w, x, out = op.window, op.input, op.output
    shifts = plan.shifts(op)
    rows, pitch = (
        (n - 1) * w.stride[axis] + (w.kernel[axis] - 1) * w.dilation[axis] + 1
        for axis, n in enumerate((out.height, out.width))
    )
    furthest = (w.kernel[0] - 1) * w.dilation[0] * pitch + (w.kernel[1] - 1) * w.dilation[1] + 3 * w.stride[1]
    same = x.channels == out.channels
    if same and out.width >= 4 and w.taps <= 16 and 7 * x.channels < 1 << 16 and shifts.max() < 0 and furthest < 256:
        return rows * pitch + 16
    return 8 * w.taps if same and x.channels >= 8 and shifts.max() <= 0 else None
