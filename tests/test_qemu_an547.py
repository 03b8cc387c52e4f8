"""The firmware on the emulated Cortex-M55, trained by the commands of a user: equal to twin and native bit for bit,
faults reported, nothing left behind."""

import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from oracles import random_pixels
from test_m55 import pytestmark as needs_m55
from tiny_model import SHAPE, tiny_image

from converters.errors import UserError
from pipeline import train_ondevice
from pipeline.run import read_log
from pipeline.targets import boards, link
from pipeline.targets.boards import build_an547, open_board, start_an547
from pipeline.targets.client import LOAD_BEGIN, PIXELS, PIXELS_BULK, Board
from pipeline.targets.fault import Fault
from pipeline.targets.link import Link, Refused
from pipeline.targets.target import NEAREST, Update
from pipeline.targets.transports import ProcessTransport

pytestmark = needs_m55
PROVOKE = 0x7F  # tflm_app/app/commands.h
NETWORKS = tiny_run.networks()
SHORT = ("--steps", 5, "--eval-images", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with images of all networks (NAME.zimg), the data set (data), and a run of each on the twin."""
    folder = tmp_path_factory.mktemp("qemu")
    tiny_run.write_fashion_mnist(folder / "data", train=2000)
    for name in NETWORKS:
        (folder / f"{name}.zimg").write_bytes(tiny_run.make_image(name).raw)
        assert train(folder, f"twin-{name}", "--board", "twin", network=name).exit_code == 0
    assert train(folder, "twin-short", "--board", "twin", *SHORT).exit_code == 0
    return folder


def arguments(place: Path, run: str, *more: object, network: str = NETWORKS[0]) -> list[object]:
    settings = tiny_run.SETTINGS.replace("--board twin --threads 1", "").split()
    image, data = place / f"{network}.zimg", place / "data"
    return ["--image", image, "--data-dir", data, "--run", place / run, *settings, *more]


def train(place, run, *more, network=NETWORKS[0]):
    return tiny_run.invoke(train_ondevice.main, *arguments(place, run, *more, network=network))


def resume(place, run, *more):
    return tiny_run.invoke(train_ondevice.main, "--resume", place / run, *more)


def assert_equals_twin(place, run, twin=NETWORKS[0]):
    """The log holds every loss, coefficient and CRC of the run; the model the weights."""
    for file in ("seeds.log", "adapted.tflite"):
        assert (place / run / file).read_bytes() == (place / f"twin-{twin}" / file).read_bytes(), file


def emulators() -> dict[int, int]:
    """Process and parent of every emulator that runs on this machine (a dead one that nobody waited for is none)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if name.startswith("qemu-system-arm") and state != "Z":
            found[int(folder.name)] = int(parent)
    return found


def processes() -> set[int]:
    """All that are not dead."""
    alive = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            alive |= {int(folder.name)} if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z" else set()
        except OSError:
            continue
    return alive


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# -- Equality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("options", ["native", "qemu_an547", "qemu_an547 --kernels mve"], ids=lambda o: o.split()[-1])
def test_training_equals_twin(place, network, options):
    run = f"{network}-{options.split()[-1]}"
    result = train(place, run, "--board", *options.split(), network=network)
    assert result.exit_code == 0, result.output
    assert_equals_twin(place, run, network)
    assert len(read_log(place / run / "seeds.log").records) == tiny_run.STEPS


def test_training_over_the_uart_equals_twin(place):
    result = train(place, "uart", "--board", "qemu_an547", "--link", "uart")
    assert result.exit_code == 0, result.output
    assert "on qemu_an547 (int8 words" in result.output
    assert_equals_twin(place, "uart")


def test_lockstep_with_the_twin(place):
    result = train(place, "lockstep", "--board", "qemu_an547", "--lockstep", 3, "--steps", 4)
    assert "lockstep: the qemu_an547 board and the twin gave equal replies for 3 steps." in result.output


def test_a_run_moves_between_boards(place):
    assert train(place, "moves", "--board", "native", "--threads", 2, "--memory", 512, "--steps", 6).exit_code == 0
    assert resume(place, "moves", "--board", "qemu_an547", "--steps", 13).exit_code == 0
    assert resume(place, "moves", "--board", "twin", "--steps", tiny_run.STEPS).exit_code == 0
    assert_equals_twin(place, "moves")


def test_board_tells_its_memory():
    with closing(open_board("qemu_an547", tiny_image(), memory=3)) as board:
        board.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
        board.select(range(8))
        board.probe(1, 2)
        board.update(Update(NEAREST, 0, tuple(range(64)), (1 << 15,) * 64))
        info = board.refresh()
    image, work, samples = info.regions[:3]
    assert image == samples and image.size == 3 << 20 and work.number != image.number
    assert 500 < info.memory["stack"] < info.stack_bytes, "untouched, or overflowed"
    assert info.memory["training"] < 4096 and info.memory["packed"] == 0
    assert info.memory["batch"] == 4 * info.max_batch
    used = info.memory["weights"] + info.memory["model"] + info.capacity * (info.sample_bytes + 2)
    assert 0.99 * image.size < used < image.size


# -- The link --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", boards.LINKS)
def test_samples_arrive_at_any_offset(link):
    """Byte by byte converted right, whether they come in frames or in bulk."""
    pixels = random_pixels(20, SHAPE, 5)
    with closing(open_board("qemu_an547", tiny_image(), link=link)) as board:
        board.write_samples(0, pixels, np.arange(20) % 10)
        board.select(range(20))
        whole = board.logits()
        board.write_samples(0, pixels[::-1], np.arange(20) % 10)
        flat = pixels.tobytes()
        for at, end in ((0, 1), (1, 7), (7, 8), (8, 1000), (1000, len(flat))):
            board._send(flat[at:end], at, PIXELS, PIXELS_BULK, 100)
        np.testing.assert_array_equal(board.logits(), whole)
    assert whole.std() > 0


@pytest.mark.parametrize("board", ["native", "qemu_an547"])
def test_refused_bulk_does_not_confuse_the_link(board):
    """The bytes that follow a refused command are no frames."""
    noise = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
    with closing(open_board(board, tiny_image())) as target:
        crc = target.weights_crc()
        for offset, size in ((2**32 - 1, 300_000), (0, 300_000), (2**31, 5)):
            for kind in (PIXELS_BULK, 0x14):
                with pytest.raises(Refused):
                    target._link.command(
                        kind, struct.pack("<II", offset + 2**29 & 0xFFFFFFFF, size), bulk=noise[:size], timeout=10
                    )
        assert target.weights_crc() == crc


def test_repeated_bulk_is_answered_once_and_taken_twice():
    """What follows a repeated command is no frame either, whatever it looks like."""
    trap = link.encode(LOAD_BEGIN, 9, struct.pack("<II", 64, 0))
    with closing(open_board("native", tiny_image())) as target:
        crc, transport = target.weights_crc(), target._link._transport
        frame = link.encode(PIXELS_BULK, 77, struct.pack("<II", 0, len(trap) + 2)) + b"\1" + trap + b"\1"
        for _ in range(2):
            transport.write(frame)
            assert link.decode(transport.read(10)[:-1]) == (PIXELS_BULK | link.REPLY, 77, b"")
        assert target.weights_crc() == crc


def test_bulk_is_refused_by_the_uart():
    with closing(open_board("qemu_an547", tiny_image(), link="uart")) as board, pytest.raises(Refused) as refused:
        board._link.command(PIXELS_BULK, struct.pack("<II", 0, 100), timeout=10)
    assert refused.value.code == 26


def test_noise_on_the_uart_is_sent_again():
    class Noisy:
        """Damages every fourth transmission to the board."""

        reliable = False

        def __init__(self, inner):
            self.inner, self.writes, self.read, self.close = inner, 0, inner.read, inner.close

        def write(self, data):
            self.writes += 1
            middle = len(data) // 2
            damaged = data[:middle] + bytes([data[middle] ^ 0x10 or 1]) + data[middle + 1 :]
            self.inner.write(damaged if self.writes % 4 == 0 else data)

    def steps(board):
        board.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
        board.select(range(8))
        return [(board.probe(s, 2), board.update(Update(NEAREST, 0, (s,), (1 << 17,)))) for s in range(5)]

    noisy = Noisy(start_an547(build_an547("zo_board", "words"), link="uart"))
    with closing(Board(Link(noisy), tiny_image())) as board, closing(open_board("native", tiny_image())) as native:
        assert steps(board) == steps(native)


# -- Ends ------------------------------------------------------------------------------------------------------------


def started(place, run, *more):
    """A training in a process of its own that has taken some steps; its emulator."""
    log, before = place / run / "seeds.log", emulators()
    process = tiny_run.popen("train_ondevice", *arguments(place, run, "--board", "qemu_an547", *more))
    wait_until(lambda: (log.exists() and log.stat().st_size > 300) or process.poll() is not None, 120)
    assert process.poll() is None, process.stdout.read()
    (emulator,) = (e for e, parent in emulators().items() if parent == process.pid and e not in before)
    return process, emulator


@pytest.mark.parametrize(("link", "end"), [("pipe", signal.SIGINT), ("pipe", signal.SIGKILL), ("uart", signal.SIGKILL)])
def test_nothing_is_left_behind(place, tmp_path, monkeypatch, link, end):
    run = f"left-{link}-{end}"
    build_an547("zo_board", "words")  # compilers have temporary files of their own
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, emulator = started(place, run, "--link", link, "--steps", 5000)
    process.send_signal(end)
    output = process.communicate()[0]
    wait_until(lambda: emulator not in emulators())
    assert list(tmp_path.iterdir()) == []
    if end == signal.SIGINT:
        assert process.returncode == 130 and f"--resume {place / run}" in output
    log = read_log(place / run / "seeds.log")
    assert len(log.records) >= 3


@pytest.mark.parametrize("moment", range(6))
def test_host_killed_while_the_emulator_starts_leaves_nothing(moment):
    """The firmware would never learn of it over its UART."""
    firmware = build_an547("zo_board", "words")
    code = f"from pipeline.targets.boards import *; t = start_an547(Path({str(firmware)!r}), link='uart'); input()"
    host = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=tiny_run.ROOT)
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    wait_until(lambda: children.read_text())
    emulator = int(children.read_text().split()[0])
    time.sleep(moment / 500)
    host.kill()
    host.wait()
    wait_until(lambda: emulator not in processes())


