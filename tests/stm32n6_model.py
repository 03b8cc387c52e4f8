"""An STM32N657 for its firmware: Unicorn executes the core, this file is the rest, as strict as the chip is.

Every rule names its source, by the letters of docs/stm32n6.md ("Sources"). What this file says of the chip is written
from documentation like the firmware itself; that both agree proves the firmware's logic, not the documentation.

- A peripheral without its clock reads as zero and ignores writes [R, RCC: "peripheral clock gating"].
- AXISRAM3 to 6 need a clock (RCC_MEMENR) and power (RAMCFG_CR.SRAMSD = 0, 1 after reset) [D H F]. Until then an access
  is a bus fault here; what the chip does is not documented. Their contents are random when they come up, like those of
  AXISRAM1 and 2 at reset.
- USART1 reaches the host only with its clock, UE and TE or RE, PE5 or PE6 in mode "alternate function" with AF7, and a
  rate within 3.5 % of the host's, computed from BRR, PRESC and the kernel clock that CCIPR13 selects. Otherwise bytes
  are lost, or arrive as a receiver at another rate would sample them. BRR, CR2, PRESC, FIFOEN are fixed with UE set.
- Clocks: stm32n6_clocks.py. SysTick and USART1 run at the rates that the tree gives.
- The chip starts as a boot ROM might leave it: core and buses on a PLL, HSI divided by 2, HSI not selected by anything,
  an interrupt enabled that nobody handles, MPU on, MSP somewhere else. [I: nobody documents that state]
- The data cache must not be enabled before every line was invalidated [A].
- Exceptions: entry and return with stack frames, MSP and PSP, priorities of faults over interrupts, escalation to
  HardFault, lock-up [A]. MPU: by region for what faults, by the kilobyte for what does not.
- The independent watchdog counts LSI / 1024 down, interrupts (18), resets.

Time is this machine's, at most 10 ms at once: less than SysTick takes for a round. The host's bytes wait until the
receiver has room: overruns do not happen here. There are no caches: a missing clean goes unnoticed (but see
stm32n6_npu.py). Registers that the firmware does not need are not there: touching one is an error of the test.
"""

from __future__ import annotations

import random
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stm32n6_clocks import BOOT_ROM, CFGR1, SR, ClockError, ClockTree
from unicorn import UC_ARCH_ARM, UC_MODE_MCLASS, UC_MODE_THUMB, Uc, UcError
from unicorn import arm_const as arm
from unicorn import unicorn_const as ucc

from pipeline.targets.transports import SerialLine

LSI = 32_000
MAIN_STACK, PROCESS_STACK, HANDLER = 0xFFFFFFF9, 0xFFFFFFFD, 0xFFFFFFF1  # EXC_RETURN
HARD, MEMORY, BUS, USAGE = 3, 4, 5, 6
SYSTICK, FIRST_INTERRUPT = 15, 16
USART1_IRQ, WATCHDOG_IRQ = 159, 18
PAGE = 0x400
SLICE = 10_000  # us that the core runs before interrupts are looked at again

RAM = {1: (0x34000000, 0x100000), 2: (0x34100000, 0x100000)} | {
    n: (0x34200000 + 0x70000 * (n - 3), 0x70000) for n in (3, 4, 5, 6)
}


def load_segments(path: Path) -> Iterator[tuple[int, bytes]]:
    """(load address, bytes) of every segment of a 32-bit little-endian file that has bytes."""
    raw = path.read_bytes()
    (table,) = struct.unpack_from("<I", raw, 28)
    size, count = struct.unpack_from("<HH", raw, 42)
    for i in range(count):
        kind, offset, _, address, length = struct.unpack_from("<5I", raw, table + i * size)
        if kind == 1 and length:
            yield address, raw[offset : offset + length]


class ModelError(AssertionError):
    """The firmware did what no chip could be expected to bear, or what this model does not know."""


class LockedUp(Exception):
    """A fault where none can be taken."""


class Device:
    """Registers that keep what is written, where the clock allows. All are read and written as words but some."""

    byte_registers: frozenset[int] = frozenset()

    def __init__(self, base: int, size: int, clocked: Callable[[], object] = lambda: True, reset: dict | None = None):
        self.base, self.size, self.clocked = base, size, clocked
        self.values: dict[int, int] = dict(reset or {})

    def read(self, offset: int) -> int:
        return self.values.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        self.values[offset] = value


