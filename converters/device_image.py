"""The device image (.zimg): one file that a board needs to run and train a model. Format: docs/device_image.md."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from converters.errors import UserError
from converters.neural_art.section import CompiledNetwork, gather, pack, unpack
from converters.plan import compile_plan
from converters.tflite_model import (
    IoSpec,
    Segment,
    check_trainable,
    io_spec,
    read_weights,
    trainable_segments,
    write_weights,
)

MAGIC = b"ZIMG"
VERSION = 1
RUNNER_INT8, RUNNER_NEURAL_ART = 1, 2
ALIGN = 64
SECTIONS = {
    RUNNER_INT8: ("TFLT", "PLAN", "TRAN", "LOSS", "INPT", "META"),
    RUNNER_NEURAL_ART: ("TRAN", "LOSS", "INPT", "TFLT", "META", "NART", "BLOB"),
}
HOST_ONLY = {RUNNER_INT8: (), RUNNER_NEURAL_ART: ("TFLT", "META")}  # what a board is not sent

_HEADER = struct.Struct("<4sHHIII12x")  # magic, version, runner, total size, CRC-32 with this field 0, sections
_ENTRY = struct.Struct("<4sIII")  # tag, offset, size, reserved


@dataclass(frozen=True)
class Preprocessing:
    """What the network was trained on: pixel p of channel c stands for lo[c] + (hi[c] - lo[c]) * p / 255."""

    lo: tuple[float, ...] = (-1.0,)
    hi: tuple[float, ...] = (1.0,)
    resize: str = "bilinear"


@dataclass(frozen=True)
class InputSpec:
    """The network's input; ``lut`` maps a pixel of a channel to its int8 value, int8 [channels, 256]."""

    height: int
    width: int
    channels: int
    scale: float
    zero_point: int
    preprocessing: Preprocessing
    lut: np.ndarray

    @property
    def size(self) -> int:
        return self.height * self.width * self.channels


@dataclass(frozen=True)
class LossTable:
    """E[k] = round(2**24 * exp(-k * s)) as uint32 [256], and the output scale s in Q24."""

    exp: np.ndarray
    scale_q24: int


@dataclass(frozen=True)
class DeviceImage:
    """raw: the file. crc: CRC-32 of what a board is sent (for_board). npu: the compiled network with the weights."""

    raw: bytes
    crc: int
    runner: int
    tflite: bytes
    plan: np.ndarray  # words of the PLAN section, uint32; none in an image for the NPU
    mu_max: int
    segments: tuple[Segment, ...]
    input: InputSpec
    loss: LossTable
    classes: int
    meta: Mapping[str, object]
    npu: CompiledNetwork | None = None

    @cached_property
    def weights(self) -> int:
        """d, the number of trainable weights."""
        return sum(s.count for s in self.segments)

    def get_weights(self) -> np.ndarray:
        """int8 [d] in index order (a copy)."""
        return read_weights(self.tflite, self.segments)

    def with_weights(self, weights: np.ndarray) -> bytes:
        """The .tflite with these weights, int8 [d]."""
        return write_weights(self.tflite, self.segments, weights)

    def for_board(self) -> bytes:
        """What a board is sent: the file without what is for the host alone."""
        return _for_board(self.raw, self.runner)

    @property
    def written(self) -> tuple[int, int]:
        """Offset and size, in what a board was sent, of the section that has the weights: TFLT or BLOB."""
        tag = "TFLT" if self.npu is None else "BLOB"
        return next((at, size) for name, at, size in _entries(self.for_board()) if name == tag)

    def adapted(self, section: bytes) -> bytes:
        """The .tflite that belongs to the bytes that this section has on a board now."""
        if self.npu is None:
            return section
        return self.with_weights(gather(self.npu.section, np.frombuffer(section, np.int8)))

    def quantize_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """uint8 [n, h, w, c] to int8 [n, h, w, c], as the board does it."""
        return np.stack([self.input.lut[c][pixels[..., c]] for c in range(self.input.channels)], axis=-1)

    @staticmethod
    def read(data: bytes, source: str = "the image") -> DeviceImage:
        """Raises UserError for a file that is no image, truncated, changed, or made for another version or runner."""
        runner, sections = _read_sections(data, source)
        tflite = sections["TFLT"]
        train, (d, mu_max, n) = sections["TRAN"], struct.unpack_from("<III", sections["TRAN"])
        spans = [struct.unpack_from("<II", train, 16 + 8 * i) for i in range(n)]
        meta = json.loads(sections["META"])
        names = meta["segments"]
        segments = tuple(Segment(*names[i], offset, count) for i, (offset, count) in enumerate(spans))
        assert d == sum(s.count for s in segments)
        classes, scale_q24 = struct.unpack_from("<II", sections["LOSS"])
        npu = None
        if runner == RUNNER_NEURAL_ART:
            section = unpack(sections["NART"], [s.count for s in segments])
            npu = CompiledNetwork(section, sections["BLOB"], meta.get("activations", 0))
        return DeviceImage(
            raw=data,
            crc=zlib.crc32(_for_board(data, runner)),
            runner=runner,
            tflite=tflite,
            plan=np.frombuffer(sections.get("PLAN", b""), "<u4"),
            mu_max=mu_max,
            segments=segments,
            input=_read_input(sections["INPT"], meta["resize"]),
            loss=LossTable(np.frombuffer(sections["LOSS"], "<u4", 256, 16).copy(), scale_q24),
            classes=classes,
            meta=meta,
            npu=npu,
        )


