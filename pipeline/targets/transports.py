"""Byte streams to boards: a child process, or a TCP connection."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable

from converters.errors import UserError
from pipeline.targets.link import LinkClosed


def words_of_end(code: int, printed: str) -> str:
    """What became of a board's process, for the user."""
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return (
        f"the board is gone: its link closed (its process ended {how}{'; it printed: ' + printed if printed else ''})."
    )


class ProcessTransport:
    """A child process that speaks frames over its standard streams and ends when they close.

    patience: seconds that it gets for that before it is killed. explain: its exit code and what it printed, in words.
    Where the system can do that, it also ends at once when this process is killed.
    """

    reliable = True

    def __init__(self, command: list[str], *, patience: float = 5.0, explain: Callable[[int, str], str] = words_of_end):
        self._patience, self._explain = patience, explain
        if setpriv := shutil.which("setpriv"):  # Linux, util-linux
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        # A session of its own: Ctrl-C at the terminal is the host's to handle, the board finishes its command.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
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
