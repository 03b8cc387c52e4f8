"""Byte streams to boards: a child process, a TCP connection, or a serial line."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import serial

from converters.errors import UserError
from pipeline.targets.fault import REPORT_END, REPORT_START, Fault
from pipeline.targets.link import LinkClosed
from pipeline.targets.serial_ports import why_closed

TEXT_LIMIT = 1 << 16  # noise without a zero byte is not kept for ever
REPORT_SECONDS = 2.0  # a fault's report at 115200 baud takes 0.1


def words_of_end(code: int, printed: str) -> str:
    """What became of a board's process, for the user."""
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return (
        f"the board is gone: its link closed (its process ended {how}{'; it printed: ' + printed if printed else ''})."
    )


# The shell becomes the command. Its child waits for the end of the lifeline and then kills all of this session, whose
# number cannot be another's as long as the child lives.
_GUARD = '{ cat; kill -9 -$$; } <"$0" >/dev/null 2>&1 & exec "$@"'


class ProcessTransport:
    """A child process that speaks frames over its standard streams and ends when they close.

    patience: seconds that it gets for that before it is killed. explain: its exit code and what it printed, in words.
    guarded: it is killed at once when this process ends, however that happens and however early.
    """

    reliable = True

    def __init__(
        self,
        command: list[str],
        *,
        patience: float = 5.0,
        explain: Callable[[int, str], str] = words_of_end,
        guarded: bool = False,
    ):
        self._patience, self._explain = patience, explain
        watched, self._lifeline = os.pipe()  # nobody but this process holds its other end
        if guarded:
            command = ["/bin/sh", "-c", _GUARD, f"/dev/fd/{watched}", *command]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        # A session of its own: Ctrl-C at the terminal is the host's to handle, the board finishes its command.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0,
            start_new_session=True, pass_fds=(watched,) if guarded else (),
        )  # fmt: skip
        os.close(watched)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except (BrokenPipeError, ConnectionError) as e:
            raise LinkClosed from e

    def read(self, timeout: float) -> bytes:
        if not self._selector.select(timeout):
            return b""
        data = self._process.stdout.read(1 << 16)
        if not data:
            raise LinkClosed
        return data

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self._process.wait(timeout=self._patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        if not self._stderr.closed:
            self._stderr.close()
            os.close(self._lifeline)

    def describe_end(self) -> str:
        """What became of the process, in words; "" while it still runs."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ""
        self._stderr.seek(0)
        return self._explain(code, self._stderr.read().decode(errors="replace").strip())


class SocketTransport:
    """A board that listens on a TCP port, on this machine or another."""

    reliable = True

    def __init__(self, address: str):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"--port {address} is no address: give HOST:PORT of a board started with --listen.")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=10)
        except (OSError, UnicodeError, OverflowError) as e:
            why = getattr(e, "strerror", None) or e
            raise UserError(f"no board answers at {address} ({why}): start one there with zo_board --listen.") from e
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as e:
            raise LinkClosed from e

    def read(self, timeout: float) -> bytes:
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return b""
        except OSError as e:
            raise LinkClosed from e
        finally:
            self._socket.settimeout(None)
        if not data:
            raise LinkClosed
        return data

    def close(self) -> None:
        self._socket.close()


class SerialLine:
    """A board on a serial line, which loses and damages bytes and does not tell when the other side has gone.

    A board that faults says so in the middle of whatever it was sending (boards/cortex_m/fault.c): frames end with a
    zero byte, of which the report has none. firmware: the ELF file that tells the places of a fault, if it is there.
    """

    reliable = False

    def __init__(self, firmware: Path):
        self._firmware = firmware
        self._text = b""  # what came since the last zero byte

    def receive(self, timeout: float) -> bytes:
        """What has come, after at most timeout seconds."""
        raise NotImplementedError

    def read(self, timeout: float) -> bytes:
        if REPORT_START not in self._text:
            data = self.receive(timeout)
            self._text = (self._text + data).rpartition(b"\0")[2][-TEXT_LIMIT:]
            if REPORT_START not in self._text or b"\0" in data:  # a whole frame before the report is still good
                return data
        end = time.monotonic() + REPORT_SECONDS
        while REPORT_END not in self._text and time.monotonic() < end:
            self._text += self.receive(0.1)
        raise LinkClosed

    def describe_end(self) -> str:
        """What became of the board, in words; "" where it did not say."""
        fault = Fault.parse(self._text.decode("latin-1"))
        if fault is None:
            return ""
        return (
            f"the board stopped: {fault.describe(self._firmware)}It has reset itself: "
            "in development mode load its firmware again (docs/stm32n6.md)."
        )


class SerialTransport(SerialLine):
    """A serial port of this machine, 8N1 without flow control."""

    def __init__(self, port: str, baud: int, firmware: Path):
        super().__init__(firmware)
        try:
            self._serial = serial.Serial(port, baud, timeout=0, write_timeout=10, exclusive=True)
        except (OSError, ValueError) as e:
            raise UserError(why_closed(port, e)) from e
        self._port = port
        self._serial.reset_input_buffer()
        self._gone = ""

    def write(self, data: bytes) -> None:
        try:
            self._serial.write(data)
        except OSError as e:
            self._lose(e)

    def receive(self, timeout: float) -> bytes:
        try:
            self._serial.timeout = timeout
            return self._serial.read(1) + self._serial.read(self._serial.in_waiting)
        except OSError as e:
            self._lose(e)

    def _lose(self, e: OSError) -> NoReturn:
        self._gone = f"the serial port {self._port} is gone ({e}): was the cable pulled?"
        raise LinkClosed from e

    def close(self) -> None:
        self._serial.close()

    def describe_end(self) -> str:
        return super().describe_end() or self._gone
