"""The clock tree of an STM32N657, for stm32n6_model.py: oscillators, PLLs, dividers, switches, prescalers, their rates.

Rules, with sources by the letters of docs/stm32n6.md:

- A PLL is configured while it is off [H Z]. It locks a while after it was turned on, with HSI running, spread spectrum
  disabled, an input of 1 to 50 MHz and at most 3,200 MHz inside [H]; otherwise never. Bypassed, its source goes
  through; after reset all are [H]. A PLL that something in use hangs on must not be turned off.
- A divider (IC) changes its source only while the old and the new one run [H].
- A switch waits for what it selects, and says so in its status: IC1 for the core; IC2, IC6 and IC11 for the system
  [H Z].
- No clock is faster than the chip may be without overdrive: core 600 MHz, AXI 400, AHB and APB 200, NPU and AXISRAM3 to
  6 800 [H E].

HSE and MSI are off; only the boot ROM's and the firmware's PLLs of HSI are known here.
"""

from __future__ import annotations

HSI = 64_000_000
MHZ = 1_000_000
LIMITS = {"core": 600, "axi": 400, "npu": 800, "axisram3 to 6": 800, "ahb": 200, "apb1": 200, "apb2": 200, "apb4": 200,
          "apb5": 200}  # fmt: skip
CR, SR, CFGR1, CFGR2, HSICFGR, DIVENR = 0x00, 0x04, 0x20, 0x24, 0x48, 0x240
HSION, BYPASS, OUTPUT, NO_SPREAD, FRACTION = 1 << 3, 1 << 27, 1 << 30, 1 << 2, 1 << 3
CORE_SWITCH, SYSTEM_SWITCH = 16, 24  # bit of CFGR1
LOCK_READS, SWITCH_READS = 20, 3  # of a status until it is there


def pll_register(n: int, k: int) -> int:
    """PLLnCFGRk."""
    return 0x80 + 16 * (n - 1) + 4 * (k - 1)


def divider_register(n: int) -> int:
    """ICnCFGR."""
    return 0xC4 + 4 * (n - 1)


def on(n: int) -> int:
    """PLLnON and PLLnRDY."""
    return 1 << 7 + n


# Core and system on PLL1 of HSI / 2: 400 and 200 MHz. PLL2 is off and not bypassed.
BOOT_ROM = {
    CR: HSION | on(1),
    HSICFGR: 1 << 7,
    CFGR1: 3 << CORE_SWITCH | 3 << SYSTEM_SWITCH,
    CFGR2: 1 << 20,
    pll_register(1, 1): 2 << 20 | 50 << 8,
    pll_register(1, 3): OUTPUT | 1 << 27 | 1 << 24 | NO_SPREAD | 1,
    pll_register(3, 1): BYPASS,
    pll_register(3, 3): OUTPUT | 1 << 27 | 1 << 24 | NO_SPREAD | 1,
    pll_register(4, 1): BYPASS,
    pll_register(4, 3): OUTPUT | 1 << 27 | 1 << 24 | NO_SPREAD | 1,
    divider_register(1): 1 << 16,
    divider_register(2): 3 << 16,
    divider_register(6): 3 << 16,
    divider_register(11): 3 << 16,
    DIVENR: 1 << 0 | 1 << 1 | 1 << 5 | 1 << 10,
}


class ClockError(ValueError):
    """What no chip could be expected to bear."""