class Rcc(Device):
    """+0x800: sets bits of the register 0x800 below; +0x1000: clears them [D H]."""

    CCIPR13, MISCENR, MEMENR = 0x174, 0x248, 0x24C
    AHB5RSTR = 0x220
    AHB2ENR, AHB3ENR, AHB4ENR, AHB5ENR, APB2ENR = 0x254, 0x258, 0x25C, 0x260, 0x26C

    def __init__(self, machine: Machine, clocks: Mapping[int, int], pll_locks: bool):
        super().__init__(0x56028000, 0x2000, reset={**BOOT_ROM, self.MEMENR: 0x1380, **clocks})
        self._machine = machine
        self.clocks = ClockTree(self.values, locks=pll_locks)

    def read(self, offset):
        if offset in (SR, CFGR1):
            return self._ask(self.clocks.status if offset == SR else self.clocks.switches)
        return 0 if offset >= 0x800 else super().read(offset)

    def write(self, offset, value):
        register = offset & 0x7FF
        old = self.values.get(register, 0)
        value = (value, old | value, old & ~value)[offset >> 11]
        self.values[register] = self._ask(self.clocks.before, register, value)
        self._ask(self.clocks.check)
        self._machine.map_memories()

    def _ask(self, question: Callable, *arguments: int) -> int:
        try:
            return question(*arguments)
        except ClockError as e:
            raise ModelError(str(e)) from e

    def bit(self, register: int, bit: int) -> Callable[[], int]:
        return lambda: self.values.get(register, 0) >> bit & 1

    @property
    def core(self) -> int:
        return self.clocks.rate("core")

    @property
    def usart1(self) -> int:
        """Kernel clock: 0 is PCLK2, 6 is HSI [D]; the others are not known here."""
        select = self.values.get(self.CCIPR13, 0) & 7
        return {0: self.clocks.rate("apb2"), 6: self.clocks.hsi}.get(select, 0)


class Ramcfg(Device):
    SHUT_DOWN = 1 << 20

    def __init__(self, machine: Machine, rcc: Rcc):
        reset = {0x80 * (n - 1): self.SHUT_DOWN for n in (3, 4, 5, 6)}
        super().__init__(0x52023000, 0x1000, rcc.bit(Rcc.AHB2ENR, 12), reset)
        self._machine = machine

    def write(self, offset, value):
        super().write(offset, value)
        self._machine.map_memories()

    def powered(self, n: int) -> bool:
        return not self.values.get(0x80 * (n - 1), 0) & self.SHUT_DOWN


class Gpio(Device):
    def __init__(self, rcc: Rcc):
        super().__init__(0x56021000, 0x400, rcc.bit(Rcc.AHB4ENR, 4), {0x00: 0xFFFFFFFF})  # all analog after reset

    def alternate(self, pin: int) -> int | None:
        """The function of a pin below 8, where it has one."""
        mode = self.values[0] >> 2 * pin & 3
        return self.values.get(0x20, 0) >> 4 * pin & 15 if mode == 2 else None