def loss_table(scale: float) -> LossTable:
    """Design contract "Loss": 24-bit exponentials of the output scale. Raises UserError for a scale of 16 or more."""
    if not 0 < scale < 16:
        raise UserError(f"the model's output scale is {scale:g}; the integer loss needs one between 0 and 16.")
    # math.exp, not numpy's, whose last bit depends on the machine's vector instructions
    exp = np.array([round((1 << 24) * math.exp(-k * float(scale))) for k in range(256)], np.uint32)
    return LossTable(exp, round(scale * (1 << 24)))


def input_spec(io: IoSpec, preprocessing: Preprocessing) -> InputSpec:
    """The pixel table: round(real / scale) + zero point, saturated, for every pixel value and channel."""
    h, w, c = io.input_shape
    lo, hi = (np.broadcast_to(np.asarray(v, np.float64), (c,)) for v in (preprocessing.lo, preprocessing.hi))
    real = lo[:, None] + (hi - lo)[:, None] * np.arange(256) / 255
    lut = np.clip(np.rint(real / io.input_scale) + io.input_zero_point, -128, 127).astype(np.int8)
    normalised = Preprocessing(tuple(map(float, lo)), tuple(map(float, hi)), preprocessing.resize)
    return InputSpec(h, w, c, io.input_scale, io.input_zero_point, normalised, lut)


def build(
    tflite: bytes,
    preprocessing: Preprocessing,
    *,
    mu_max: int = 4,
    train: str = "all",
    meta: Mapping[str, object] | None = None,
    source: str = "the model",
    npu: CompiledNetwork | None = None,
) -> bytes:
    """A device image of a model that has its headroom (tflite_model.add_headroom) already.

    train: which layers can be trained, see tflite_model.trainable_segments. meta: for the host only, any JSON.
    npu: the same model compiled, with a map of the same layers: then the image is for the NPU.
    Raises UserError when the model cannot be trained or run.
    """
    graph = check_trainable(tflite, source)
    io = io_spec(graph)
    plan = compile_plan(graph)
    segments = trainable_segments(graph, train)
    peak = int(np.abs(read_weights(tflite, segments).astype(np.int32)).max())
    if peak > 127 - mu_max:
        raise UserError(f"{source} has weights of {peak}, beyond +-{127 - mu_max}: give it headroom first.")
    loss, inp = loss_table(io.output_scale), input_spec(io, preprocessing)
    train_section = struct.pack("<IIII", sum(s.count for s in segments), mu_max, len(segments), 0)
    train_section += b"".join(struct.pack("<II", s.offset, s.count) for s in segments)
    facts = {"segments": [[s.name, s.op] for s in segments], "ops": plan.op_names, "resize": preprocessing.resize}
    contents = {
        "TFLT": tflite,
        "PLAN": plan.to_bytes(),
        "TRAN": train_section,
        "LOSS": struct.pack("<IIII", io.classes, loss.scale_q24, 0, 0) + loss.exp.astype("<u4").tobytes(),
        "INPT": _pack_input(inp),
        "META": _pack_meta({**(meta or {}), **facts}),
    }
    image = _pack(contents)
    return image if npu is None else for_npu(image, npu)


