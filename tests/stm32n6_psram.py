"""The PSRAM of an STM32N6570-DK for its firmware: XSPI1, its pins and supply, and an APS256XXN behind it.

As stm32n6_model.py: as strict as the documentation, each rule with its source by the letters of docs/stm32n6.md.

- XSPI1 and its I/O manager have clocks and resets [D H Z]. What ran before may have left XSPI1 in the middle of
  something: it stays busy, and takes no configuration, until it is reset [I]. While it is busy nothing is written; a
  new prescaler keeps it busy for a while [H], a transfer until its last byte was taken from the buffer [D].
- The boot ROM leaves XSPIM with its ports exchanged; only a reset of XSPIM while XSPI1 and XSPI2 are off, or reset as
  well, puts XSPI1 on port 1 [W]. The clock XSPIPHYCOMP runs [W].
- The pins are PO0, PO2 to PO4 and PP0 to PP15, AF9, at their fastest; VDDIO2 has to be declared valid [Z H].
- The memory is right at 50 MHz at most: beyond, pins that are not in their 1.8 V mode may make errors [P].
- Mode registers keep what an earlier program set. They are written without latency and read after as many cycles as MR0
  says, less one, with the strobe, eight lines wide [Z B]. A read that no memory answers never completes.
- At 0x90000000 there is nothing before memory-mapped mode. Then reads and writes are right where commands, lines,
  edges, strobes and dummy cycles are those that the mode registers ask for (read latency by MR0, write latency by MR4,
  sixteen lines by MR8), where the size and kind of memory are right, a burst ends with its row of 2 KiB [Z B], and NCS
  is released every two microseconds [I]. Otherwise what is read is wrong and what is written is lost.
- The last kilobyte is not there: nobody may read the last line [Z: erratum ES0620 2.4.5].

fault: "address 20", "data 5": a line that is stuck at 0.
"""

from __future__ import annotations

from pathlib import Path

from stm32n6_model import Device, Machine

BASE, SIZE = 0x90000000, (32 << 20) - 1024
XSPI1_BIT, XSPI2_BIT, XSPIM_BIT = 5, 12, 13  # of AHB5
MISCENR, AHB4ENR, AHB5ENR, AHB5RSTR = 0x248, 0x25C, 0x260, 0x220
MHZ = 1_000_000
WRITE_LATENCY = {0: 3, 4: 4, 2: 5, 6: 6, 1: 7}  # cycles, by the code in MR4
COMMAND, EIGHT, SIXTEEN, STROBE = 0x3C04, 0xC << 24, 0xD << 24, 1 << 29


class Port(Device):
    """A port of pins."""

    def connected(self, pins: range | tuple[int, ...]) -> bool:
        """Whether all have AF9 at the fastest rate."""
        mode, speed = self.values.get(0x00, 0), self.values.get(0x08, 0)
        function = self.values.get(0x20, 0) | self.values.get(0x24, 0) << 32
        return all((mode >> 2 * pin & 3, speed >> 2 * pin & 3, function >> 4 * pin & 15) == (2, 3, 9) for pin in pins)


class Psram:
    """An APS256XXN as it sees commands."""

    def __init__(self, registers: dict[int, int] | None = None):
        self.registers = {0: 0x09, 1: 0x8D, 2: 0xD7, 4: 0x40, 8: 0x01} | (registers or {})

    @property
    def read_latency(self) -> int:
        return (self.registers[0] >> 2 & 7) + 3

    @property
    def write_latency(self) -> int:
        return WRITE_LATENCY.get(self.registers[4] >> 5, 0)

    @property
    def lines(self) -> int:
        return SIXTEEN if self.registers[8] & 0x40 else EIGHT

    def write_register(self, form: tuple[int, int, int], address: int, data: bytes) -> None:
        """form: CCR, dummy cycles and instruction."""
        if form == (COMMAND | EIGHT, 0, 0xC0) and len(data) == 2 and address in (0, 4, 8):
            self.registers[address] = data[0]

    def read_register(self, form: tuple[int, int, int], address: int) -> bytes | None:
        layout, dummy, instruction = form
        if instruction != 0x40 or layout != COMMAND | EIGHT | STROBE:
            return None
        late = dummy != self.read_latency - 1
        return bytes(self.registers.get(address + i, 0) ^ (0xFF if late else 0) for i in range(2))


