"""The clocks of the STM32N6's firmware on the model of the chip (stm32n6_clocks.py): 600 MHz from any state that the
boot ROM may leave, 64 MHz where the PLL fails, and no step that could be left out unnoticed."""

import shutil
from contextlib import closing

import pytest
from stm32n6_clocks import (
    BOOT_ROM,
    BYPASS,
    CFGR1,
    CFGR2,
    CR,
    DIVENR,
    HSICFGR,
    HSION,
    OUTPUT,
    ClockError,
    ClockTree,
    divider_register,
    on,
    pll_register,
)  # fmt: skip
from stm32n6_model import ModelError, ModelLine
from test_stm32n6_boot import connect, never, train
from tiny_model import tiny_image

from pipeline.targets import boards
from pipeline.targets.boards import build_stm32n6, open_board

pytestmark = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi"
)
RCC, CSR, CCR, DIVENSR = 0x56028000, 0x56028800, 0x56029000, 0x56028A40
HERTZ, HSI_HERTZ = 600_000_000, 64_000_000
RATES = {"core": 600, "axi": 400, "npu": 800, "axisram3 to 6": 800, "ahb": 200, "apb1": 200, "apb2": 200, "apb4": 200,
         "apb5": 200}  # fmt: skip


@pytest.fixture(scope="module")
def firmware():
    return build_stm32n6("nucleo", "words", cpu="cortex-m33")


def rates(line: ModelLine) -> dict[str, float]:
    return {name: line.machine.rcc.clocks.rate(name) / 1e6 for name in RATES}


def hello(firmware, **options) -> int:
    """The clock's rate that HELLO reports, when the board has answered."""
    with closing(connect(firmware, **options)) as board:
        return board.info.ticks_per_second


# -- How fast it is --------------------------------------------------------------------------------------------------

AFTER_RESET = {
    CR: HSION, CFGR1: 0, CFGR2: 1 << 20, HSICFGR: 0, DIVENR: 0,
    **{pll_register(n, 1): BYPASS for n in (1, 2, 3, 4)},
    **{pll_register(n, 3): OUTPUT | 9 << 24 | 5 for n in (1, 2, 3, 4)},
}  # fmt: skip
STATES = {
    "as BOOT_ROM": {},
    "as after a reset": AFTER_RESET,
    "dividers of PLLs that do not run": {
        CFGR1: 0, divider_register(1): 1 << 28 | 1 << 16, divider_register(6): 1 << 28, pll_register(2, 3): 0,
    },
    "everything on PLL2, PLL1 dead": {
        CR: HSION | on(2), pll_register(2, 1): 2 << 20 | 50 << 8, pll_register(2, 3): OUTPUT | 9 << 24 | 5,
        pll_register(1, 1): 0, **{divider_register(n): 1 << 28 | 3 << 16 for n in (1, 2, 6, 11)},
    },
    "buses undivided, HSI by 8": {CFGR2: 0, HSICFGR: 3 << 7},
    "buses divided as far as it goes": {CFGR2: 0x777077},
}  # fmt: skip


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_it_boots_at_600_mhz_from_any_state(firmware, state):
    line = ModelLine(firmware, clocks=state)
    assert rates(line) == RATES and line.machine.rcc.core == HERTZ


def test_training_at_600_mhz_and_hello_says_so(firmware):
    with closing(connect(firmware)) as board, closing(open_board("native", tiny_image())) as native:
        assert board.info.ticks_per_second == HERTZ
        assert train(board) == train(native)


@pytest.mark.parametrize("state", [{}, AFTER_RESET], ids=["as BOOT_ROM", "as after a reset"])
def test_a_pll_that_never_locks_leaves_hsi(firmware, state):
    with closing(connect(firmware, pll_locks=False, clocks=state)) as board:
        assert board.info.ticks_per_second == HSI_HERTZ
        with closing(open_board("native", tiny_image())) as native:
            assert train(board) == train(native)


def test_a_board_in_doubt_stays_on_hsi():
    """-DCLOCKS=hsi touches no PLL."""
    options = ("-DVARIANT=nucleo", "-DKERNELS=words", "-DCPU=cortex-m33", "-DCLOCKS=hsi")
    line = ModelLine(boards._build_firmware("stm32n6", "zo_board", "stm32n6-nucleo-words-cortex-m33-hsi", *options))
    values = line.machine.rcc.values
    assert set(rates(line).values()) == {64, 32}
    assert {at: values[at] for at in BOOT_ROM if at >= 0x80} == {at: BOOT_ROM[at] for at in BOOT_ROM if at >= 0x80}