def for_npu(image: bytes, npu: CompiledNetwork) -> bytes:
    """The image for the NPU of what an image for the int8 runner is of: the same model compiled, a map of its segments.

    Raises UserError where the compiled network has other weights.
    """
    read, sections = DeviceImage.read(image), _read_sections(image, "the image")[1]
    nart = pack(npu.section)
    unpack(nart, [s.count for s in read.segments])
    if not np.array_equal(npu.get_weights(), read.get_weights()):
        raise UserError("the compiled network has other weights than the model: compile the model that is converted.")
    contents = {tag: sections[tag] for tag in ("TRAN", "LOSS", "INPT", "TFLT")}
    contents["META"] = _pack_meta({**read.meta, "activations": npu.activations})
    return _pack({**contents, "NART": nart, "BLOB": npu.blob}, RUNNER_NEURAL_ART)


def _pack_meta(meta: Mapping[str, object]) -> bytes:
    return json.dumps(meta, sort_keys=True).encode()


def _pack_input(inp: InputSpec) -> bytes:
    ranges = struct.pack(f"<{2 * inp.channels}f", *inp.preprocessing.lo, *inp.preprocessing.hi)
    head = struct.pack("<IIIfiIII", inp.height, inp.width, inp.channels, inp.scale, inp.zero_point, 32, 0, 0)
    return head + inp.lut.tobytes() + ranges


def _read_input(section: bytes, resize: str) -> InputSpec:
    h, w, c, scale, zero_point, lut_at, _, _ = struct.unpack_from("<IIIfiIII", section)
    lut = np.frombuffer(section, np.int8, 256 * c, lut_at).reshape(c, 256).copy()
    values = struct.unpack_from(f"<{2 * c}f", section, lut_at + 256 * c)
    return InputSpec(h, w, c, scale, zero_point, Preprocessing(values[:c], values[c:], resize), lut)


def _pack(contents: Mapping[str, bytes], runner: int = RUNNER_INT8) -> bytes:
    at = math.ceil((_HEADER.size + _ENTRY.size * len(contents)) / ALIGN) * ALIGN
    table, body = b"", b""
    start = at
    for tag, content in contents.items():
        table += _ENTRY.pack(tag.encode(), at, len(content), 0)
        body += content + bytes(-len(content) % ALIGN)
        at = start + len(body)
    head_size = _HEADER.size + len(table)
    rest = table + bytes(start - head_size) + body
    header = _HEADER.pack(MAGIC, VERSION, runner, _HEADER.size + len(rest), 0, len(contents))
    crc = zlib.crc32(header + rest)
    return _HEADER.pack(MAGIC, VERSION, runner, _HEADER.size + len(rest), crc, len(contents)) + rest


def _for_board(data: bytes, runner: int) -> bytes:
    if not HOST_ONLY[runner]:
        return data
    kept = {tag: data[at : at + size] for tag, at, size in _entries(data) if tag not in HOST_ONLY[runner]}
    return _pack(kept, runner)


def _entries(data: bytes) -> list[tuple[str, int, int]]:
    """Tag, offset and size of each section."""
    count = _HEADER.unpack_from(data)[-1]
    entries = (_ENTRY.unpack_from(data, _HEADER.size + _ENTRY.size * i) for i in range(count))
    return [(tag.decode("latin-1"), at, size) for tag, at, size, _ in entries]


def _read_sections(data: bytes, source: str) -> tuple[int, dict[str, bytes]]:
    """The runner that the image is for, and its sections."""
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise UserError(f"{source} is not a device image: make one with python -m pipeline.convert.")
    _, version, runner, size, crc, _ = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UserError(
            f"{source} has image version {version}, this program reads version {VERSION}: "
            "make it anew with python -m pipeline.convert."
        )
    if runner not in SECTIONS:
        raise UserError(f"{source} was made for runner {runner}, which is unknown: convert the model anew.")
    if size != len(data):
        raise UserError(f"{source} is truncated: {len(data)} of {size} bytes are there; copy or make it anew.")
    if zlib.crc32(data[:12] + bytes(4) + data[16:]) != crc:
        raise UserError(f"{source} is damaged (its CRC-32 does not match): copy or make it anew.")
    sections = {tag: data[at : at + length] for tag, at, length in _entries(data)}
    missing = [tag for tag in SECTIONS[runner] if tag not in sections]
    if missing:
        raise UserError(f"{source} lacks the sections {', '.join(missing)}: make it anew.")
    return runner, sections