def test_killed_emulator_is_a_sentence_and_the_run_resumes(place):
    process, emulator = started(place, "killed", "--steps", 400)
    os.kill(emulator, signal.SIGKILL)
    output = process.communicate()[0]
    assert process.returncode == 1 and "Traceback" not in output
    assert "its process ended by signal 9" in output and "--resume" in output
    steps = len(read_log(place / "killed" / "seeds.log").records)
    assert steps < 400
    assert resume(place, "killed", "--board", "native").exit_code == 0
    assert train(place, "unkilled", "--board", "native", "--steps", 400).exit_code == 0
    assert (place / "killed" / "seeds.log").read_bytes() == (place / "unkilled" / "seeds.log").read_bytes()


# -- Faults ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "null write": (0, r"access to memory that the MPU protects at address 0x00000000 \(MemManage fault\) in write_to"),
    "stack overflow": (1, r"stack overflow \(UsageFault\) in overflow_stack"),
    "undefined instruction": (2, r"undefined instruction \(UsageFault\) in app_provoke"),
    "bus fault": (3, r"access to memory that is not there at address 0xe0100000 \(BusFault\) in write_to"),
    "lock-up": (4, r"the core locked up \(.*\) in app_provoke"),
    "watchdog": (5, r"the watchdog ran out \(a command made no progress\) in hang"),
    "hard fault": (6, r"a fault that could not be taken as what it was \(HardFault\) in app_provoke"),
    "data as code": (7, r"code fetched from memory that is not executable \(MemManage fault\) in 0x2000"),
    "division by zero": (8, r"division by zero \(UsageFault\) in app_provoke"),
    "stack overflow in small steps": (9, r"stack overflow \(UsageFault\) in or below creep_over_stack"),
}


