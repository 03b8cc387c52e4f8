"""The firmware of the STM32N6's boards, from its first instruction to training steps, on a model of the chip that is as
strict as the chip (stm32n6_model.py). Unicorn has no Helium: what runs here is built for a Cortex-M33, from the same
sources; the Cortex-M55 build with Helium is built here, and its kernels are tested on qemu_an547."""

import os
import re
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache

import numpy as np
import pytest
import stm32n6_model
import tiny_run
from click.testing import CliRunner
from oracles import random_pixels
from stm32n6_model import LSI, Core, Machine, ModelError, ModelLine, load_segments
from stm32n6_psram import DkMachine
from tiny_model import SHAPE, tiny_image
from unicorn import UC_HOOK_CODE
from unicorn import arm_const as arm

import pipeline.firmware
from converters.errors import UserError
from pipeline import train_ondevice
from pipeline.targets import memory
from pipeline.targets.boards import VARIANTS, build_stm32n6, open_board
from pipeline.targets.client import Board
from pipeline.targets.fault import Fault
from pipeline.targets.link import Link, LinkClosed, encode
from pipeline.targets.target import NEAREST, STOCHASTIC, Update
from pipeline.targets.transports import SerialLine

pytestmark = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi"
)
PROVOKE = 0x7F  # tflm_app/app/commands.h
RCC, RAMCFG, GPIOE, USART1, SCS = 0x56028000, 0x52023000, 0x56021000, 0x52001000, 0xE000E000


@pytest.fixture(scope="module")
def firmware():
    return build_stm32n6("nucleo", "words", cpu="cortex-m33")


@pytest.fixture(scope="module")
def fault_firmware():
    """With faults by command and a watchdog of two seconds."""
    return build_stm32n6("nucleo", "words", cpu="cortex-m33", provoke=True)


def connect(firmware, image=None, **options) -> Board:
    line = ModelLine(firmware, **options)
    return Board(Link(line), image or tiny_image(), describe_end=line.describe_end)


def train(board, samples: int = 6):
    """Everything that three steps of three directions say; the last step in stochastic rounding."""
    board.write_samples(0, random_pixels(samples, SHAPE, 1), np.arange(samples) % board.info.classes)
    board.select(range(samples))
    said = [board.loss(), board.weights_crc()]
    for step in range(3):
        seeds = tuple(100 * step + j for j in range(3))
        said += [board.probe(seed, 2) for seed in seeds]
        said.append(board.update(Update((NEAREST, STOCHASTIC)[step == 2], step, seeds, (1 << 17, -(1 << 16), 70_000))))
    return [*said, board.loss(), board.logits().tobytes(), board.weights_crc(), board.read_tflite()]


# -- It boots and trains ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernels", ["mve", "words", "portable"])
def test_firmware_builds_for_the_m55(variant, kernels):
    path = build_stm32n6(variant, kernels)
    segments = dict(load_segments(path))
    assert min(segments) == 0x34000400
    assert max(at + len(data) for at, data in segments.items()) <= 0x34020000, "what is loaded stays in its 127 KiB"
    (stack, reset) = struct.unpack_from("<II", segments[0x34000400])
    assert 0x34020000 < stack < 0x34100000 and 0x34000800 < reset < 0x34020000 and reset & 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_table(variant):
    """make firmware: no heap, no recursion, stacks that cannot overflow."""
    result = tiny_run.invoke(pipeline.firmware.main, "--board", "stm32n6", "--variant", variant, "--kernels", "mve")
    assert result.exit_code == 0 and "no heap, no recursion" in result.output
    for line in ("CODE ", "DATA ", "AXISRAM2 ", "AXISRAM36 ", "samples ", "image ", "app context "):
        assert line in result.output, line
    assert ("larger images, samples" in result.output) == ("PSRAM " in result.output) == (variant == "dk")
    result = tiny_run.invoke(pipeline.firmware.main, "--board", "qemu_an547", "--variant", variant)
    assert result.exit_code == 2 and "means nothing" in result.output


