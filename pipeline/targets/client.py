"""A board as a target: the commands of docs/protocol.md, packed, sent and checked."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from converters.device_image import RUNNER_INT8, RUNNER_NEURAL_ART, DeviceImage
from converters.errors import UserError
from pipeline.cli import progress
from pipeline.targets.link import Link, LinkClosed, Refused
from pipeline.targets.memory import BoardMemory, fit, requirements
from pipeline.targets.target import STOCHASTIC, BatchLoss, Probe, Region, TargetInfo, Update, UpdateResult

PROTOCOL_VERSION = 3

# tflm_app/app/commands.h
HELLO, LOAD_BEGIN, LOAD_DATA, LOAD_END, READ, LOAD_BULK = 0x01, 0x10, 0x11, 0x12, 0x13, 0x14
PIXELS, LABELS, SELECT, PIXELS_BULK = 0x20, 0x21, 0x22, 0x23
LOGITS, LOSS, PROBE, UPDATE, WEIGHTS_CRC, TRACE, PROFILE, SET_WEIGHT = 0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37
BOTH_SIDES, PLUS_SIDE = 0, 1
TRACE_MISSING, PROFILE_MISSING = 24, 27  # tflm_app/app/status.h

_HELLO = struct.Struct("<HH6I8II8I10I16s16s")
_LOSS = struct.Struct("<QI4x")
_PROFILE = struct.Struct("<5Q2I")
PHASES = ("perturb", "forward", "loss", "update", "crc")  # tflm_app/app/app.h
MEMORY_ROWS = (
    "weights", "model", "activations", "scratch", "packed", "training", "batch", "samples", "link", "stack",
)  # fmt: skip

QUICK_TIMEOUT = 10.0  # s, for commands that only move bytes
COMPUTE_TIMEOUT = 600.0  # s, for commands that run forward passes
# s, the same over a line that does not tell when the board has gone. A board there says every second that it works,
# but not within a sample or a walk over the weights, for which its watchdog gives it 120 s (or 131 at most).
BUSY_TIMEOUT = 140.0
BULK_TIMEOUT = 60.0  # s, for BULK_BYTES
BULK_BYTES = 1 << 18


def _tag(number: int) -> str:
    return number.to_bytes(4, "little").decode("latin-1")


def other_runner(of_image: int, of_board: int) -> str:
    """What to do."""
    if (of_image, of_board) == (RUNNER_NEURAL_ART, RUNNER_INT8):
        return "build and flash the firmware with the compiled network, or load the image for the int8 runner"
    if (of_image, of_board) == (RUNNER_INT8, RUNNER_NEURAL_ART):
        return "load the image for the NPU (neural_art/NAME.zimg), or flash the firmware with the int8 runner"
    return "convert the model for this board"


def other_network(of_image: int, of_firmware: int) -> str:
    return (
        f"the image is of the compiled network {of_image:08x}, the board's firmware has {of_firmware:08x}: build and "
        "flash the firmware with the network that the image was made of."
    )


# tflm_app/app/status.h: what happened and what to do.
SENTENCES: dict[int, Callable[[int, int], str]] = {
    1: lambda a, b: f"the board does not know command 0x{a:02x}: flash the firmware of this version.",
    2: lambda a, b: f"the board got {a} bytes where {b} were expected: flash the firmware of this version.",
    3: lambda a, b: (
        "the board was reset and has no image any more: a run continues with --resume, which loads it again."
    ),
    4: lambda a, b: f"the image arrived out of order (offset {a} instead of {b}): start again.",
    5: lambda a, b: f"the image has {a:,} bytes, the board has room for {b:,}: use a narrower or smaller network.",
    6: lambda a, b: "the board says that this is not a device image: make one with python -m pipeline.convert.",
    7: lambda a, b: f"the image has version {a}, the board reads version {b}: convert anew or update the firmware.",
    8: lambda a, b: f"the image was made for runner {a}, the board has runner {b}: {other_runner(a, b)}.",
    9: lambda a, b: f"the image arrived damaged (CRC-32 {a:08x} instead of {b:08x}): copy or make it anew.",
    10: lambda a, b: f"the image's section '{_tag(a)}' is missing or inconsistent: make the image anew.",
    11: lambda a, b: f"the image's plan is inconsistent (entry {a}, check {b}): make the image anew.",
    12: lambda a, b: f"the image's trainable weights are inconsistent (segment {a}, check {b}): make the image anew.",
    13: lambda a, b: (
        f"the network needs {a:,} bytes beside its weights, the board has {b:,} left: "
        "use a smaller input or network, or fewer threads."
    ),
    14: lambda a, b: f"samples up to {a:,} were named, the board has {b:,}: use fewer samples.",
    15: lambda a, b: f"label {a} is beyond the network's {b} classes: choose the data set that it was made for.",
    16: lambda a, b: "the batch is empty: select samples first.",
    17: lambda a, b: f"a batch of {a} samples is beyond the board's limit of {b}: use a smaller --batch.",
    18: lambda a, b: f"mu {a} is not between 1 and the image's headroom {b}: lower --mu or convert with --mu-max.",
    19: lambda a, b: f"{a} directions are not between 1 and {b}: lower q.",
    20: lambda a, b: f"coefficient {a} is beyond 2^24: lower --lr.",
    21: lambda a, b: f"the board does not know rounding {a}: flash the firmware of this version.",
    22: lambda a, b: f"a read up to {a} is beyond the image's {b} bytes: flash the firmware of this version.",
    23: lambda a, b: f"a trace of op or byte {a} is beyond the last of {b}: make the image anew.",
    24: lambda a, b: "the board's runner cannot stop after an op: only its logits can be compared.",
    25: lambda a, b: (
        f"the board's runner could not {('prepare', 'run')[b]} the network in {a:,} bytes of work memory: "
        "use a smaller network, or one with the ops that the firmware was built for."
    ),
    26: lambda a, b: "the board's link takes nothing in bulk: flash the firmware of this version.",
    27: lambda a, b: "the board's runner only runs whole networks: it cannot say how long an op takes.",
    28: lambda a, b: f"the image's map of the weights is inconsistent (entry {a}, check {b}): make the image anew.",
    29: lambda a, b: (
        f"the network was compiled for weights at {a:#x}, the board has them at {b:#x}: compile it with the memory "
        "pools that convert writes, or for the right variant of the board."
    ),
    30: lambda a, b: (
        f"the network in the board's firmware has an input or output of {a:,} bytes, the image's has {b:,}: build and "
        "flash the firmware with the network that the image was made of."
    ),
    31: lambda a, b: f"weight {a:,} is beyond the image's {b:,}: name one of them.",
    32: lambda a, b: (
        f"a weight of {a - (a >> 31 << 32)} is beyond the +-{b} that leave room for probes: choose a smaller value."
    ),
    33: other_network,
}


class CannotTrace(UserError):
    """The board's runner only runs whole networks."""