@pytest.fixture(scope="module")
def fault_firmware():
    """The firmware with a command for faults, and a watchdog of two seconds."""
    return build_an547("zo_board", "words", "-DPROVOKE=ON")


@pytest.mark.parametrize(("number", "words"), FAULTS.values(), ids=FAULTS)
def test_fault_is_reported_and_the_run_resumes(place, fault_firmware, monkeypatch, number, words):
    run = f"fault-{number}"
    monkeypatch.setattr(boards, "build_an547", lambda *_: fault_firmware)
    update = Board.update

    def faulty(board, request):
        if len(read_log(place / run / "seeds.log").records) == 3:  # the third update, logged already, never arrives
            board._command(PROVOKE, struct.pack("<I", number))
        return update(board, request)

    monkeypatch.setattr(Board, "update", faulty)
    failed = train(place, run, "--board", "qemu_an547", *SHORT)
    assert failed.exit_code == 1
    message = " ".join(failed.output.split())
    assert re.search(r"error: the board stopped: " + words, message), failed.output
    assert "boards/cortex_m/provoke.c:" in message or number == 7
    assert "app_run (tflm_app/app/app.c:" in message or number in (1, 4, 9)
    assert re.search(r"\bpc [0-9a-f]{8}\b", message) or number == 9
    assert re.search(r"\br11 [0-9a-f]{8}\b", message) and re.search(r"\bsp [0-9a-f]{8}\b", message)
    assert message.endswith(
        f"Every step up to 3 is kept; continue with: python -m pipeline.train_ondevice --resume {place / run}"
    )
    monkeypatch.undo()
    assert resume(place, run).exit_code == 0
    assert_equals_twin(place, run, "short")


