"""The run directory. `seeds.log` is its truth; everything else is settings, or can be made again from it.

    config.json     what was asked for (Config); written last when a run is made, so a directory without it is no run
    image.zimg      the device image that the run started from, byte for byte
    seeds.log       a header and one record a step, each on the disk before its update is sent
    metrics.jsonl   one object a step (step 0 is the start); derived, cut to the log on resume
    summary.json, adapted.tflite, report/   written at the end

Layout of seeds.log, little-endian. Header: magic "ZOSL", version u16, rounding u8 (0 nearest, 1 stochastic), 0 u8,
run seed u64, CRC-32 of the image, CRC-32 of the image's weights, CRC-32 of the header so far. Record: payload length
u16, payload, CRC-32 of both. Payload: step u32, weights CRC-32 before the step, loss that feeds the scheduler u64 (Q16
nats, summed), moving average of D^2 after the step f64 (0 = none yet), one int32 a direction. The seeds of the
directions are derived from the run seed and the step, so nothing else is needed to make the weights again. There are no
times in it: the same run writes the same bytes.

A record whose writing was interrupted is dropped when the log is read. That is harmless: its step is taken again, and
comes out the same.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline.files import write_atomic
from pipeline.targets.target import NEAREST, STOCHASTIC, Update
from pipeline.zo import philox

CONFIG_VERSION = 1
LOG_VERSION = 1
_MAGIC = b"ZOSL"
_ROUNDINGS = (NEAREST, STOCHASTIC)
_HEADER = struct.Struct("<4sHBBQII")
_PAYLOAD = struct.Struct("<IIQd")
_MAX_RECORD = 2 + _PAYLOAD.size + 4 * 64 + 4
_OWN_FILES = {"image.zimg", "seeds.log", "lock"}  # what a run that was interrupted while being made may have left


# What a value of config.json may be, by the annotation of its field.
_TYPES = {
    "str": str, "int": int, "float": (int, float), "str | None": (str, type(None)), "int | None": (int, type(None)),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All that decides a run. Exactly one of budget (forward passes) and steps is set."""

    image: str
    image_crc: int
    samples_crc: int
    board: str
    port: str | None
    memory: int | None
    threads: int | None
    link: str | None
    kernels: str | None
    dataset: str
    data_dir: str | None
    shift: str
    severity: int
    samples: int
    budget: int | None
    steps: int | None
    batch: int
    estimator: str
    mu: int
    lr: float
    lr_schedule: str
    coupling: str
    rounding: str
    q_schedule: str
    q: int
    q_max: int
    window: int
    seed: int
    eval_every: int
    eval_images: int
    keep: str

    @property
    def domain(self) -> str:
        """The shift in words."""
        return "unshifted" if self.shift == "none" else f"{self.shift} {self.severity}"


@dataclass(frozen=True)
class Metrics:
    """A line of metrics.jsonl: the state after `step` steps, and how the last of them went (null at step 0).

    loss: mean over all that the step measured, in nats a sample; at step 0, of the whole on-device set, unperturbed.
    lr: RMS of the update in LSB. ema: moving average of D^2 in Q16 units. gradient: RMS slope along the directions, in
    nats a sample and LSB; null where a resumed run no longer knew it. seconds: by purpose, since the line before.
    """

    step: int
    forward_passes: int
    evaluation_passes: int
    q: int
    lr: float
    loss: float
    ema: float
    gradient: float | None
    changed: int | None
    at_rail: int | None
    saturated: int
    weights_crc: int
    accuracy: float | None
    evaluation_loss: float | None
    seconds: dict[str, float]

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Header:
    """What replay has to know besides the image."""

    rounding: str
    seed: int
    image_crc: int
    weights_crc: int

    def pack(self) -> bytes:
        rounding = _ROUNDINGS.index(self.rounding)
        head = _HEADER.pack(_MAGIC, LOG_VERSION, rounding, 0, self.seed, self.image_crc, self.weights_crc)
        return head + struct.pack("<I", zlib.crc32(head))


@dataclass(frozen=True)
class Record:
    """One step. step counts from 0; crc is of the weights before it; loss in Q16 nats; ema is of after it."""

    step: int
    crc: int
    loss: int
    ema: float
    coefficients: tuple[int, ...]

    def pack(self) -> bytes:
        payload = _PAYLOAD.pack(self.step, self.crc, self.loss, self.ema)
        payload += struct.pack(f"<{len(self.coefficients)}i", *self.coefficients)
        body = struct.pack("<H", len(payload)) + payload
        return body + struct.pack("<I", zlib.crc32(body))

    def update(self, header: Header) -> Update:
        """The update that this step sends to a target."""
        return Update(
            rounding=header.rounding,
            rounding_seed=philox.rounding_seed(header.seed, self.step),
            seeds=philox.direction_seeds(header.seed, self.step, len(self.coefficients)),
            coefficients=self.coefficients,
        )