class Usart(Device):
    CR1, CR2, BRR, ISR, ICR, RDR, TDR, PRESC = 0x00, 0x04, 0x0C, 0x1C, 0x20, 0x24, 0x28, 0x2C
    PRESCALERS = (1, 2, 4, 6, 8, 10, 12, 16, 32, 64, 128, 256)

    def __init__(self, rcc: Rcc, port: Gpio, host_baud: int):
        super().__init__(0x52001000, 0x400, rcc.bit(Rcc.APB2ENR, 4))
        self._rcc, self._port, self._host_baud = rcc, port, host_baud
        self.to_board: deque[int] = deque()  # on the line, held back by the host
        self.to_host = bytearray()
        self.frame_sent = False
        self._fifo: deque[int] = deque()

    def _on(self, *bits: int) -> bool:
        mask = sum(1 << bit for bit in bits)
        return self.values.get(self.CR1, 0) & mask == mask

    @property
    def _baud(self) -> float:
        divider = self.values.get(self.BRR, 0)
        if self._on(15):  # OVER8
            divider = (divider & 0xFFF0 | (divider & 7) << 1) / 2
        prescaler = self.PRESCALERS[min(self.values.get(self.PRESC, 0) & 15, 11)]
        return self._rcc.usart1 / prescaler / divider if divider >= 8 else 0

    def _through_line(self, byte: int, sender: float, receiver: float) -> int | None:
        """What a receiver makes of a byte; None: nothing, no edge ever comes."""
        if not sender or not receiver:
            return None
        if abs(sender / receiver - 1) <= 0.035:
            return byte
        bits = [0, *(byte >> i & 1 for i in range(8)), 1]
        samples = [bits[min(int((i + 1.5) * sender / receiver), 9)] for i in range(8)]
        return sum(bit << i for i, bit in enumerate(samples)) ^ 0x80

    def read(self, offset):
        if offset == self.ISR:
            return 0xC0 | bool(self._fifo) << 5 | self._on(0, 3) << 21 | self._on(0, 2) << 22
        if offset == self.RDR:
            value = self._fifo.popleft() if self._fifo else 0
            self.receive()  # there is room now
            return value
        return super().read(offset)

    def write(self, offset, value):
        if self._on(0):
            if offset in (self.BRR, self.CR2, self.PRESC):
                return
            if offset == self.CR1:
                value = value & ~(1 << 29) | self.values[self.CR1] & 1 << 29
        if offset == self.TDR:
            if self._on(0, 3) and self._port.alternate(5) == 7:
                self.frame_sent = self.frame_sent or value & 0xFF == 0
                byte = self._through_line(value & 0xFF, self._baud, self._host_baud)
                self.to_host += b"" if byte is None else bytes([byte])
        else:
            super().write(offset, value)

    def receive(self) -> None:
        """The line moves on as far as the receiver has room."""
        if not self.to_board:
            return
        listening = self.clocked() and self._on(0, 2) and self._port.alternate(6) == 7
        while self.to_board and (not listening or len(self._fifo) < (8 if self._on(29) else 1)):
            byte = self._through_line(self.to_board.popleft(), self._host_baud, self._baud)
            if listening and byte is not None:
                self._fifo.append(byte)

    @property
    def interrupt(self) -> bool:
        return bool(self._fifo) and self._on(5)


class Watchdog(Device):
    KR, PR, RLR, SR, EWCR = 0x00, 0x04, 0x08, 0x0C, 0x14

    def __init__(self, machine: Machine):
        super().__init__(0x56004800, 0x400, reset={self.RLR: 0xFFF})
        self._machine = machine
        self._open = False
        self._fed: float | None = None  # None: not started
        self.feeds = 0

    def read(self, offset):
        return 0 if offset in (self.KR, self.SR) else super().read(offset)

    def write(self, offset, value):
        if offset == self.KR:
            self._open = value == 0x5555
            if value == 0xCCCC or (value == 0xAAAA and self._fed is not None):
                self._fed = self._machine.now
                self.feeds += 1
        elif self._open:
            super().write(offset, value)

    @property
    def left(self) -> float:
        """Counts until the reset."""
        if self._fed is None:
            return float("inf")
        hertz = LSI / (4 << min(self.values.get(self.PR, 0), 8))
        return self.values[self.RLR] - (self._machine.now - self._fed) * hertz

    @property
    def interrupt(self) -> bool:
        early = self.values.get(self.EWCR, 0)
        return bool(early & 1 << 15) and self.left < (early & 0xFFF)


