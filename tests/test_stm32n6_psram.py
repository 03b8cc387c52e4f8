"""The PSRAM of the STM32N6570-DK: its start on the model of the chip and the memory (stm32n6_psram.py), what lies in
it, and that a board whose PSRAM fails is a board without."""

import shutil
from contextlib import closing

import pytest
from stm32n6_clocks import CFGR2
from stm32n6_model import ModelLine
from stm32n6_psram import SIZE, DkMachine, Psram
from test_stm32n6_boot import connect, never, train
from test_stm32n6_clocks import AFTER_RESET
from tiny_model import tiny_image

from pipeline.targets import boards, memory
from pipeline.targets.boards import build_stm32n6, open_board
from pipeline.targets.memory import BoardMemory
from pipeline.targets.target import Region

pytestmark = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi"
)
RCC, PWR, PORT_O, PORT_P, XSPI = 0x56028000, 0x56024800, 0x56023800, 0x56023C00, 0x58025000
AHB4ENSR, AHB5ENSR, AHB5RSTSR, CCIPR6 = RCC + 0xA5C, RCC + 0xA60, RCC + 0xA20, RCC + 0x158
WITHOUT = memory.BOARDS["stm32n6"].regions


@pytest.fixture(scope="module")
def firmware():
    return build_stm32n6("dk", "words", cpu="cortex-m33")


@pytest.fixture(scope="module")
def small_firmware():
    """Images of more than 1,000 bytes lie in PSRAM."""
    flags = "-mcpu=cortex-m33 -mthumb -mfloat-abi=soft -DBOARD_SMALL_IMAGE_BYTES=1000"
    options = ("-DVARIANT=dk", "-DKERNELS=words", "-DCPU=cortex-m33", f"-DCMAKE_C_FLAGS={flags}")
    return boards._build_firmware("stm32n6", "zo_board", "stm32n6-dk-words-cortex-m33-small", *options)


def psram_connect(firmware, **options):
    return connect(firmware, machine=DkMachine, **options)


def has_psram(firmware, **options) -> bool:
    machine = ModelLine(firmware, machine=DkMachine, **options).machine
    return machine.mapped_as == "memory"


# -- What it is for --------------------------------------------------------------------------------------------------


def test_training_with_image_and_samples_in_psram(small_firmware):
    with closing(psram_connect(small_firmware)) as board, closing(open_board("native", tiny_image())) as native:
        assert train(board) == train(native)
        machine = board._link._transport.machine
        assert machine.uc.mem_read(0x90000000, 400) == tiny_image()[:400]


def test_an_image_that_fits_lies_in_axisram(firmware):
    with closing(psram_connect(firmware)) as board, closing(open_board("native", tiny_image())) as native:
        machine = board._link._transport.machine
        assert machine.uc.mem_read(0x34200000, 400) == tiny_image()[:400]
        assert machine.uc.mem_read(0x90000000, 400) != tiny_image()[:400]
        assert board.info.regions == memory.BOARDS["stm32n6-dk"].regions
        assert BoardMemory.of(board.info).name(0) == "PSRAM"
        assert train(board) == train(native)


def test_the_host_places_images_as_the_board_does():
    have = memory.board_memory("stm32n6", "words")
    small, large = (memory.with_psram(have, size) for size in (1792 << 10, (1792 << 10) + 1))
    assert small.regions == (Region(0, 1792 << 10), Region(1, 1 << 20), Region(2, SIZE), Region(3, 0))
    assert [small.name(i) for i in range(3)] == ["AXISRAM3 to 6", "AXISRAM2", "PSRAM"]
    assert large.regions == memory.BOARDS["stm32n6-dk"].regions and large.kernels == "words"


def test_it_starts_from_hsi_and_after_another_program(firmware):
    assert has_psram(firmware, pll_locks=False)
    assert has_psram(firmware, clocks=AFTER_RESET | {CFGR2: 0}, pll_locks=False)
    assert has_psram(firmware, registers={0: 0x30, 4: 0x20, 8: 0x40})


# -- Boards without --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"psram": False}, {"fault": "address 20"}], ids=["no memory", "a broken line"])
def test_a_board_without_psram_trains(firmware, options):
    with closing(psram_connect(firmware, **options)) as board, closing(open_board("native", tiny_image())) as native:
        assert board.info.regions == WITHOUT and BoardMemory.of(board.info).name(2) == "AXISRAM1"
        assert train(board) == train(native)