class Xspi(Device):
    CR, DCR1, DCR2, DCR3, DCR4, SR, FCR, DLR, AR, DR = 0x00, 0x08, 0x0C, 0x10, 0x14, 0x20, 0x24, 0x40, 0x48, 0x50
    CCR, TCR, IR, WCCR, WTCR, WIR = 0x100, 0x108, 0x110, 0x180, 0x188, 0x190
    CALIBRATION_READS = 5  # of SR

    def __init__(self, machine: DkMachine):
        super().__init__(0x58025000, 0x400, machine.xspi_awake, {self.CR: 3 << 28 | 1})
        self.byte_registers = frozenset({self.DR})
        self._machine = machine
        self._busy = float("inf")
        self._complete = False
        self._fifo: list[int] = []

    def reset(self) -> None:
        self.values, self._busy, self._complete, self._fifo = {}, 0, False, []

    def form(self, layout: int = CCR) -> tuple[int, int, int]:
        dummy, instruction = self.values.get(layout + 8, 0) & 31, self.values.get(layout + 16, 0)
        return self.values.get(layout, 0), dummy, instruction

    @property
    def mode(self) -> int | None:
        control = self.values.get(self.CR, 0)
        return control >> 28 & 3 if control & 1 else None

    @property
    def hertz(self) -> float:
        kernel = self._machine.rcc.values.get(0x158, 0) & 3
        return (0 if kernel else self._machine.rcc.clocks.rate("ahb")) / ((self.values.get(self.DCR2, 0) & 255) + 1)

    @property
    def suits(self) -> bool:
        """Whether it knows the memory's kind, size and rows, and keeps to its rates."""
        first, rows, selected = (self.values.get(at, 0) for at in (self.DCR1, self.DCR3, self.DCR4))
        return (
            first >> 24 & 7 == 6
            and first >> 16 & 31 == 24
            and rows >> 16 & 31 == 11
            and 0 < self.hertz <= 50 * MHZ
            and 0 < selected <= 2e-6 * self.hertz
        )

    def read(self, offset):
        if offset == self.SR:
            busy = self._busy > 0 or bool(self._fifo)
            self._busy -= 1 if 0 < self._busy < float("inf") else 0
            return busy << 5 | bool(self._fifo) << 2 | self._complete << 1
        if offset == self.DR:
            value = self._fifo.pop(0) if self._fifo else 0
            self._complete = self._complete or not self._fifo
            return value
        return super().read(offset)

    def write(self, offset, value):
        if offset == self.FCR:
            self._complete = self._complete and not value & 2
            return
        if offset == self.CR and value & 2 and self._busy < float("inf"):
            self._busy = 0  # abort
            value &= ~2
        if (self._busy or self._fifo) and offset != self.DR:
            return
        if offset != self.DR:
            super().write(offset, value)
        if offset == self.DCR2:
            self._busy = self.CALIBRATION_READS
        elif offset == self.AR and self.mode == 1:
            self._receive()
        elif offset == self.DR and self.mode == 0:
            self._send(value)
        self._machine.map_psram()

    def _receive(self) -> None:
        memory = self._machine.psram
        data = memory.read_register(self.form(), self.values[self.AR]) if self._machine.wired(8) else None
        if data is None:
            self._busy = 1 << 40  # until it is aborted
        else:
            fast = self.hertz > 50 * MHZ
            self._fifo = [byte ^ 0x10 * fast for byte in data]

    def _send(self, value: int) -> None:
        self._fifo.append(value)
        if len(self._fifo) == self.values.get(self.DLR, 0) + 1:
            data, self._fifo, self._complete = bytes(self._fifo), [], True
            if self._machine.wired(8) and self.hertz <= 50 * MHZ:
                self._machine.psram.write_register(self.form(), self.values.get(self.AR, 0), data)