def test_fault_over_the_uart_is_reported(fault_firmware):
    transport = start_an547(fault_firmware, link="uart")
    with (
        closing(Board(Link(transport), tiny_image(), describe_end=transport.describe_end)) as board,
        pytest.raises(UserError, match="undefined instruction"),
    ):
        board._command(PROVOKE, struct.pack("<I", 2))


def test_released_firmware_knows_no_faults_by_command():
    with closing(open_board("qemu_an547", tiny_image())) as board, pytest.raises(Refused) as refused:
        board._link.command(PROVOKE, struct.pack("<I", 0), timeout=10)
    assert refused.value.code == 1


def test_a_crash_leaves_no_core_file(fault_firmware, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        transport = start_an547(fault_firmware)
        board = Board(Link(transport), tiny_image(), describe_end=transport.describe_end)
        with closing(board), pytest.raises(UserError, match="locked up"):
            board._command(PROVOKE, struct.pack("<I", 4))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_fault_is_none():
    assert Fault.parse("") is None
    assert Fault.parse("qemu-system-arm: unsupported machine type") is None


def test_a_place_without_debugging_tools_is_an_address(monkeypatch):
    monkeypatch.setenv("PATH", "")
    fault = Fault(6, {"pc": 0x1234, "cfsr": 1 << 16}, (0x101,))
    assert fault.describe(Path("none.elf")).startswith("undefined instruction (UsageFault) in 0x00001234.\n")


@pytest.mark.parametrize("address", [0x00008000, 0x10008000])
def test_code_is_read_only_under_both_its_addresses(fault_firmware, address):
    transport = start_an547(fault_firmware)
    with (
        closing(Board(Link(transport), tiny_image(), describe_end=transport.describe_end)) as board,
        pytest.raises(UserError, match=rf"MPU protects at address 0x{address:08x}"),
    ):
        board._command(PROVOKE, struct.pack("<II", 0, address))


# -- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["arm-none-eabi-gcc", "qemu-system-arm"])
def test_missing_tool_is_a_sentence(place, monkeypatch, tool):
    which = boards.shutil.which
    monkeypatch.setattr(boards.shutil, "which", lambda name, *a, **k: None if name == tool else which(name, *a, **k))
    monkeypatch.setattr(boards, "build_an547", build_an547.__wrapped__)
    result = train(place, "missing", "--board", "qemu_an547")
    assert result.exit_code == 1 and f"{tool} is missing" in result.output and "apt-get install" in result.output
    assert not (place / "missing").exists()


def test_emulator_that_does_not_know_the_machine_is_a_sentence(place, monkeypatch, tmp_path):
    """A QEMU that is too old, say: its own words reach the user."""
    fake = tmp_path / "qemu-system-arm"
    fake.write_text("#!/bin/sh\necho 'unsupported machine type' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = train(place, "old", "--board", "qemu_an547")
    assert result.exit_code == 1 and "exit code 1; it printed: unsupported machine type" in result.output


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--board qemu_an547 --threads 2", 2, "--threads means nothing to --board qemu_an547"),
        ("--board qemu_an547 --port localhost:1", 2, "--port means nothing"),
        ("--board native --link uart", 2, "--link means nothing"),
        ("--board twin --kernels mve", 2, "--kernels means nothing"),
        ("--board qemu_an547 --memory 1025", 1, "has 1024 MiB"),
        ("--board qemu_an547 --link tin-can", 2, "tin-can"),
    ],
)
def test_bad_options(place, options, code, words):
    result = train(place, "bad", *options.split())
    assert result.exit_code == code and words in result.output, result.output


def test_instructions_are_counted_over_the_pipe_only():
    with pytest.raises(UserError, match="leave --link uart out"):
        start_an547(Path("any.elf"), link="uart", count=True)


def test_a_batch_beyond_one_frame_is_refused_with_the_largest(place):
    result = train(place, "batch", "--board", "qemu_an547", "--samples", 300, "--batch", 300)
    assert result.exit_code == 1 and "use --batch 256 or less." in result.output, result.output
    assert not (place / "batch").exists()


def test_transport_reports_an_emulator_that_cannot_start(tmp_path):
    transport = ProcessTransport(["sh", "-c", "echo no such machine >&2; exit 3"])
    assert "exit code 3; it printed: no such machine" in transport.describe_end()
    transport.close()
