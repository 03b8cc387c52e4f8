"""Opening a board by name: build it where that is needed, start or connect it, load the image."""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from converters.errors import UserError
from converters.neural_art.profile import VARIANTS
from pipeline.targets.client import Board
from pipeline.targets.fault import Fault
from pipeline.targets.link import Link
from pipeline.targets.serial_ports import find_st_link
from pipeline.targets.transports import ProcessTransport, SerialTransport, SocketTransport, words_of_end

ROOT = Path(__file__).resolve().parents[2]
BOARDS = ("native", "qemu_an547", "stm32n6")
NATIVE_MAX_THREADS = 64  # boards/native/board_config.h
STM32N6_BAUD = 921_600  # boards/stm32n6/board_config.h
BAUD_RATES = range(300, 20_000_000)
AN547_MEMORY = 1024  # MiB of DDR, boards/qemu_an547/port.c
TICKS_PER_INSTRUCTION = 1.024  # of the emulated board that counts: 32 MHz, and 32 ns an instruction
LINKS = ("pipe", "uart")  # of the emulated board; the first is the default
KERNELS = ("words", "mve", "portable")  # of boards with a Cortex-M: fast in emulation, Helium, plain C
# What may be said of a board; the twin (pipeline/targets/twin.py) is none, but may stand in its place.
OPTIONS = {
    "native": {"threads", "memory", "port"},
    "qemu_an547": {"memory", "link", "kernels"},
    "stm32n6": {"port"},
    "twin": {"threads"},
}


def _tool(name: str) -> str | None:
    """A program of this Python's environment, or of the PATH."""
    own = Path(sysconfig.get_path("scripts")) / name
    return str(own) if own.exists() else shutil.which(name)


@functools.cache
def build_native(target: str = "zo_board", *options: str, sanitize: str = "") -> Path:
    """Build the native board (nothing happens when it is up to date) and return the program or library.

    options: more definitions for CMake ("-DLL_ATON_STAND_IN=ON"), which make it another build.
    """
    own = os.environ.get("CC", "").split()[:1]
    if not any(shutil.which(c) for c in (*own, "cc", "gcc", "clang")):
        raise UserError("a C compiler is missing, it builds the native board: apt-get install gcc (or clang).")
    kinds = (*_names(options), *sanitize.split(",")) if sanitize else _names(options)
    build = ROOT / "build" / "-".join(("native", *kinds))
    _build(build, "native", target, f"-DSANITIZE={sanitize}", *options)
    return build / ("libzo_app.so" if target == "zo_app" else target)


@functools.cache
def build_an547(target: str, kernels: str, *options: str) -> Path:
    """Build a firmware of the emulated Cortex-M55 with a set of kernels and return the ELF file.

    options: more definitions for CMake ("-DPROVOKE=ON"), which make it another build.
    """
    names = ("qemu_an547", kernels, *_names(options))
    return _build_firmware("qemu_an547", target, "-".join(names), f"-DKERNELS={kernels}", *options)


def _names(options: tuple[str, ...]) -> tuple[str, ...]:
    """Of definitions for CMake, for the name of a folder."""
    return tuple(option[2:].partition("=")[0].lower() for option in options)


@functools.cache
def build_stm32n6(
    variant: str = "nucleo",
    kernels: str = "mve",
    *options: str,
    name: str = "",
    cpu: str = "cortex-m55",
    provoke: bool = False,
) -> Path:
    """Build the firmware of a board with an STM32N6 and return the ELF file.

    variant: one of VARIANTS. options: more definitions for CMake ("-DLL_ATON_STAND_IN=ON"), which make it another
    build: name, or theirs. cpu: cortex-m33 for an emulator without Helium. provoke: faults by command, for tests.
    """
    names = ["stm32n6", variant, *([name] if name else _names(options)), kernels]
    names += [cpu] * (cpu != "cortex-m55") + ["provoke"] * provoke
    options = (
        *options,
        f"-DVARIANT={variant}",
        f"-DKERNELS={kernels}",
        f"-DCPU={cpu}",
        f"-DPROVOKE={'ON' if provoke else 'OFF'}",
    )
    return _build_firmware("stm32n6", "zo_board", "-".join(names), *options)


def _newest_stm32n6() -> Path:
    """The firmware that was built last, most likely what runs: the places of a fault are looked up in it."""
    kinds = itertools.product(VARIANTS, ("", "npu-"), KERNELS)  # not those that tests build
    built = [ROOT / "build" / f"stm32n6-{variant}-{npu}{kernels}" / "zo_board.elf" for variant, npu, kernels in kinds]
    return max(filter(Path.exists, built), key=lambda path: path.stat().st_mtime, default=built[0])