@dataclass(frozen=True)
class SeedLog:
    """A log as read: its whole records, and the bytes they take."""

    header: Header
    records: tuple[Record, ...]
    size: int


def read_log(path: Path) -> SeedLog:
    """Raises UserError for a file that is no seed log, or one with damage that is more than a torn last record."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name the directory of a run.") from error
    at = _HEADER.size + 4
    if data[:4] != _MAGIC or len(data) < at or zlib.crc32(data[: at - 4]) != struct.unpack_from("<I", data, at - 4)[0]:
        raise UserError(f"{path} is no seed log, or its header is damaged: restore it, or start the run anew.")
    _, version, rounding, _, seed, image_crc, weights_crc = _HEADER.unpack_from(data)
    if version != LOG_VERSION or rounding >= len(_ROUNDINGS):
        raise UserError(f"{path} has version {version}, this program reads version {LOG_VERSION}: start the run anew.")
    records: list[Record] = []
    while record := _read_record(data, at, len(records)):
        at += len(record.pack())
        records.append(record)
    if len(data) - at >= _MAX_RECORD:  # no single interrupted write leaves that much
        raise UserError(
            f"{path} is damaged after step {len(records)} and has {len(data) - at} more bytes: restore it from a copy, "
            f"or cut it to {at} bytes (truncate -s {at} {path}) to go on from step {len(records)}."
        )
    return SeedLog(Header(_ROUNDINGS[rounding], seed, image_crc, weights_crc), tuple(records), at)


def _read_record(data: bytes, at: int, step: int) -> Record | None:
    """The whole record at this offset, if there is one."""
    if len(data) < at + 2:
        return None
    (length,) = struct.unpack_from("<H", data, at)
    end = at + 2 + length
    if length <= _PAYLOAD.size or (length - _PAYLOAD.size) % 4 or len(data) < end + 4:
        return None
    if zlib.crc32(data[at:end]) != struct.unpack_from("<I", data, end)[0]:
        return None
    number, crc, loss, ema = _PAYLOAD.unpack_from(data, at + 2)
    c = struct.unpack_from(f"<{(length - _PAYLOAD.size) // 4}i", data, at + 2 + _PAYLOAD.size)
    return Record(number, crc, loss, ema, c) if number == step else None


class Run:
    """An open run: locked, its log cut to whole records and ready for more. Made by create() and resume()."""

    def __init__(self, path: Path, config: Config, image: DeviceImage, lock: IO[bytes]) -> None:
        self.path = path
        self.config = config
        self.image = image
        self._lock = lock
        log = read_log(path / "seeds.log")
        if log.header.image_crc != image.crc:
            raise UserError(f"{path}: the seed log belongs to another image; restore the run's image.zimg.")
        self.header, self.records = log.header, list(log.records)
        self.metrics = read_metrics(path)[: len(self.records) + 1]
        with self._writing("seeds.log"):
            self._log = (path / "seeds.log").open("r+b", buffering=0)
            self._log.truncate(log.size)
            self._log.seek(log.size)
        with self._writing("metrics.jsonl"):
            write_atomic(path / "metrics.jsonl", b"".join(line.pack() for line in self.metrics))
            self._metrics = (path / "metrics.jsonl").open("ab", buffering=0)

    @staticmethod
    def create(path: Path, config: Config, image: DeviceImage) -> Run:
        """Raises UserError when the directory holds a run, or anything else, already."""
        if (path / "config.json").exists():
            raise UserError(f"{path} holds a run already: continue it with --resume {path}, or give another --run.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            strangers = sorted(p.name for p in path.iterdir() if p.name not in _OWN_FILES and p.suffix != ".tmp")
            if strangers:
                raise UserError(f"{path} is not empty (it has {strangers[0]}): give another --run.")
            lock = _lock(path)
            with disk_errors(path, "delete something, then start again"):
                header = Header(config.rounding, config.seed, image.crc, zlib.crc32(image.get_weights().tobytes()))
                write_atomic(path / "image.zimg", image.raw)
                write_atomic(path / "seeds.log", header.pack())
                write_config(path, config)
        except OSError as error:
            raise UserError(f"the run directory {path} cannot be made: {error.strerror}.") from error
        return Run(path, config, image, lock)

    @staticmethod
    def resume(path: Path) -> Run:
        """Raises UserError when the directory is no run, is in use, or its image is not the one it was made with."""
        config = read_config(path)
        return Run(path, config, read_image(path, config.image_crc), _lock(path))

    def reconfigure(self, config: Config) -> None:
        """Continue under another config (a larger budget, another board, ...)."""
        with self._writing("config.json"):
            write_config(self.path, config)
        self.config = config

    def log(self, record: Record) -> None:
        """Append a step; it is on the disk when this returns."""
        with self._writing("seeds.log"):
            end = self._log.tell()
            try:
                _write_all(self._log, record.pack())
                os.fsync(self._log.fileno())
            except OSError:
                self._undo(end)
                raise
        self.records.append(record)

    def _undo(self, end: int) -> None:
        """Cut off what a failed write left; should this fail too, the torn record is dropped when the log is read."""
        with suppress(OSError):
            self._log.truncate(end)
            self._log.seek(end)

    def add_metrics(self, line: Metrics) -> None:
        with self._writing("metrics.jsonl"):
            _write_all(self._metrics, line.pack())
        self.metrics.append(line)

    def write(self, name: str, data: bytes) -> None:
        """A derived file, atomically."""
        with self._writing(name):
            write_atomic(self.path / name, data)

    def discard(self) -> None:
        """Remove a run that never began."""
        for name in ("metrics.jsonl", "config.json", *_OWN_FILES):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()
        self.close()

    def close(self) -> None:
        for file in (self._log, self._metrics, self._lock):
            file.close()

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        with disk_errors(self.path / name, f"nothing is lost: {self.resume_hint}"):
            yield

    @property
    def resume_hint(self) -> str:
        return f"continue with: python -m pipeline.train_ondevice --resume {self.path}"


@contextmanager
def disk_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn an OSError of writing to path into a sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else f"the disk failed ({error.strerror or error})"
        space = "Free some space; " if full else ""
        raise UserError(f"{what}: {path} could not be written. {space}{advice}") from error


def read_config(path: Path) -> Config:
    """Raises UserError for a directory that is no run, or a config that this program does not understand."""
    file = path / "config.json"
    if not file.is_file():
        raise UserError(f"{path} is no run directory (it has no config.json): name one that train_ondevice made.")
    try:
        values = json.loads(file.read_text())
        version = values.pop("version")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{file} is damaged: restore it, or start the run anew.") from error
    if version != CONFIG_VERSION or set(values) != {f.name for f in fields(Config)}:
        raise UserError(f"{file} was written by another version of this program: resume the run with that version.")
    for f in fields(Config):
        if not isinstance(values[f.name], _TYPES[f.type]) or isinstance(values[f.name], bool):
            raise UserError(f"{file} was altered: {f.name} cannot be {values[f.name]!r}.")
    return Config(**values)


def write_config(path: Path, config: Config) -> None:
    write_atomic(
        path / "config.json", (json.dumps({"version": CONFIG_VERSION, **asdict(config)}, indent=2) + "\n").encode()
    )


def read_image(path: Path, crc: int) -> DeviceImage:
    """The run's image. Raises UserError when it is no longer the one, of this CRC-32, that the run was made with."""
    file = path / "image.zimg"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file} is gone ({error.strerror}): copy the image that the run was made with there."
        ) from error
    try:
        image = DeviceImage.read(data, str(file))
        found = image.crc  # of what a board is sent, which need not be the whole file
    except UserError:
        found = zlib.crc32(data)
    if found != crc:
        raise UserError(
            f"{file} changed since the run was made (CRC-32 {found:08x} instead of {crc:08x}): copy the original image "
            "there (config.json names it), or start a new run with the new one."
        )
    return image


def read_metrics(path: Path) -> list[Metrics]:
    """The lines for steps 0, 1, ... as far as they are whole; a line that an interruption tore ends the list."""
    lines: list[Metrics] = []
    try:
        raw = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except OSError:
        return lines
    for text in raw:
        try:
            line = Metrics(**json.loads(text))
        except (ValueError, TypeError):
            break
        if not text.endswith(b"\n") or line.step != len(lines):
            break
        lines.append(line)
    return lines


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file, which may take only a part at a time (so that nothing is left to a later flush)."""
    while data:
        data = data[file.write(data) :]


def _lock(path: Path) -> IO[bytes]:
    """Hold the run for this process; the system lets go of it however the process ends."""
    file = (path / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UserError(f"{path} is being trained by another process: wait for it, or stop it first.") from error
    return file