class ClockTree:
    """values: the registers, by offset. locks: whether PLLs that are turned on ever lock."""

    def __init__(self, values: dict[int, int], *, locks: bool = True):
        self._values, self._locks = values, locks
        self._waiting = dict.fromkeys((1, 2, 3, 4), 0)  # reads of SR until a PLL has locked
        self._in_use = {switch: self._selected(switch) for switch in (CORE_SWITCH, SYSTEM_SWITCH)}
        self._switch_reads = 0

    # -- what runs ---------------------------------------------------------------------------------------------------

    def _get(self, register: int) -> int:
        return self._values.get(register, 0)

    def _selected(self, switch: int) -> int:
        return self._get(CFGR1) >> switch & 3

    @property
    def hsi(self) -> int:
        return HSI >> (self._get(HSICFGR) >> 7 & 3) if self._get(CR) & HSION else 0

    def _lockable(self, n: int) -> bool:
        first, third = self._get(pll_register(n, 1)), self._get(pll_register(n, 3))
        inside, divide = first >> 8 & 0xFFF, first >> 20 & 63
        if not self._get(CR) & on(n) or first & (BYPASS | 7 << 28) or not divide or not self.hsi:
            return False
        entering = self.hsi / divide
        spread = not third & NO_SPREAD or third & FRACTION or self._get(pll_register(n, 2))
        return not spread and MHZ <= entering <= 50 * MHZ and inside >= 10 and entering * inside <= 3200 * MHZ

    def pll(self, n: int) -> int:
        """Rate of a PLL's output."""
        first, third = self._get(pll_register(n, 1)), self._get(pll_register(n, 3))
        if not third & OUTPUT:
            return 0
        if first & BYPASS:
            return self.hsi if not first >> 28 & 7 else 0
        outer = (third >> 27 & 7) * (third >> 24 & 7)
        if not self.running(n) or not outer:
            return 0
        return self.hsi // (first >> 20 & 63) * (first >> 8 & 0xFFF) // outer

    def running(self, n: int) -> bool:
        """Whether a PLL has locked."""
        return self._lockable(n) and not self._waiting[n]

    def divider(self, n: int) -> int:
        """Rate of an IC."""
        register = self._get(divider_register(n))
        enabled = self._get(DIVENR) >> n - 1 & 1
        return self.pll((register >> 28 & 3) + 1) // ((register >> 16 & 255) + 1) if enabled else 0

    def rate(self, name: str) -> int:
        """Of a clock of LIMITS."""
        if name == "core":
            return self.divider(1) if self._in_use[CORE_SWITCH] else self.hsi
        if name in ("axi", "npu", "axisram3 to 6"):
            n = {"axi": 2, "npu": 6, "axisram3 to 6": 11}[name]
            return self.divider(n) if self._in_use[SYSTEM_SWITCH] else self.hsi
        ahb = self.rate("axi") >> (self._get(CFGR2) >> 20 & 7)
        shift = {"ahb": None, "apb1": 0, "apb2": 4, "apb4": 12, "apb5": 16}[name]
        return ahb if shift is None else ahb >> (self._get(CFGR2) >> shift & 7)

    # -- what the firmware sees and does -----------------------------------------------------------------------------

    def status(self) -> int:
        """SR. Reading it is what time passes by."""
        for n, reads in self._waiting.items():
            if reads and self._lockable(n) and self._locks:
                self._waiting[n] = reads - 1
        self.check()
        return self._get(CR) & HSION | sum(on(n) for n in (1, 2, 3, 4) if self.running(n))

    def switches(self) -> int:
        """CFGR1, with the state of both switches."""
        self._switch_reads += 1
        if self._switch_reads > SWITCH_READS:
            self._follow()
        return self._get(CFGR1) | sum(source << switch + 4 for switch, source in self._in_use.items())

    def _follow(self) -> None:
        for switch, dividers in ((CORE_SWITCH, (1,)), (SYSTEM_SWITCH, (2, 6, 11))):
            selected = self._selected(switch)
            if self.hsi if selected == 0 else selected == 3 and all(map(self.divider, dividers)):
                self._in_use[switch] = selected
        self.check()

    def before(self, register: int, value: int) -> int:
        """What a register takes of a value that is about to be written."""
        changed = self._get(register) ^ value
        if register == CR:
            for n in (1, 2, 3, 4):
                if changed & on(n):
                    self._waiting[n] = LOCK_READS
        for n in (1, 2, 3, 4):
            if 0x80 + 16 * (n - 1) <= register <= 0x88 + 16 * (n - 1) and changed and self._get(CR) & on(n):
                raise ClockError(f"PLL{n} is configured while it is on")
        for n in range(1, 21):
            if register == divider_register(n) and changed & 3 << 28:
                sources = [(word >> 28 & 3) + 1 for word in (self._get(register), value)]
                if not all(map(self.pll, sources)):
                    raise ClockError(f"IC{n} goes from PLL{sources[0]} to PLL{sources[1]}, and one does not run")
        if register == CFGR1:
            self._switch_reads = 0
            return value & (3 << CORE_SWITCH | 3 << SYSTEM_SWITCH | 1)
        return value

    def check(self) -> None:
        """What is in use runs, and not too fast."""
        for name, most in LIMITS.items():
            rate = self.rate(name)
            if not rate:
                raise ClockError(f"the {name} clock has stopped")
            if rate > most * MHZ:
                raise ClockError(f"the {name} clock runs at {rate / MHZ:g} MHz, {most} are allowed")