class Core(Device):
    """The system control space [A]."""

    CSR, RVR, CVR, ISER, ICER, ISPR, ICPR = 0x10, 0x14, 0x18, 0x100, 0x180, 0x200, 0x280
    ICSR, VTOR, AIRCR, CCR, SHCSR, CFSR, HFSR, MMFAR, BFAR = (
        0xD04, 0xD08, 0xD0C, 0xD14, 0xD24, 0xD28, 0xD2C, 0xD34, 0xD38,
    )  # fmt: skip
    CCSIDR, MPU_TYPE, MPU_CTRL, MPU_RNR, MPU_RBAR, MPU_RLAR, DCISW = 0xD80, 0xD90, 0xD94, 0xD98, 0xD9C, 0xDA0, 0xF60
    DCIMVAC, DCCMVAC, DCCIMVAC = 0xF5C, 0xF68, 0xF70
    SETS, WAYS = 256, 4  # 32 KiB in lines of 32 bytes
    KNOWN = (
        CSR, RVR, CVR, ICSR, VTOR, AIRCR, CCR, SHCSR, CFSR, HFSR, MMFAR, BFAR, CCSIDR, MPU_TYPE, MPU_CTRL, MPU_RNR,
        MPU_RBAR, MPU_RLAR, DCISW, 0xD84, 0xD88, 0xDC0, 0xDD0, 0xF50, DCIMVAC, DCCMVAC, DCCIMVAC,
    )  # fmt: skip

    def __init__(self, machine: Machine):
        reset = {
            self.MPU_TYPE: 16 << 8, self.MPU_CTRL: 5, self.CCSIDR: (self.SETS - 1) << 13 | (self.WAYS - 1) << 3 | 1,
            self.CSR: 7, self.RVR: 0xFFFF,
        }  # fmt: skip
        super().__init__(0xE000E000, 0x1000, reset=reset)
        self._machine = machine
        self.enabled: set[int] = {77}  # the boot ROM's
        self.pended: set[int] = {77}
        self.tick_pending = True
        self.regions: dict[int, tuple[int, int]] = {0: (0x20000000, 0x3FFFFFE0 | 1)}
        self.cycles = 0.0  # since SysTick was 0: it pends in the cycle that has 0 again, the next one reloads it [A]
        self._invalidated: set[int] = set()

    def advance(self, seconds: float, hertz: int) -> None:
        if self.values[self.CSR] & 1:
            before = self.cycles
            self.cycles += seconds * hertz
            length = self.values[self.RVR] + 1
            if self.cycles // length > before // length:
                self.tick_pending = self.tick_pending or bool(self.values[self.CSR] & 2)

    def read(self, offset):
        if offset == self.CVR:
            return -int(self.cycles) % (self.values[self.RVR] + 1)
        if offset == self.ICSR:
            return self.tick_pending << 26 | self._machine.exception
        if 0x100 <= offset < 0x300:
            return 0
        if offset not in self.KNOWN:
            raise ModelError(f"read of register 0x{self.base + offset:08x}")
        return super().read(offset)

    def write(self, offset, value):
        if 0x100 <= offset < 0x300:
            group, numbers = offset & 0x780, {offset % 0x80 * 8 + i for i in range(32) if value >> i & 1}
            target = self.enabled if group in (self.ISER, self.ICER) else self.pended
            (target.difference_update if group in (self.ICER, self.ICPR) else target.update)(numbers)
        elif offset not in self.KNOWN:
            raise ModelError(f"write of 0x{value:08x} to register 0x{self.base + offset:08x}")
        elif offset == self.CVR:
            self.cycles = 0
        elif offset == self.ICSR:
            self.tick_pending = self.tick_pending and not value & 1 << 25
        elif offset == self.AIRCR:
            if value == 0x05FA0004:
                self._machine.end("reset")
        elif offset in (self.CFSR, self.HFSR):
            self.values[offset] = self.values.get(offset, 0) & ~value
        elif offset == self.DCISW:
            self._invalidated.add(value)
        elif offset in (self.DCIMVAC, self.DCCMVAC, self.DCCIMVAC):
            self._machine.maintain(value, clean=offset != self.DCIMVAC, forget=offset != self.DCCMVAC)
        elif offset == self.CCR and value & 1 << 16 and len(self._invalidated) < self.SETS * self.WAYS:
            raise ModelError(f"data cache enabled after {len(self._invalidated)} of its lines were invalidated")
        else:
            super().write(offset, value)
            if offset == self.MPU_RLAR:
                self.regions[self.values[self.MPU_RNR]] = (self.values.get(self.MPU_RBAR, 0), value)
            if offset in (self.MPU_CTRL, self.MPU_RLAR):
                self._machine.protect_memories()

    def allowed(self, low: int, high: int) -> int:
        """UC_PROT_* that some byte of [low, high) has: by its region, or by the default map."""
        everything = ucc.UC_PROT_ALL
        found = [r for r in self.regions.values() if r[1] & 1 and (r[0] & ~31) < high and (r[1] | 31) >= low]
        if not self.values[self.MPU_CTRL] & 1 or not found:
            return everything
        protection = ucc.UC_PROT_READ
        for base, _ in found:
            protection |= 0 if base & 1 else ucc.UC_PROT_EXEC
            protection |= 0 if base & 4 else ucc.UC_PROT_WRITE
        return protection