@pytest.mark.parametrize(("variant", "kernels"), [("nucleo", "words"), ("dk", "portable")])
def test_training_equals_the_native_board(variant, kernels):
    firmware = build_stm32n6(variant, kernels, cpu="cortex-m33")
    machine = DkMachine if variant == "dk" else Machine
    with closing(connect(firmware, machine=machine)) as board, closing(open_board("native", tiny_image())) as native:
        assert board.info.board == f"stm32n6-{variant}" and kernels in board.info.runner
        assert train(board) == train(native)


def test_a_real_network_equals_the_native_board(firmware):
    image = tiny_run.make_image(tiny_run.networks()[0])
    with closing(connect(firmware, image.raw)) as board, closing(open_board("native", image.raw)) as native:
        info = board.info
        assert info.regions == memory.BOARDS["stm32n6"].regions, "what converting for this board counts on"
        regions = [(region.number, region.size >> 10) for region in info.regions]
        assert regions == [(0, 1792), (1, 1024), (2, 864), (3, 0)] and 64 * (64 * 64 * 3 + 2) < 864 << 10
        shape = (32, 32, info.sample_bytes // 1024)
        for target in (board, native):
            target.write_samples(0, random_pixels(2, shape, 1), [0, 1])
            target.select(range(2))
        assert board.probe(5, 2) == native.probe(5, 2)
        update = Update(NEAREST, 0, (5, 6), (1 << 17, 1 << 16))
        assert board.update(update) == native.update(update)
        assert board.loss() == native.loss()


def test_samples_arrive_whole_although_the_line_is_slow(firmware):
    """Frames of the largest size, against a ring of twice that and a FIFO of eight."""
    with closing(connect(firmware)) as board:
        raw = b"".join(board.read(at, 1000) for at in range(0, len(board.image.raw) - 1000, 1000))
        assert raw == board.image.raw[: len(raw)]


def test_a_byte_takes_the_interrupt_far_less_than_its_time(firmware):
    """At 921600 baud a byte lasts 694 cycles of 64 MHz, 6510 of 600; the FIFO holds eight."""
    line = ModelLine(firmware)
    machine, count = line.machine, [0]
    start, end = handler_range(firmware)
    machine.uc.hook_add(UC_HOOK_CODE, lambda *_: count.__setitem__(0, count[0] + 1), begin=start, end=end)
    line.write(b"\xff" * 800)
    machine.run(lambda: not machine.usart.to_board, 5)
    assert 800 * 5 < count[0] < 800 * 40, count


def handler_range(firmware) -> tuple[int, int]:
    """From the vector of USART1 to the next 96 bytes."""
    vectors = dict(load_segments(firmware))[0x34000400]
    (handler,) = struct.unpack_from("<I", vectors, 4 * (16 + 159))
    return handler & ~1, (handler & ~1) + 96


def test_the_board_waits_for_ever_and_keeps_time(fault_firmware):
    """The watchdog of two seconds is fed while nothing comes; the clock goes through its 24 bits in 28 ms."""
    line = ModelLine(fault_firmware)
    machine = line.machine
    start, rounds = machine.now, machine.exceptions.count(15)
    machine.run(lambda: machine.now > 2.6, 20)
    assert machine.ended == "" and machine.now > 2.6
    assert abs(machine.exceptions.count(15) - rounds - (machine.now - start) * 600e6 / (1 << 24)) < 2
    line.write(encode(1, 1, b""))
    assert line.read(5)


def call(machine: Machine, firmware, name: str, *arguments: int) -> int:
    """A function of the firmware, which returns at most 64 bits, without interrupts. It ends where the core never was:
    Unicorn stops nowhere else."""
    place, back = symbol(firmware, name), symbol(firmware, "board_exit")
    for i, value in enumerate(arguments):
        machine.uc.reg_write(arm.UC_ARM_REG_R0 + i, value)
    machine.uc.reg_write(arm.UC_ARM_REG_LR, back | 1)
    machine._due, machine._again = lambda: False, []
    machine.uc.emu_start(place | 1, back)
    return machine.uc.reg_read(arm.UC_ARM_REG_R0) | machine.uc.reg_read(arm.UC_ARM_REG_R1) << 32


@cache
def symbol(firmware, name: str) -> int:
    done = subprocess.run(["arm-none-eabi-nm", str(firmware)], capture_output=True, text=True, check=True)
    return int(next(line.split()[0] for line in done.stdout.splitlines() if line.split()[2] == name), 16)


@pytest.mark.parametrize("cycles", [0, 1, 2])
def test_the_clock_is_right_at_the_end_of_a_round(firmware, cycles):
    """Every reading lies between the times before and after it, whatever a register's access takes: cycles."""
    machine = ModelLine(firmware).machine
    core, read, length = machine.core, machine.core.read, 1 << 24
    advance, core.advance = core.advance, lambda *_: None

    def read_and_go_on(offset: int) -> int:
        value = read(offset)
        advance(cycles, 1)
        return value

    core.read = read_and_go_on
    rounds = struct.unpack("<I", machine.uc.mem_read(symbol(firmware, "clock_rounds"), 4))[0]
    for start in range(length - 8, length + 9):
        core.cycles, core.tick_pending = start, start >= length
        now = call(machine, firmware, "clock_now") - rounds * length
        assert start <= now <= core.cycles, (start, now)


def test_a_byte_that_is_not_taken_ends_the_waiting(firmware):
    machine, reads = ModelLine(firmware).machine, []
    machine.usart.read = lambda offset: reads.append(offset) or 0
    call(machine, firmware, "uart_write", 0x34000400, 1000)
    assert 1 < len(reads) <= 1 << 20, "one byte is waited for"
    reads.clear()
    call(machine, firmware, "uart_write", 0x34000400, 1000)
    assert len(reads) == 1 and not machine.usart.to_host
    machine.usart.read = lambda offset: 0xC0
    call(machine, firmware, "uart_write", 0x34000400, 1000)
    assert len(machine.usart.to_host) == 1000, "and what comes back is used"


# -- Steps left out --------------------------------------------------------------------------------------------------


def never(_value):
    return None


SILENT = r"has not answered command 0x01 within"
NO_MEMORY = r"board stopped: access to memory that is not there at address 0x34(2|3)\w+ \(BusFault\)"
STEPS = {
    "USART1's clock": ({RCC + 0xA6C: never}, SILENT),
    "GPIO port E's clock": ({RCC + 0xA5C: never}, SILENT),
    "the pins' alternate function": ({GPIOE + 0x20: never}, SILENT),
    "AF4 for AF7": ({GPIOE + 0x20: lambda v: v & 0x44444444}, SILENT),
    "the pins' mode": ({GPIOE + 0x00: never}, SILENT),
    "TE and RE": ({USART1 + 0x00: lambda v: v & ~0xC}, SILENT),
    "the interrupt's enable": ({SCS + 0x110: never}, SILENT),
    "the interrupt of the receiver": ({USART1 + 0x00: lambda v: v & ~0x20}, SILENT),
    "the kernel clock's choice": ({RCC + 0x174: never}, r"arrived damaged|has not answered"),
    "HSI undivided": ({RCC + 0x48: never}, r"arrived damaged|has not answered"),
    "115200 baud": ({USART1 + 0x0C: lambda _: 64_000_000 // 115_200}, r"arrived damaged|has not answered"),
    "a rate 6 % off": ({USART1 + 0x0C: lambda v: v + 4}, r"arrived damaged|has not answered"),
    "the memories' clock": ({RCC + 0xA4C: never}, NO_MEMORY),
    "AXISRAM3's clock": ({RCC + 0xA4C: lambda v: v & ~1}, NO_MEMORY),
    "RAMCFG's clock": ({RCC + 0xA54: never}, NO_MEMORY),
    "AXISRAM3's power": ({RAMCFG + 0x100: never}, NO_MEMORY),
}


@pytest.mark.parametrize(("tamper", "words"), STEPS.values(), ids=STEPS)
def test_a_step_left_out_fails(fault_firmware, tamper, words):
    """None of them may go unnoticed, and each says what it can."""
    with pytest.raises(UserError, match=words):
        connect(fault_firmware, tamper=tamper, patience=10 if words is NO_MEMORY else 0.3)


def test_small_deviations_of_the_rate_do_no_harm(firmware):
    with closing(connect(firmware, host_baud=921_600 * 102 // 100)) as board:
        assert board.weights_crc() == board.info.weights_crc


def test_a_cache_with_random_lines_is_noticed(firmware):
    with pytest.raises(ModelError, match="data cache enabled after 0"):
        ModelLine(firmware, tamper={SCS + Core.DCISW: never})


def test_vectors_must_be_set(firmware):
    with pytest.raises(ModelError, match=r"no handler|lock-up|wrong"):
        line = ModelLine(firmware, tamper={SCS + Core.VTOR: never})
        line.write(encode(1, 1, b""))
        line.machine.run(lambda: bool(line.machine.usart.to_host), 1)
        raise ModelError("wrong: " + line.machine.ended)


def test_an_unclocked_peripheral_reads_zero_and_ignores_writes(firmware):
    machine = Machine(firmware)
    assert machine._read(None, 0x1C, 4, USART1) == 0
    machine._write(None, 0x0C, 4, 69, USART1)
    machine._write(None, 0xA6C, 4, 1 << 4, RCC)
    assert machine._read(None, 0x0C, 4, USART1) == 0
    assert machine._read(None, 0x1C, 4, USART1) == 0xC0
    machine._write(None, 0x126C, 4, 1 << 4, RCC)
    assert machine._read(None, 0x1C, 4, USART1) == 0


# -- Faults ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "null write": (0, r"access to memory that the MPU protects at address 0x00000000 \(MemManage fault\) in write_to"),
    "stack overflow": (1, r"stack overflow \(UsageFault\) in overflow_stack"),
    "undefined instruction": (2, r"undefined instruction \(UsageFault\) in app_provoke"),
    "bus fault": (3, r"access to memory that is not there at address 0xe0100000 \(BusFault\) in write_to"),
    "watchdog": (5, r"the watchdog ran out \(a command made no progress\) in hang"),
    "hard fault": (6, r"a breakpoint without a debugger \(HardFault\) in app_provoke"),
    "data as code": (7, r"code fetched from memory that is not executable \(MemManage fault\) in 0x3402"),
}


@pytest.mark.parametrize(("number", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_reported_over_the_serial_line(fault_firmware, number, words):
    line = ModelLine(fault_firmware)
    board = Board(Link(line), tiny_image(), describe_end=line.describe_end)
    with pytest.raises(UserError, match=words) as error:
        board._command(PROVOKE, struct.pack("<I", number))
    line.machine.run(lambda: False, 0.2)
    assert line.machine.ended == "reset"
    message = str(error.value)
    assert "boards/cortex_m/provoke.c:" in message or number == 7
    assert "app_run (tflm_app/app/app.c:" in message or number == 1
    assert re.search(r"\bpc [0-9a-f]{8}\b", message) and "load its firmware again" in message


def test_a_fault_of_the_start_is_reported():
    """A chip without PWR, which the start of PSRAM needs."""
    with pytest.raises(UserError) as error:
        connect(build_stm32n6("dk", "portable", cpu="cortex-m33"), patience=5)
    where = (
        r"access to memory that is not there at address 0x5602483c \(BusFault\) in connect \(boards/stm32n6/psram.c:\d"
    )
    assert re.search(where, str(error.value)) and "main (boards/stm32n6/port.c:" in str(error.value)


def test_a_lock_up_ends_in_silence(fault_firmware, monkeypatch):
    line = ModelLine(fault_firmware)
    with pytest.raises(UserError, match="has not answered"):
        Board(Link(line), tiny_image())._command(PROVOKE, struct.pack("<I", 4), timeout=0.2)
    assert line.machine.ended == "lock-up"


def test_without_protection_a_null_write_is_no_memory_fault(fault_firmware):
    """The model's MPU does what the firmware's registers say, nothing by itself."""
    line = ModelLine(fault_firmware, tamper={SCS + Core.MPU_CTRL: lambda v: v & ~1})
    board = Board(Link(line), tiny_image(), describe_end=line.describe_end)
    with pytest.raises(UserError, match=r"0x00000000 \(BusFault\)"):
        board._command(PROVOKE, struct.pack("<I", 0))


def test_the_watchdog_resets_where_no_report_is_possible(fault_firmware):
    """Its interrupt masked, the hanging core is reset after the two seconds."""
    line = ModelLine(fault_firmware, tamper={SCS + 0x100: never})
    machine = line.machine
    line.write(encode(PROVOKE, 1, struct.pack("<I", 5)))
    machine.run(lambda: False, 10)
    assert machine.ended == "watchdog" and machine.now > 1.9
    assert machine.watchdog.values[8] == 2 * LSI // 1024


# -- The host's side of a serial line --------------------------------------------------------------------------------

REPORT = (
    b"\n@FAULT exception=00000005 cfsr=00008200 hfsr=00000000 bfar=34200000 pc=34001234\n@CALLERS at=34001001\n@END\n"
)


class Recorded(SerialLine):
    def __init__(self, *pieces: bytes):
        super().__init__(stm32n6_model.Path("none.elf"))
        self._pieces = list(pieces)

    def receive(self, timeout):
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
@pytest.mark.parametrize("before", [b"", b"\x05\x81abc", encode(0x81, 1, b"ab"), encode(0x81, 1, b"ab") + b"\x07xx"])
def test_a_report_in_the_middle_of_a_frame_is_found(before, cut):
    stream = before + REPORT
    line = Recorded(*(stream[i : i + cut] for i in range(0, len(stream), cut)))
    got = b""
    with pytest.raises(LinkClosed):
        while True:
            got += line.read(0.1)
    assert got.startswith(before[: before.rfind(0) + 1]), "a whole frame before the report still arrives"
    assert "access to memory that is not there at address 0x34200000 (BusFault)" in line.describe_end()


def test_a_report_that_breaks_off_still_ends_the_link(monkeypatch):
    monkeypatch.setattr("pipeline.targets.transports.REPORT_SECONDS", 0.01)
    line = Recorded(REPORT[:60])
    assert line.describe_end() == ""
    with pytest.raises(LinkClosed):
        line.read(0.1)
    assert line.describe_end() == ""
    assert Fault.parse(REPORT[:60].decode()) is None


def test_frames_with_the_reports_words_are_frames():
    """A payload may hold anything: only text that no zero byte ends is a report."""
    frame = encode(0x81, 1, b"x\n@FAULT x" * 20)
    line = Recorded(frame[:100], frame[100:])
    assert line.read(0.1) + line.read(0.1) == frame


@contextmanager
def serial_port(firmware) -> Iterator[str]:
    """The name of a pseudo-terminal between the host's serial port and the chip's line."""
    ours, theirs = os.openpty()
    line, stop = ModelLine(firmware), threading.Event()
    os.set_blocking(ours, False)

    def pump():
        while not stop.is_set():
            with suppress(BlockingIOError):
                line.write(os.read(ours, 4096))
            if data := line.receive(0.01):
                os.write(ours, data)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield os.ttyname(theirs)
    finally:
        stop.set()
        thread.join()
        os.close(ours)
        os.close(theirs)


def test_a_serial_port_carries_frames(firmware):
    with serial_port(firmware) as port, closing(open_board("stm32n6", tiny_image(), port=port)) as board:
        assert board.info.board == "stm32n6-nucleo"
        assert board.weights_crc() == board.info.weights_crc


def test_selftest(firmware, tmp_path):
    (tmp_path / "tiny.zimg").write_bytes(tiny_image())
    arguments = ("--selftest", "--board", "stm32n6", "--image", tmp_path / "tiny.zimg")
    with serial_port(firmware) as port:
        result = tiny_run.invoke(train_ondevice.main, *arguments, "--port", port)
    print(result.output)
    assert result.exit_code == 0 and result.output.count("\nok ") == 9
    for line in (
        "board        stm32n6-nucleo, clock 600 MHz",
        "1,792 KiB for image; 1,024 KiB for work; 864 KiB for samples",
    ):
        assert line in result.output, line


def test_the_command_line_knows_the_board(tmp_path):
    (tmp_path / "tiny.zimg").write_bytes(tiny_image())
    arguments = ["--board", "stm32n6", "--link", "uart", "--image", str(tmp_path / "tiny.zimg")]
    result = CliRunner().invoke(train_ondevice.main, arguments)
    assert result.exit_code == 2 and "--link means nothing to --board stm32n6" in result.output