# -- Steps left out or wrong -----------------------------------------------------------------------------------------


def multiply(by: int):
    return lambda v: v & ~(0xFFF << 8) | by << 8 if not v & BYPASS else v


FAULTS = {
    "buses not divided": ({CFGR2: 0}, {RCC + CFGR2: never}, "the ahb clock runs at 400 MHz, 200 are allowed"),
    "core not divided": ({}, {RCC + divider_register(1): never}, "the core clock runs at 1200 MHz"),
    "AXI divided less": ({}, {RCC + divider_register(2): lambda v: v - (1 << 16)}, "the axi clock runs at 480 MHz"),
    "the NPU divided less": ({}, {RCC + divider_register(6): lambda v: v - (1 << 16)}, "the npu clock runs at 1200"),
    "AXISRAM divided less": ({}, {RCC + divider_register(11): lambda v: v - (1 << 16)}, "axisram3 to 6 clock runs at"),
    "800 MHz": ({}, {RCC + pll_register(1, 1): multiply(200)}, "the core clock runs at 800 MHz, 600 are allowed"),
    "the other source not woken": (
        STATES["dividers of PLLs that do not run"],
        {RCC + pll_register(2, 1): never},
        "IC1 goes from PLL2 to PLL1, and one does not run",
    ),
}


@pytest.mark.parametrize(("state", "tamper", "words"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_step_is_noticed(firmware, state, tamper, words):
    with pytest.raises(ModelError, match=words):
        ModelLine(firmware, clocks=state, tamper=tamper)


ENDS_ON_HSI = {
    "PLL1 not turned off": {CCR: never},
    "PLL1 not turned on": {CSR: lambda v: v & ~on(1)},
    "PLL1 not configured": {RCC + pll_register(1, 1): never},
    "3,216 MHz": {RCC + pll_register(1, 1): multiply(201)},
    "an input of 64 MHz": {RCC + pll_register(1, 1): lambda v: v & ~(63 << 20) | 1 << 20},
    "spread spectrum": {RCC + pll_register(1, 3): lambda v: v & ~4},
    "no output": {RCC + pll_register(1, 3): lambda v: v & ~OUTPUT},
    "dividers not enabled": {DIVENSR: never},
    "IC11 not enabled": {DIVENSR: lambda v: v & ~(1 << 10)},
}


@pytest.mark.parametrize("tamper", ENDS_ON_HSI.values(), ids=ENDS_ON_HSI)
def test_a_step_left_out_ends_on_hsi_and_hello_says_so(firmware, tamper):
    state = AFTER_RESET if CCR not in tamper else {}
    assert hello(firmware, tamper=tamper, clocks=state) == HSI_HERTZ


# -- The model itself ------------------------------------------------------------------------------------------------


def test_what_is_in_use_may_not_stop():
    values = dict(BOOT_ROM)
    tree = ClockTree(values)
    assert (tree.rate("core"), tree.rate("axi"), tree.rate("ahb")) == (400_000_000, 200_000_000, 100_000_000)
    values[CR] = tree.before(CR, HSION)
    with pytest.raises(ClockError, match="core clock has stopped"):
        tree.check()


def test_a_pll_is_configured_while_it_is_off():
    values = dict(BOOT_ROM)
    tree = ClockTree(values)
    with pytest.raises(ClockError, match="PLL1 is configured while it is on"):
        tree.before(pll_register(1, 1), 4 << 20 | 150 << 8)


def test_a_switch_waits_for_what_it_selects():
    values = BOOT_ROM | AFTER_RESET
    tree = ClockTree(values)
    values[CFGR1] = tree.before(CFGR1, 3 << 16)
    assert [tree.switches() >> 20 & 3 for _ in range(10)] == [0] * 10
    values[DIVENR] = 1
    assert tree.switches() >> 20 & 3 == 3 and tree.rate("core") == 32_000_000


def test_a_pll_locks_after_a_while():
    values = BOOT_ROM | AFTER_RESET
    values[pll_register(1, 1)] = 4 << 20 | 150 << 8
    tree = ClockTree(values)
    values[CR] = tree.before(CR, HSION | on(1))
    states = [bool(tree.status() & on(1)) for _ in range(40)]
    assert states == sorted(states) and not states[5] and states[-1] and tree.pll(1) == 2_400_000_000