class Machine:
    """A chip in development mode with a firmware in its RAM, started by a debugger.

    tamper: what becomes of a value that the firmware writes to an address; None: the write never happens. So a test
    leaves a step of the firmware out. clocks: registers of RCC that the boot ROM left otherwise than BOOT_ROM says.
    pll_locks: whether PLLs that are turned on ever lock.
    """

    def __init__(
        self,
        firmware: Path,
        *,
        host_baud: int = 921_600,
        tamper: Mapping[int, Callable[[int], int | None]] | None = None,
        clocks: Mapping[int, int] | None = None,
        pll_locks: bool = True,
    ):
        self.uc = Uc(UC_ARCH_ARM, UC_MODE_THUMB | UC_MODE_MCLASS)
        self.uc.ctl_set_cpu_model(arm.UC_CPU_ARM_CORTEX_M33)
        self.ended = ""  # why the core no longer runs
        self.now = 0.0
        self.exception = 0  # whose handler runs: IPSR
        self.exceptions: list[int] = []  # those that were taken
        self._clock = time.perf_counter()
        self._tamper = dict(tamper or {})
        self._error: Exception | None = None
        self._access: tuple[int, int, int] | None = None  # kind, address, size of one that failed
        self._event: int | None = None  # Unicorn's number of an exception
        # Exception, address and value of the last access to a register. Unicorn, stopped during one, stands *before*
        # its instruction and makes it again when it goes on: it has had its effect and gets the same value then.
        # (Where a loop of a single access was stopped between two rounds, one round is taken for a repetition, too:
        # a poll that sees the same once more.)
        self._last: tuple[int, tuple[int | None, bool], int] | None = None
        self._again: list[tuple[int, tuple[int | None, bool], int]] = []
        self._random = random.Random(1)

        self._mapped: set[int] = set()
        self.rcc = Rcc(self, clocks or {}, pll_locks)
        self.ramcfg = Ramcfg(self, self.rcc)
        self.gpioe = Gpio(self.rcc)
        self.usart = Usart(self.rcc, self.gpioe, host_baud)
        self.watchdog = Watchdog(self)
        self.core = Core(self)
        self._devices = [
            self.rcc, self.ramcfg, self.gpioe, self.usart, self.watchdog, self.core,
            Device(0x54001000, 0x400, self.rcc.bit(Rcc.MISCENR, 0)),  # DBGMCU
            Device(0xE001E000, 0x400),  # MEMSYSCTL
            *self.more_devices(),
        ]  # fmt: skip
        for page in {d.base + at & ~0xFFF for d in self._devices for at in range(0, d.size, 0x400)}:
            self.uc.mmio_map(page, 0x1000, self._read, page, self._write, page)
        self.map_memories()
        for address, data in load_segments(firmware):
            self.uc.mem_write(address, data)
        self.uc.hook_add(ucc.UC_HOOK_MEM_INVALID, self._on_invalid)
        self.uc.hook_add(ucc.UC_HOOK_INTR, self._on_event)
        self.uc.reg_write(arm.UC_ARM_REG_XPSR, 1 << 24)
        self.uc.reg_write(arm.UC_ARM_REG_SP, 0x341FF000)  # the boot ROM's
        (entry,) = struct.unpack_from("<I", firmware.read_bytes(), 24)
        self.uc.reg_write(arm.UC_ARM_REG_PC, entry)

    def more_devices(self) -> list[Device]:
        return []

    # -- memory ------------------------------------------------------------------------------------------------------

    def maintain(self, address: int, *, clean: bool, forget: bool) -> None:
        """A line of the data cache is written to memory, forgotten, or both."""

    def map_memories(self) -> None:
        """As clocks and power are now."""
        enabled = self.rcc.values[Rcc.MEMENR]
        for n, (base, size) in RAM.items():
            bit = n + 6 if n < 3 else n - 3
            here = bool(enabled >> bit & 1) and self.ramcfg.powered(n)
            if here and n not in self._mapped:
                self.uc.mem_map(base, size)
                self.uc.mem_write(base, self._random.randbytes(size))
                self._mapped.add(n)
            elif not here and n in self._mapped:
                self.uc.mem_unmap(base, size)
                self._mapped.remove(n)
        if self._mapped:
            self.protect_memories()

    def protect_memories(self) -> None:
        if not hasattr(self, "core"):
            return
        for n in self._mapped:
            base, size = RAM[n]
            start, current = base, None
            for at in (*range(base, base + size, PAGE), base + size):
                now = self.core.allowed(at, at + PAGE) if at < base + size else None
                if now != current:
                    if current is not None:
                        self.uc.mem_protect(start, at - start, current)
                    start, current = at, now

    # -- what Unicorn calls ------------------------------------------------------------------------------------------

    def _device(self, address: int) -> Device:
        for device in self._devices:
            if device.base <= address < device.base + device.size:
                return device
        raise ModelError(f"register 0x{address:08x} is not in this model")

    def _repeated(self, address: int, *, loads: bool) -> int | None:
        """The value of an access that was made already, before the core stopped in it."""
        here = (self.exception, (address, loads))
        return self._again.pop()[2] if self._again and self._again[-1][:2] == here else None

    def _accessed(self, address: int, value: int, *, loads: bool) -> None:
        self._last = (self.exception, (address, loads), value)
        if self._due():
            self.uc.emu_stop()

    def _target(self) -> tuple[int | None, bool]:
        """The address that the load or store of a word or byte at PC goes to, None for others; whether it loads."""
        (first,) = struct.unpack("<H", self.uc.mem_read(self.uc.reg_read(arm.UC_ARM_REG_PC), 2))
        return self._address(), bool(first & (0x10 if first >= 0xE800 else 0x800))

    def _address(self) -> int | None:
        """[A, chapter C2]"""
        first, second = struct.unpack("<HH", self.uc.mem_read(self.uc.reg_read(arm.UC_ARM_REG_PC), 4))

        def register(number: int) -> int:
            return self.uc.reg_read(arm.UC_ARM_REG_R0 + number) if number < 13 else 0

        if first & 0xE000 == 0x6000:  # base and five bits
            return register(first >> 3 & 7) + (first >> 6 & 31) * (1 if first & 0x1000 else 4)
        if first & 0xF200 == 0x5000:  # base and register
            return register(first >> 3 & 7) + register(first >> 6 & 7) & 0xFFFFFFFF
        base = register(first & 15)
        if first & 0xFFA0 == 0xF880:  # base and twelve bits
            return base + (second & 0xFFF)
        if first & 0xFFA0 == 0xF800 and not second & 0x800:  # base and shifted register
            return base + (register(second & 15) << (second >> 4 & 3)) & 0xFFFFFFFF
        if first & 0xFFA0 == 0xF800:  # eight bits: before or after, up or down
            offset = second & 0xFF if second & 0x200 else -(second & 0xFF)
            return base + (offset if second & 0x400 else 0)
        return None

    def _read(self, _uc, offset: int, size: int, page: int) -> int:
        address = page + offset
        if (value := self._repeated(address, loads=True)) is not None:
            return value
        try:
            device = self._device(address)
            if size != (1 if address - device.base in device.byte_registers else 4):
                raise ModelError(f"a read of {size} bytes at 0x{address:08x}")
            value = device.read(address - device.base) if device.clocked() else 0
        except ModelError as e:
            self._error = e
            value = 0
        self._accessed(address, value, loads=True)
        return value

    def _write(self, _uc, offset: int, size: int, value: int, page: int) -> None:
        address = page + offset
        if self._repeated(address, loads=False) is not None:
            return
        try:
            device = self._device(address)
            if size != (1 if address - device.base in device.byte_registers else 4):
                raise ModelError(f"a write of {size} bytes at 0x{address:08x}")
            kept = self._tamper[address](value) if address in self._tamper else value
            if kept is not None and device.clocked():
                device.write(address - device.base, kept)
        except ModelError as e:
            self._error = e
        self._accessed(address, 0, loads=False)

    def _on_invalid(self, _uc, kind: int, address: int, size: int, _value: int, _data) -> bool:
        self._access = (kind, address, size)
        return False

    def _on_event(self, uc, number: int, _data) -> None:
        self._event = number
        uc.emu_stop()

    # -- exceptions --------------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        return bool(self.ended or self._error or self.usart.frame_sent) or self._next_interrupt() is not None

    def _next_interrupt(self) -> int | None:
        """All have one priority: none interrupts another, nor a fault's handler."""
        if self.exception:
            return None
        self._pass_time()
        self.usart.receive()
        levels = {USART1_IRQ: self.usart.interrupt, WATCHDOG_IRQ: self.watchdog.interrupt}
        pending = {n for n, level in levels.items() if level} | self.core.pended
        due = pending & self.core.enabled
        if not (due or self.core.tick_pending) or self.uc.reg_read(arm.UC_ARM_REG_PRIMASK) & 1:
            return None
        return SYSTICK if self.core.tick_pending else FIRST_INTERRUPT + min(due)

    def _pass_time(self) -> None:
        clock = time.perf_counter()
        passed, self._clock = min(clock - self._clock, 0.01), clock
        self.now += passed
        self.core.advance(passed, self.rcc.core)
        if self.watchdog.left <= 0:
            self.end("watchdog")

    def _enter(self, number: int, *, limit: bool = False) -> None:
        """Push a frame and go to the vector. limit: the stack overflowed already."""
        uc, core = self.uc, self.core
        self.exceptions.append(number)
        xpsr, sp = uc.reg_read(arm.UC_ARM_REG_XPSR), uc.reg_read(arm.UC_ARM_REG_SP)
        on_process_stack = not xpsr & 0x1FF and bool(uc.reg_read(arm.UC_ARM_REG_CONTROL) & 2)
        names = ("R0", "R1", "R2", "R3", "R12", "LR", "PC")
        words = [uc.reg_read(getattr(arm, f"UC_ARM_REG_{n}")) for n in names]
        frame = (sp & ~7) - 32
        saved_xpsr = xpsr & ~(1 << 9) | (1 << 9 if sp & 4 else 0)
        lowest = uc.reg_read(arm.UC_ARM_REG_PSP) if limit else 0
        try:
            uc.mem_write(max(frame, lowest - 32), struct.pack("<8I", *words, saved_xpsr))
        except UcError as e:
            raise LockedUp from e
        uc.reg_write(arm.UC_ARM_REG_SP, frame)
        uc.reg_write(arm.UC_ARM_REG_LR, HANDLER if xpsr & 0x1FF else PROCESS_STACK if on_process_stack else MAIN_STACK)
        uc.reg_write(arm.UC_ARM_REG_XPSR, 1 << 24 | number)
        self.exception = number
        (vector,) = struct.unpack("<I", uc.mem_read(core.values.get(Core.VTOR, RAM[2][0]) + 4 * number, 4))
        if not vector & 1:
            raise ModelError(f"exception {number} has no handler")
        uc.reg_write(arm.UC_ARM_REG_PC, vector & ~1)
        if number == SYSTICK:
            core.tick_pending = False
        core.pended.discard(number - FIRST_INTERRUPT)

    def _return(self) -> None:
        """From a handler: what was interrupted goes on."""
        uc = self.uc
        kind = uc.reg_read(arm.UC_ARM_REG_PC) | 1
        if kind not in (MAIN_STACK, PROCESS_STACK, HANDLER):
            raise ModelError(f"exception return by 0x{kind:08x}")
        name = arm.UC_ARM_REG_PSP if kind == PROCESS_STACK else arm.UC_ARM_REG_SP
        frame = uc.reg_read(name)
        *words, xpsr = struct.unpack("<8I", uc.mem_read(frame, 32))
        uc.reg_write(arm.UC_ARM_REG_XPSR, xpsr & ~(1 << 9))
        self.exception = xpsr & 0x1FF
        uc.reg_write(arm.UC_ARM_REG_SP, frame + 32 + (4 if xpsr & 1 << 9 else 0))
        names = ("R0", "R1", "R2", "R3", "R12", "LR", "PC")
        for name, word in zip(names, words, strict=True):
            uc.reg_write(getattr(arm, f"UC_ARM_REG_{name}"), word)

    def _fault(self, number: int, cause: int, *, address: int | None = None, limit: bool = False) -> None:
        values = self.core.values
        values[Core.CFSR] = values.get(Core.CFSR, 0) | cause
        if address is not None:
            values[Core.MMFAR if number == MEMORY else Core.BFAR] = address
        active = self.exception
        if 0 < active <= USAGE or self.uc.reg_read(arm.UC_ARM_REG_FAULTMASK) & 1:
            raise LockedUp
        if not values.get(Core.SHCSR, 0) >> 12 + number & 1 or self.uc.reg_read(arm.UC_ARM_REG_PRIMASK) & 1:
            values[Core.HFSR] = values.get(Core.HFSR, 0) | 1 << 30
            number = HARD
        self._enter(number, limit=limit)

    def _failed_access(self) -> None:
        kind, address, _ = self._access
        self._access = None
        fetch = kind in (ucc.UC_MEM_FETCH_UNMAPPED, ucc.UC_MEM_FETCH_PROT)
        write = kind in (ucc.UC_MEM_WRITE_UNMAPPED, ucc.UC_MEM_WRITE_PROT)
        needed = ucc.UC_PROT_EXEC if fetch else ucc.UC_PROT_WRITE if write else ucc.UC_PROT_READ
        if self.core.allowed(address, address + 1) & needed:
            self._fault(BUS, 1 << 8 if fetch else 1 << 9 | 1 << 15, address=None if fetch else address)
        elif fetch:
            self._fault(MEMORY, 1 << 0)
        else:
            self._fault(MEMORY, 1 << 1 | 1 << 7, address=address)

    # -- running -----------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """In development mode the boot ROM waits for a debugger after a reset: nothing goes on by itself."""
        self.ended = self.ended or why

    def run(self, until: Callable[[], bool], seconds: float) -> None:
        """Until the condition holds, the core ends, or so many seconds have passed."""
        end = time.monotonic() + seconds
        self._clock = time.perf_counter()
        while not self.ended and not until() and time.monotonic() < end:
            self._step()
            self.usart.frame_sent = False
            self._pass_time()

    def _step(self) -> None:
        self._event = self._access = self._last = None
        try:
            try:
                self.uc.emu_start(self.uc.reg_read(arm.UC_ARM_REG_PC) | 1, 0xFFFFFFF0, timeout=SLICE)
                if self._last and self._event is None and self._last[:2] == (self.exception, self._target()):
                    self._again.append(self._last)
            except UcError as e:
                if e.errno == ucc.UC_ERR_INSN_INVALID:
                    self._fault(USAGE, 1 << 16)
                elif self._access is None:
                    raise
                else:
                    self._failed_access()
            if self._error:
                raise self._error
            if self._event == 8:
                self._return()
            elif self._event == 7:
                self.core.values[Core.HFSR] = self.core.values.get(Core.HFSR, 0) | 1 << 31
                self._enter(HARD)
            elif self._event in (18, 19):
                self._fault(USAGE, 1 << (17 if self._event == 18 else 20), limit=self._event == 19)
            elif self._event is not None:
                raise ModelError(f"Unicorn's exception {self._event}")
            elif not self.ended and (number := self._next_interrupt()) is not None:
                self._enter(number)
        except LockedUp:
            self.end("lock-up")


class ModelLine(SerialLine):
    """The serial line of a machine, which runs while the host waits for something, but at most patience seconds."""

    def __init__(
        self, firmware: Path, *, patience: float = 600.0, machine: Callable[..., Machine] = Machine, **options
    ):
        super().__init__(firmware)
        self._patience = patience
        self.machine = machine(firmware, **options)
        self.machine.run(self._waits_for_host, 30)

    def _waits_for_host(self) -> bool:
        return self.machine.watchdog.feeds > 50

    def write(self, data: bytes) -> None:
        self.machine.usart.to_board.extend(data)

    def receive(self, timeout: float) -> bytes:
        sent = self.machine.usart.to_host
        self.machine.run(lambda: bool(sent), min(timeout, self._patience))
        data = bytes(sent)
        sent.clear()
        return data

    def close(self) -> None:
        pass