def _build_firmware(board: str, target: str, folder: str, *options: str) -> Path:
    """An ELF file in build/FOLDER."""
    for name in ("arm-none-eabi-gcc", "newlib"):
        if not (shutil.which(name) if name != "newlib" else _has_newlib()):
            raise UserError(
                f"{name} is missing, it builds firmware for the Cortex-M55: "
                "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi."
            )
    build = ROOT / "build" / folder
    toolchain = ROOT / "boards" / board / "toolchain.cmake"
    _build(build, board, target, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", *options)
    return build / f"{target}.elf"


def _has_newlib() -> bool:
    """The C library, which Debian packs apart from the compiler."""
    command = ["arm-none-eabi-gcc", "-print-file-name=nano.specs"]
    return "/" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _build(build: Path, board: str, target: str, *options: str) -> None:
    cmake = _tool("cmake")
    if cmake is None:
        raise UserError(f"cmake is missing, it builds the board {board}: python -m pip install cmake.")
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:
        # Two commands may be started at once. The compiler holds the lock as well: it goes on when this one is killed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = [cmake, "-S", str(ROOT / "tflm_app"), "-B", str(build), f"-DBOARD={board}", *options]
        make = [cmake, "--build", str(build), "--target", target, "--parallel"]
        for attempt in ([configure, make], [[*make, "--clean-first"]]):  # a build that was killed may leave half a file
            for command in attempt:
                done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=(lock.fileno(),))
                if done.returncode:
                    break
            else:
                return
        log = build / "build.log"
        log.write_text(done.stdout + done.stderr)
        raise UserError(f"the board {board} could not be built; the compiler's words are in {log}.")


def open_board(
    name: str,
    image: bytes,
    *,
    threads: int | None = None,
    memory: int | None = None,
    port: str | None = None,
    link: str | None = None,
    kernels: str | None = None,
    count: bool = False,
    sanitize: str = "",
) -> Board:
    """Start or connect a board and load the image.

    threads: workers of the native board, all cores by default. memory: MiB for image, activations and samples of the
    native board, for image and samples of the emulated one. port: HOST:PORT of a native board that listens elsewhere,
    or [PORT][@BAUD], the serial port of an STM32N6's board, which runs its firmware already (docs/stm32n6.md).
    link, kernels: one of LINKS and KERNELS, of the emulated board. count: its clock counts instructions, each
    TICKS_PER_INSTRUCTION. Raises UserError for an unknown board, a missing tool, or a board that refuses the image.
    """
    if name not in BOARDS:
        raise UserError(f"board '{name}' is unknown: choose one of {', '.join(BOARDS)}.")
    if name == "stm32n6":
        serial = _open_serial(port)
        return Board(Link(serial), image, describe_end=serial.describe_end)
    if port is not None:
        return Board(Link(SocketTransport(port)), image)
    if name == "native":
        transport = _start_native(threads, memory, sanitize)
    else:
        transport = start_an547(build_an547("zo_board", kernels or KERNELS[0]), link=link, memory=memory, count=count)
    return Board(Link(transport), image, describe_end=transport.describe_end)


def _open_serial(port: str | None) -> SerialTransport:
    """PORT or PORT@BAUD; no PORT: that of the one ST-LINK."""
    device, _, baud = (port or "").partition("@")
    if baud and not (baud.isdecimal() and baud.isascii() and int(baud) in BAUD_RATES):
        raise UserError(f"--port {port}: {baud} is no baud rate; /dev/ttyACM0@115200 would be one.")
    return SerialTransport(device or find_st_link(), int(baud or STM32N6_BAUD), _newest_stm32n6())


def _start_native(threads: int | None, memory: int | None, sanitize: str) -> ProcessTransport:
    workers = min(threads or os.cpu_count() or 1, NATIVE_MAX_THREADS)
    command = [str(build_native(sanitize=sanitize)), "--threads", str(workers)]
    return ProcessTransport(command + (["--memory", str(memory)] if memory is not None else []))


def start_an547(
    firmware: Path, *, link: str | None = None, memory: int | None = None, count: bool = False
) -> ProcessTransport:
    """Start QEMU with a firmware of the board. count: with a clock that counts instructions."""
    memory = AN547_MEMORY if memory is None else memory
    if memory > AN547_MEMORY:
        raise UserError(f"the emulated board has {AN547_MEMORY} MiB: use a smaller --memory.")
    qemu = shutil.which("qemu-system-arm")
    if qemu is None:
        raise UserError("qemu-system-arm is missing, it emulates the Cortex-M55: apt-get install qemu-system-arm.")
    # Both links are QEMU's own standard streams: nothing is named, so nothing can be left behind.
    uart = link == "uart"
    if uart and count:
        raise UserError("instructions are counted over the pipe only: leave --link uart out.")
    arguments = f"enable=on,target=native,arg=zo_board,arg={link or LINKS[0]},arg={memory}{',arg=counted' * count}"
    command = [
        qemu, "-M", "mps3-an547", "-display", "none", "-monitor", "none", "-semihosting-config", arguments,
        "-serial", "stdio" if uart else "none", "-kernel", str(firmware),
    ]  # fmt: skip
    if prlimit := shutil.which("prlimit"):  # Linux; QEMU aborts when the core locks up
        command = [prlimit, "--core=0", *command]
    if count:
        command += ["-icount", "shift=5,sleep=off"]

    def explain(code: int, printed: str) -> str:
        fault = Fault.parse(printed)
        return f"the board stopped: {fault.describe(firmware)}" if fault else words_of_end(code, printed)

    # A UART does not tell the firmware that the host has gone.
    return ProcessTransport(command, patience=0 if uart else 5, explain=explain, guarded=True)
