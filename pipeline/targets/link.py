"""Frames over a byte stream: COBS(type, sequence, payload, CRC-32), a zero byte; stop-and-wait (docs/protocol.md)."""

from __future__ import annotations

import time
import zlib
from enum import Enum
from typing import Protocol

from cobs import cobs

from converters.errors import UserError

REPLY = 0x80
BUSY = 0xFD
DAMAGED = 0xFE
REFUSED = 0xFF
DAMAGED_ATTEMPTS = 10  # a noisy line: send again at once
SILENT_ATTEMPTS = 2  # no answer within the timeout: the frame or its answer may have been lost whole
LONGEST_FRAME = 1 << 17  # more without a zero byte is none
NOISE = 200  # bytes of what is no frame that are kept, to tell what it is


class LinkClosed(Exception):
    """The other side has gone."""


class Transport(Protocol):
    """A byte stream. read waits up to timeout seconds and returns b"" when nothing came; LinkClosed at the end.

    reliable: it loses and damages nothing, so that bytes may go in bulk, outside of frames.
    """

    reliable: bool

    def write(self, data: bytes) -> None: ...

    def read(self, timeout: float) -> bytes: ...

    def close(self) -> None: ...


class Lost(Enum):
    """Why an answer did not arrive."""

    SILENT = "nothing came within the timeout"
    DAMAGED = "what came, here or there, was damaged"


class Refused(Exception):
    """The board refused a command: a code of app/status.h and its two numbers."""

    def __init__(self, code: int, a: int, b: int):
        super().__init__(f"status {code} ({a}, {b})")
        self.code, self.a, self.b = code, a, b


def encode(kind: int, sequence: int, payload: bytes) -> bytes:
    body = bytes((kind, sequence)) + payload
    return cobs.encode(body + zlib.crc32(body).to_bytes(4, "little")) + b"\0"


def decode(frame: bytes) -> tuple[int, int, bytes] | None:
    """(type, sequence, payload) of a frame without its delimiter, or None when it is damaged."""
    try:
        body = cobs.decode(frame)
    except cobs.DecodeError:
        return None
    if len(body) < 6 or zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little"):
        return None
    return body[0], body[1], body[2:-4]


class Link:
    """Commands and their answers over a transport; what is lost or damaged is sent again, and executed once."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._sequence = 0
        self._received = bytearray()
        self._noise = b""  # the end of what came last and is no frame
        self._echoed = False
        self._damaged = 0  # frames of this command in a row

    def command(self, kind: int, payload: bytes = b"", *, bulk: bytes = b"", timeout: float) -> bytes:
        """The payload of the answer.

        bulk: bytes that follow the frame as they are, over a link that loses nothing: they are not sent again.
        timeout: seconds without a sign of life after which the command is sent again.
        Raises Refused, LinkClosed, or UserError when the board does not answer at all.
        """
        self._sequence = (self._sequence + 1) & 0xFF
        self._noise, self._echoed = b"", False
        request = encode(kind, self._sequence, payload)
        self._damaged = silent = 0
        while self._damaged < DAMAGED_ATTEMPTS and silent < SILENT_ATTEMPTS:
            self._transport.write(request + bulk)
            answer = self._answer(kind, timeout)
            if isinstance(answer, bytes):
                return answer
            if bulk:
                raise UserError("the board did not take what was sent in bulk: reset it and try again.")
            self._damaged += answer is Lost.DAMAGED
            silent += answer is Lost.SILENT
        if words := self._stranger():
            raise UserError(words)
        if silent:
            raise UserError(
                f"the board has not answered command 0x{kind:02x} within {timeout:g} s: check that it runs the "
                "firmware of this version, its port and its baud rate, then reset it and try again."
            )
        raise UserError(
            f"command 0x{kind:02x} or its answer arrived damaged {self._damaged} times: check the cable and the baud "
            "rate."
        )

    def _stranger(self) -> str:
        """What is there, where it is no board with this firmware; "" where that cannot be told."""
        load = "load the firmware of this version, or choose another --port (docs/stm32n6.md)."
        if self._echoed:
            return f"what is connected sends back what it is sent, it answers nothing: {load}"
        text = self._noise.strip().decode("latin-1")
        if len(text) < 4 or not text.isascii() or not all(c.isprintable() or c.isspace() for c in text):
            return ""
        return f"what is connected prints text ({text.splitlines()[-1][-60:]!r}), no frames: {load}"

    def _answer(self, kind: int, timeout: float) -> bytes | Lost:
        """The answer to the command just sent, or why it has to be sent again."""
        while True:
            frame = self._frame(timeout)
            if isinstance(frame, Lost):
                return frame
            reply, sequence, payload = frame
            if reply == DAMAGED:
                return Lost.DAMAGED
            if sequence != self._sequence:
                continue  # a late answer to something sent before
            if reply == BUSY:
                self._damaged = 0  # it works, and is heard
                continue
            self._echoed |= reply == kind
            if reply == REFUSED and len(payload) == 12:
                raise Refused(*(int.from_bytes(payload[i : i + 4], "little") for i in (0, 4, 8)))
            if reply == kind | REPLY:
                return payload

    def _frame(self, timeout: float) -> tuple[int, int, bytes] | Lost:
        deadline = time.monotonic() + timeout
        while True:
            while (end := self._received.find(0)) < 0:
                left = deadline - time.monotonic()
                data = self._transport.read(left) if left > 0 else b""
                self._received += data
                if not data or len(self._received) > LONGEST_FRAME:
                    self._forget(len(self._received))
                    return Lost.DAMAGED if data else Lost.SILENT
            if end == 0:  # idle, not an empty frame
                del self._received[0]
                continue
            frame = decode(bytes(self._received[:end]))
            self._forget(end, keep=frame is None)
            return frame or Lost.DAMAGED

    def _forget(self, count: int, keep: bool = True) -> None:
        """Drop the first bytes that were received, and the zero byte behind them."""
        self._noise = bytes(self._received[:count][-NOISE:]) if keep and count else self._noise
        del self._received[: count + 1]

    @property
    def reliable(self) -> bool:
        return self._transport.reliable

    def close(self) -> None:
        self._transport.close()