@pytest.mark.parametrize("fault", ["data 5", "address 1", "address 2", "address 11", "address 24"])
def test_a_line_that_is_stuck_is_found(firmware, fault):
    with closing(psram_connect(firmware, fault=fault)) as board:
        assert board.info.regions == WITHOUT


def field(shift: int, bits: int, value: int):
    """Another value in one field of a register."""
    return lambda v: v & ~((1 << bits) - 1 << shift) | value << shift


STEPS = {
    "clock of PWR": {AHB4ENSR: lambda v: v & ~(1 << 18)},
    "clock of port O": {AHB4ENSR: lambda v: v & ~(1 << 14)},
    "clock of port P": {AHB4ENSR: lambda v: v & ~(1 << 15)},
    "VDDIO2": {PWR + 0x3C: never},
    "functions of port O": {PORT_O + 0x20: never},
    "mode of port O": {PORT_O + 0x00: never},
    "speed of port O": {PORT_O + 0x08: never},
    "the second strobe": {PORT_O + 0x00: lambda v: v & ~(3 << 6)},
    "functions of data 0 to 7": {PORT_P + 0x20: never},
    "functions of data 8 to 15": {PORT_P + 0x24: never},
    "mode of port P": {PORT_P + 0x00: never},
    "speed of port P": {PORT_P + 0x08: never},
    "clock of XSPI1": {AHB5ENSR: lambda v: v & ~(1 << 5)},
    "clock of XSPIM": {AHB5ENSR: lambda v: v & ~(1 << 13)},
    "reset of XSPI1": {AHB5RSTSR: never},
    "reset of XSPIM": {AHB5RSTSR: lambda v: v & ~(1 << 13)},
    "reset of XSPI2": {AHB5RSTSR: lambda v: v & ~(1 << 12)},
    "clock of XSPIPHYCOMP": {RCC + 0xA48: lambda v: v & ~(1 << 3)},
    "end of its reset": {RCC + 0x1220: never},
    "kernel clock": {CCIPR6: lambda v: v | 1},
    "kind of memory": {XSPI + 0x08: field(24, 3, 2)},
    "size": {XSPI + 0x08: field(16, 5, 23)},
    "100 MHz": {XSPI + 0x0C: lambda _: 1},
    "rows": {XSPI + 0x10: never},
    "refresh": {XSPI + 0x14: never},
    "enable": {XSPI + 0x00: lambda v: v & ~1},
    "mode registers": {XSPI + 0x50: never},
    "read latency": {XSPI + 0x50: lambda v: 0x2C if v == 0x30 else v},
    "dummy cycles of reads": {XSPI + 0x108: lambda v: v & ~31},
    "dummy cycles of writes": {XSPI + 0x188: never},
    "command of reads": {XSPI + 0x110: lambda v: 0x00 if v == 0x20 else v},
    "command of writes": {XSPI + 0x190: never},
    "layout of writes": {XSPI + 0x180: never},
    "sixteen lines": {XSPI + 0x100: lambda v: v & ~(1 << 24)},
    "strobes of reads": {XSPI + 0x100: lambda v: v & ~(1 << 29)},
    "strobes of writes": {XSPI + 0x180: lambda v: v & ~(1 << 29)},
    "one edge": {XSPI + 0x100: lambda v: v & ~(1 << 27)},
}


@pytest.mark.parametrize("tamper", STEPS.values(), ids=STEPS)
def test_a_step_left_out_leaves_a_board_without_psram(firmware, tamper):
    machine = ModelLine(firmware, machine=DkMachine, tamper=tamper, clocks={CCIPR6 - RCC: 1}).machine
    assert machine.mapped_as != "memory" and machine.watchdog.feeds > 50, "and it goes on"


# -- The model itself ------------------------------------------------------------------------------------------------


def test_mode_registers_are_read_as_latency_says():
    chip = Psram()
    assert chip.read_latency == 5 and chip.write_latency == 5
    chip.write_register((0x0C003C04, 0, 0xC0), 0, b"\x30\x00")
    assert chip.read_latency == 7
    assert chip.read_register((0x2C003C04, 6, 0x40), 0) == b"\x30\x8d"
    assert chip.read_register((0x2C003C04, 4, 0x40), 0) != b"\x30\x8d"
    assert chip.read_register((0x0C003C04, 6, 0x40), 0) is None, "nothing without strobes"
