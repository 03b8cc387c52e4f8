"""Opening a board by name: build it where that is needed, start or connect it, load the image."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from converters.errors import UserError
from pipeline.targets.client import Board
from pipeline.targets.link import Link, LinkClosed

ROOT = Path(__file__).resolve().parents[2]
BOARDS = ("native",)
NATIVE_MAX_THREADS = 64  # boards/native/board_config.h


class ProcessTransport:
    """A child process that speaks frames over its standard streams and ends when they close."""

    def __init__(self, command: list[str]):
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
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        if not self._stderr.closed:
            self._stderr.close()

    def describe_end(self) -> str:
        """What became of the process: ' (zo_board ended by signal 9)', and what it printed."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ""
        self._stderr.seek(0)
        printed = self._stderr.read().decode(errors="replace").strip()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f" (its process ended {how}{'; it printed: ' + printed if printed else ''})"


class SocketTransport:
    """A board that listens on a TCP port, on this machine or another."""

    def __init__(self, address: str):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"--port {address} is no address: give HOST:PORT of a board started with --listen.")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=10)
        except OSError as e:
            raise UserError(
                f"no board answers at {address} ({e.strerror or e}): start one there with zo_board --listen."
            ) from e
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


def _tool(name: str) -> str | None:
    """A program of this Python's environment, or of the PATH."""
    own = Path(sysconfig.get_path("scripts")) / name
    return str(own) if own.exists() else shutil.which(name)


@functools.cache
def build_native(target: str = "zo_board", *, sanitize: str = "") -> Path:
    """Build the native board (nothing happens when it is up to date) and return the program or library."""
    if not any(shutil.which(c) for c in (os.environ.get("CC", "cc").split()[0], "gcc", "clang")):
        raise UserError("a C compiler is missing, it builds the native board: apt-get install gcc (or clang).")
    build = ROOT / "build" / ("native" if not sanitize else "native-" + sanitize.replace(",", "-"))
    _build(build, "native", target, f"-DSANITIZE={sanitize}")
    return build / ("libzo_app.so" if target == "zo_app" else target)


@functools.cache
def build_an547(target: str, kernels: str) -> Path:
    """Build a firmware of the emulated Cortex-M55 with a set of kernels and return the ELF file."""
    if shutil.which("arm-none-eabi-gcc") is None:
        raise UserError(
            "arm-none-eabi-gcc is missing, it builds firmware for the Cortex-M55: "
            "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi."
        )
    build = ROOT / "build" / f"qemu_an547-{kernels}"
    toolchain = ROOT / "boards" / "qemu_an547" / "toolchain.cmake"
    _build(build, "qemu_an547", target, f"-DKERNELS={kernels}", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
    return build / f"{target}.elf"


def _build(build: Path, board: str, target: str, *options: str) -> None:
    cmake = _tool("cmake")
    if cmake is None:
        raise UserError(f"cmake is missing, it builds the board {board}: python -m pip install cmake.")
    configure = [cmake, "-S", str(ROOT / "tflm_app"), "-B", str(build), f"-DBOARD={board}", *options]
    for command in (configure, [cmake, "--build", str(build), "--target", target, "--parallel"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            log = build / "build.log"
            build.mkdir(parents=True, exist_ok=True)
            log.write_text(done.stdout + done.stderr)
            raise UserError(f"the board {board} could not be built; the compiler's words are in {log}.")


def open_board(
    name: str,
    image: bytes,
    *,
    threads: int | None = None,
    memory: int | None = None,
    port: str | None = None,
    sanitize: str = "",
) -> Board:
    """Start or connect a board and load the image.

    threads: workers of the native board, all cores by default. memory: its MiB. port: HOST:PORT of a board that
    listens elsewhere. Raises UserError for an unknown board, a missing tool, or a board that refuses the image.
    """
    if name not in BOARDS:
        raise UserError(f"board '{name}' is unknown: choose one of {', '.join(BOARDS)}.")
    if port is not None:
        return Board(Link(SocketTransport(port)), image)
    command = [
        str(build_native(sanitize=sanitize)),
        "--threads",
        str(min(threads or os.cpu_count() or 1, NATIVE_MAX_THREADS)),
    ]
    if memory is not None:
        command += ["--memory", str(memory)]
    transport = ProcessTransport(command)
    return Board(Link(transport), image, describe_end=transport.describe_end)