class DkMachine(Machine):
    """registers: mode registers that an earlier program set; None: as after power came. psram: whether there is one."""

    def __init__(
        self,
        firmware: Path,
        *,
        psram: bool = True,
        registers: dict[int, int] | None = None,
        fault: str = "",
        **options,
    ):
        self._there, self._fault = psram, fault
        self.psram = Psram(registers)
        self.mapped_as = "nothing"
        self._cells: dict[int, int] = {}  # of a memory with a fault
        self._exchanged = True  # ports of XSPIM
        super().__init__(firmware, **options)

    def more_devices(self) -> list[Device]:
        ports = [Port(at, 0x400, self.rcc.bit(AHB4ENR, bit)) for at, bit in ((0x56023800, 14), (0x56023C00, 15))]
        self._port_o, self._port_p = ports
        self._power = Device(0x56024800, 0x400, self.rcc.bit(AHB4ENR, 18))
        self.xspi = Xspi(self)
        return [*super().more_devices(), *ports, self._power, self.xspi]

    def xspi_awake(self) -> bool:
        enabled, reset = (self.rcc.values.get(at, 0) for at in (AHB5ENR, AHB5RSTR))
        return bool(enabled >> XSPI1_BIT & 1) and not reset >> XSPI1_BIT & 1

    def wired(self, lines: int) -> bool:
        """Whether the memory is reached over so many data lines."""
        strobes = (2,) if lines == 8 else (2, 3)
        managed = self.rcc.values.get(AHB5ENR, 0) >> XSPIM_BIT & 1 and not self._exchanged
        managed = managed and self.rcc.values.get(MISCENR, 0) >> 3 & 1
        supplied = self._power.values.get(0x3C, 0) >> 8 & 1
        pins = self._port_o.connected((0, 4, *strobes)) and self._port_p.connected(range(lines))
        return bool(self._there and managed and supplied and pins)

    # -- memory ------------------------------------------------------------------------------------------------------

    def map_memories(self) -> None:
        super().map_memories()
        reset = self.rcc.values.get(AHB5RSTR, 0)
        if reset >> XSPI1_BIT & 1:
            self.xspi.reset()
        if reset >> XSPIM_BIT & 1 and reset >> XSPI1_BIT & 1 and reset >> XSPI2_BIT & 1:
            self._exchanged = False
        self.map_psram()

    def _right(self) -> bool:
        memory, lines = self.psram, self.psram.lines
        reads = (COMMAND | lines | STROBE, memory.read_latency - 1, 0x20)
        writes = (COMMAND | lines | STROBE, memory.write_latency - 1, 0xA0)
        wired = self.wired(16 if lines == SIXTEEN else 8)
        there = self.xspi.form(), self.xspi.form(Xspi.WCCR)
        return wired and lines == SIXTEEN and there == (reads, writes) and self.xspi.suits

    def map_psram(self) -> None:
        """As XSPI1 is now."""
        mapped = self.xspi.mode == 3 and self.xspi_awake() and self.xspi._busy == 0
        now = "nothing" if not mapped else "memory" if self._right() and not self._fault else "something"
        if now == self.mapped_as:
            return
        if self.mapped_as != "nothing":
            self.uc.mem_unmap(BASE, SIZE)
        if now == "memory":
            self.uc.mem_map(BASE, SIZE)
            for at in range(0, SIZE, 1024 * 1024):
                self.uc.mem_write(BASE + at, self._random.randbytes(min(1 << 20, SIZE - at)))
            self.protect_memories()
        elif now == "something":
            self.uc.mmio_map(BASE, SIZE, self._wrong_read, None, self._wrong_write, None)
        self.mapped_as = now

    def protect_memories(self) -> None:
        super().protect_memories()
        if self.mapped_as == "memory":
            self.uc.mem_protect(BASE, SIZE, self.core.allowed(BASE, BASE + SIZE))

    def _cell(self, offset: int) -> int:
        return offset & ~(1 << int(self._fault.split()[1])) if self._fault.startswith("address") else offset

    def _wrong_read(self, _uc, offset: int, size: int, _data) -> int:
        if not self._fault:
            return self._random.getrandbits(8 * size)
        return sum(self._cells.get(self._cell(offset + i), 0) << 8 * i for i in range(size))

    def _wrong_write(self, _uc, offset: int, size: int, value: int, _data) -> None:
        for i in range(size if self._fault else 0):
            byte = value >> 8 * i & 0xFF
            self._cells[self._cell(offset + i)] = byte & ~(1 << 5) if self._fault == "data 5" else byte