class Board:
    """A board behind a link, with an image loaded. Implements pipeline.targets.target.Target."""

    def __init__(self, link: Link, image: bytes, *, describe_end: Callable[[], str] = lambda: ""):
        """Load the image. describe_end tells, when the link is gone, what became of the board."""
        self._link, self._link_rate = link, 0.0
        self._describe_end = describe_end
        self._patience = COMPUTE_TIMEOUT if link.reliable else BUSY_TIMEOUT
        try:
            self.image = DeviceImage.read(image)
            self.info = self._hello()
            self._load()
        except BaseException:
            link.close()
            raise

    # -- commands ----------------------------------------------------------------------------------------------------

    def _command(self, kind: int, payload: bytes = b"", *, bulk: bytes = b"", timeout: float = QUICK_TIMEOUT) -> bytes:
        try:
            return self._link.command(kind, payload, bulk=bulk, timeout=timeout)
        except Refused as e:
            self._refuse(e)
        except LinkClosed as e:
            raise UserError(self._describe_end() or "the board is gone: its link closed.") from e

    @staticmethod
    def _refuse(e: Refused) -> NoReturn:
        sentence = SENTENCES.get(e.code, lambda a, b: f"the board refused with unknown status {e.code} ({a}, {b}).")
        raise (CannotTrace if e.code in (TRACE_MISSING, PROFILE_MISSING) else UserError)(sentence(e.a, e.b)) from e

    def _hello(self) -> TargetInfo:
        reply = self._command(HELLO, timeout=self._patience if hasattr(self, "info") else QUICK_TIMEOUT)
        if len(reply) < 2 or int.from_bytes(reply[:2], "little") != PROTOCOL_VERSION or len(reply) != _HELLO.size:
            found = int.from_bytes(reply[:2], "little")
            raise UserError(
                f"the board speaks protocol version {found}, this program version {PROTOCOL_VERSION}: "
                "build and flash the firmware of this version."
            )
        fields = _HELLO.unpack(reply)
        self._images, self._max_payload, max_batch, workers, bulk, stack_bytes, ticks_per_second = fields[1:8]
        self._bulk = bool(bulk) and self._link.reliable
        regions = tuple(Region(*fields[i : i + 2]) for i in (8, 10, 12, 14))
        network, _, image_crc, weights_crc, weights, mu_max, classes, sample_bytes, capacity = fields[16:25]
        memory = dict(zip(MEMORY_ROWS, fields[25:35], strict=True))
        if self.image.npu is not None:  # they are the compiler's: the board does not know
            memory["activations"] = self.image.npu.activations
        board, runner = (s.rstrip(b"\0").decode("latin-1") for s in fields[-2:])
        return TargetInfo(
            board=board,
            runner=runner,
            image_crc=image_crc,
            weights_crc=weights_crc,
            weights=weights,
            mu_max=mu_max,
            classes=classes,
            sample_bytes=sample_bytes,
            capacity=capacity,
            max_batch=max_batch,
            threads=workers,
            memory=memory,
            regions=regions,
            network=network,
            stack_bytes=stack_bytes,
            ticks_per_second=ticks_per_second,
            link_rate=self._link_rate,
        )

    def _load(self) -> None:
        """Send the image. Raises UserError before that for what _check finds."""
        raw = self.image.for_board()
        self._check()
        self._command(LOAD_BEGIN, struct.pack("<II", len(raw), zlib.crc32(raw)))
        start = time.monotonic()
        with progress(len(raw), "loading the image", "B", unit_scale=True, delay=3, leave=False) as bar:
            self._send(raw, 0, LOAD_DATA, LOAD_BULK, self._max_payload - 4, bar.update)
        self._link_rate = len(raw) / max(time.monotonic() - start, 1e-6)
        self._command(LOAD_END, timeout=self._patience)
        self.info = self._hello()
        if self.info.image_crc != self.image.crc:
            raise UserError("the board loaded another image than was sent: reset the board and try again.")

    def _check(self) -> None:
        """What the board would refuse once all of it is there is refused before that."""
        if self.image.runner != self._images:
            raise UserError(SENTENCES[8](self.image.runner, self._images))
        of_image = self.image.npu.section.network if self.image.npu is not None else 0
        if of_image and self.info.network and of_image != self.info.network:
            raise UserError(other_network(of_image, self.info.network))
        memory = BoardMemory.of(self.info)
        if memory is not None and (why := fit(requirements(self.image, memory.kernels), memory)):
            raise UserError(why)

    def _send(
        self,
        data: bytes,
        offset: int,
        framed: int,
        bulk: int,
        step: int,
        done: Callable[[int], object] = lambda size: None,
    ) -> None:
        """Bytes to an offset, in frames of at most `step` of them, or in bulk where the link takes that; done(size) of
        each."""
        if self._bulk:
            step = BULK_BYTES
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            if self._bulk:
                self._command(bulk, struct.pack("<II", offset + at, len(piece)), bulk=piece, timeout=BULK_TIMEOUT)
            else:
                self._command(framed, struct.pack("<I", offset + at) + piece)
            done(len(piece))

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the image as they are on the board now."""
        parts = []
        for at in range(offset, offset + size, self._max_payload):
            count = min(self._max_payload, offset + size - at)
            parts.append(self._command(READ, struct.pack("<II", at, count)))
        return b"".join(parts)

    def logits(self) -> np.ndarray:
        """int8 [batch, classes] of the current batch."""
        reply = self._command(LOGITS, timeout=self._patience)
        return np.frombuffer(reply, np.int8).reshape(-1, self.info.classes)

    @property
    def most_logits(self) -> int:
        """Samples whose logits fit one answer."""
        return max(1, min(self.info.max_batch, self.info.capacity, self._max_payload // self.info.classes))

    def trace(self, op: int, size: int) -> np.ndarray:
        """int8 [size]: what op number `op` of the PLAN makes of the first sample of the batch. Raises CannotTrace."""
        data = b""
        while len(data) < size:
            data += self._command(TRACE, struct.pack("<II", op, len(data)), timeout=self._patience)
        return np.frombuffer(data, np.int8)

    def profile_phases(self) -> dict[str, int]:
        """Ticks of the board's clock that each of PHASES took so far; differences count. Needs a batch."""
        return self._profile(0xFFFFFFFF)[0]

    def profile_ops(self) -> tuple[np.ndarray, int]:
        """Ticks of each op of the PLAN, uint64 [ops], in a pass over the batch's first samples; how many these are.

        Raises CannotTrace where the board's runner only runs whole networks.
        """
        _, samples, ops, ticks = self._profile(0)
        while len(ticks) < ops:
            ticks = np.concatenate([ticks, self._profile(len(ticks))[3]])
        return ticks, samples

    def _profile(self, op: int) -> tuple[dict[str, int], int, int, np.ndarray]:
        """Phases, samples of the pass, ops of the plan, ticks of ops from this one on."""
        reply = self._command(PROFILE, struct.pack("<I", op), timeout=self._patience)
        *phases, samples, ops = _PROFILE.unpack_from(reply)
        return dict(zip(PHASES, phases, strict=True)), samples, ops, np.frombuffer(reply, "<u8", offset=_PROFILE.size)

    # -- Target ------------------------------------------------------------------------------------------------------

    def write_samples(self, first: int, pixels: np.ndarray, labels: np.ndarray) -> None:
        flat = np.ascontiguousarray(pixels, np.uint8).reshape(-1)
        if flat.size != len(labels) * self.info.sample_bytes:
            raise UserError(
                f"images of {flat.size // max(1, len(labels)):,} bytes do not fit the network's input of "
                f"{self.info.sample_bytes:,}: choose the input size and channels that the image was made for."
            )
        step = (self._max_payload - 4) // 4 * 4
        self._send(flat.tobytes(), first * self.info.sample_bytes, PIXELS, PIXELS_BULK, step)
        codes = np.asarray(labels, "<u2")
        for at in range(0, len(codes), step // 2):
            self._command(LABELS, struct.pack("<I", first + at) + codes[at : at + step // 2].tobytes())

    def select(self, slots: Sequence[int]) -> None:
        self._command(SELECT, np.asarray(slots, "<u4").tobytes())

    def loss(self) -> BatchLoss:
        return BatchLoss(*_LOSS.unpack(self._command(LOSS, timeout=self._patience)))

    def _probe(self, seed: int, mu: int, sides: int) -> tuple[BatchLoss, BatchLoss]:
        reply = self._command(PROBE, struct.pack("<QII", seed, mu, sides), timeout=self._patience)
        return BatchLoss(*_LOSS.unpack_from(reply)), BatchLoss(*_LOSS.unpack_from(reply, _LOSS.size))

    def probe(self, seed: int, mu: int) -> Probe:
        return Probe(*self._probe(seed, mu, BOTH_SIDES))

    def probe_plus(self, seed: int, mu: int) -> BatchLoss:
        return self._probe(seed, mu, PLUS_SIDE)[0]

    def update(self, update: Update) -> UpdateResult:
        q = len(update.seeds)
        head = struct.pack("<QII", update.rounding_seed, int(update.rounding == STOCHASTIC), q)
        body = struct.pack(f"<{q}Q{q}i", *update.seeds, *update.coefficients)
        return UpdateResult(*struct.unpack("<III", self._command(UPDATE, head + body, timeout=self._patience)))

    def weights_crc(self) -> int:
        return int.from_bytes(self._command(WEIGHTS_CRC, timeout=self._patience), "little")

    def set_weight(self, index: int, value: int) -> int:
        """Give one weight another value; returns the one that it had."""
        reply = self._command(SET_WEIGHT, struct.pack("<Ii", index, value), timeout=self._patience)
        return int.from_bytes(reply, "little", signed=True)

    def read_tflite(self) -> bytes:
        return self.image.adapted(self.read(*self.image.written))

    def reset_weights(self) -> int:
        """Loads the image again: no copy of its weights lies on the board. The sample store is empty afterwards."""
        self._load()
        return self.info.weights_crc

    def refresh(self) -> TargetInfo:
        """Ask again: weights CRC and memory rows as they are now."""
        self.info = self._hello()
        return self.info

    def close(self) -> None:
        self._link.close()
