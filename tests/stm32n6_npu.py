"""An STM32N657 with an NPU, as far as firmware has to do with it: clock, reset, access rights, caches, memory.

As stm32n6_model.py: as strict as the documentation, each rule with its source by the letters of docs/stm32n6.md.

- The NPU and its cache have clocks and resets [D H U]: without clock, or held in reset, registers read zero and ignore
  writes [R]. What ran before may have left the NPU in any state: it does nothing until it was reset. [I]
- As a master the NPU reaches memory as secure, privileged, compartment 1, or not at all [H U].
- The NPU sees memory, not what lies in the CPU's data cache: a line reaches memory when it is cleaned, and what the NPU
  wrote reaches the CPU when the line is invalidated [A]; until then the CPU finds poison here. A real cache may write
  lines back by itself, this one never does.
- A pool that the NPU caches is read through CACHEAXI: what is in it stays until it is invalidated. CACHEAXI is busy for
  a while after its reset, cannot be enabled before, wants its memory's clock [H V], and ends no command
  while it is off [I].

The network itself is TFLite's, of weights that are gathered from memory by the places that the writer of the test's
build made. How LL_ATON talks to the NPU is not modelled: tests/ll_aton_firmware/runtime.c does by five registers here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from npu_builds import NpuBuild
from stm32n6_model import Device, Machine, ModelError, Rcc
from stm32n6_psram import BASE, SIZE, DkMachine

from converters.device_image import DeviceImage
from converters.tflite_model import io_spec, read_graph, trainable_segments, write_weights
from pipeline.oracles import TfliteInterpreter

MEMORY, MEMORY_BYTES = 0x34100000, 0x2C0000  # AXISRAM2 to 6
INPUT, OUTPUT = 0x34350010, 0x34360020  # where no line begins
LINE, NPU_LINE = 32, 64
NPU_BIT, CACHE_BIT = 31, 30  # of AHB5


class Npu(Device):
    """Where the input and output are, their sizes, and a register that runs the network."""

    RUN = 16

    def __init__(self, machine: NpuMachine):
        super().__init__(0x580E0000, 0x1000, machine.awake(NPU_BIT))
        self._machine = machine

    def read(self, offset):
        return 0 if offset == self.RUN else super().read(offset)  # it takes no time

    def write(self, offset, value):
        if offset != self.RUN:
            raise ModelError(f"write to register {offset} of the NPU")
        self._machine.infer()


class Rifsc(Device):
    """Access rights of masters, and of who may access peripherals [D H]."""

    SECCFGR3, PRIVCFGR3, NPU_ATTRIBUTES = 0x1C, 0x3C, 0xC14

    def __init__(self, rcc: Rcc):
        super().__init__(0x54024000, 0x1000, rcc.bit(Rcc.AHB3ENR, 9))

    @property
    def npu_reaches_memory(self) -> bool:
        return self.values.get(self.NPU_ATTRIBUTES, 0) & 0x370 == 0x310


class CacheAxi(Device):
    CR1, SR, FCR, CR2, FIRST, LAST = 0x00, 0x04, 0x0C, 0x100, 0x104, 0x108
    BUSY_READS = 5  # of SR, after a reset

    def __init__(self, machine: NpuMachine):
        super().__init__(0x580DFC00, 0x400, machine.awake(CACHE_BIT))
        self._machine = machine
        self._ended = 0
        self.reset()

    def reset(self) -> None:
        self.values = {}
        self.lines: dict[int, bytes] = {}
        self._busy = self.BUSY_READS

    @property
    def on(self) -> bool:
        return bool(self.clocked() and self.values.get(self.CR1, 0) & 1)

    def read(self, offset):
        if offset == self.SR:
            self._busy = max(0, self._busy - 1)
            return bool(self._busy) | self._ended
        return super().read(offset)

    def write(self, offset, value):
        if offset == self.FCR:
            self._ended &= ~value
        elif offset == self.CR1 and value & 1 and not self._machine.rcc.bit(Rcc.MEMENR, 10)():
            raise ModelError("CACHEAXI enabled without the clock of its memory")
        elif offset == self.CR1 and self._busy:
            raise ModelError("CACHEAXI written while it is busy")
        else:
            super().write(offset, value & ~2 if offset == self.CR1 else value & ~1 if offset == self.CR2 else value)
        if offset == self.CR1 and value & 2:
            self.lines.clear()
        if offset == self.CR2 and value & 1 and self.on:
            if value & 6 == 6:
                first, last = (self.values[at] // NPU_LINE * NPU_LINE for at in (self.FIRST, self.LAST))
                self.lines = {at: line for at, line in self.lines.items() if not first <= at <= last}
            self._ended |= 1 << 4

    def line(self, address: int, memory: bytes) -> bytes:
        """As the NPU reads it."""
        return self.lines.setdefault(address, memory)


class NpuMachine(Machine):
    """build: the network that the NPU executes, and tflite what it was made of."""

    def __init__(self, firmware: Path, *, build: NpuBuild, tflite: bytes, **options):
        self._places, self._tflite = build.places, tflite
        self._segments = trainable_segments(read_graph(tflite))
        self._io = io_spec(read_graph(tflite))
        npu = DeviceImage.read(build.image).npu
        assert npu is not None
        (self._pool,), self._blob = npu.section.pools, np.frombuffer(npu.blob, np.int8)
        self._interpreter: tuple[bytes, TfliteInterpreter] | None = None
        self._stuck = True
        self.inferences = 0
        self._memories: dict[int, bytearray] = {}  # as the NPU sees them, by their addresses
        super().__init__(firmware, **options)
        self._memories[MEMORY] = bytearray(self._random.randbytes(MEMORY_BYTES))

    def more_devices(self) -> list[Device]:
        self.npu, self.rifsc, self.cache = Npu(self), Rifsc(self.rcc), CacheAxi(self)
        sizes = int(np.prod(self._io.input_shape)), self._io.classes
        self.npu.values = {0: INPUT, 4: sizes[0], 8: OUTPUT, 12: sizes[1]}
        return [*super().more_devices(), self.npu, self.rifsc, self.cache]

    def awake(self, bit: int):
        enabled, held = self.rcc.bit(Rcc.AHB5ENR, bit), self.rcc.bit(Rcc.AHB5RSTR, bit)
        return lambda: enabled() and not held()

    def map_memories(self) -> None:
        """After every write to RCC."""
        super().map_memories()
        if hasattr(self, "cache"):
            if self.rcc.bit(Rcc.AHB5RSTR, NPU_BIT)():
                self._stuck = False
            if self.rcc.bit(Rcc.AHB5RSTR, CACHE_BIT)():
                self.cache.reset()

    # -- caches ------------------------------------------------------------------------------------------------------

    def _base(self, address: int) -> int | None:
        """Where the memory begins that has an address."""
        found = (base for base, memory in self._memories.items() if base <= address < base + len(memory))
        return next(found, None)

    def maintain(self, address, *, clean, forget):
        line = address // LINE * LINE
        base = self._base(line)
        if base is None:
            return
        memory, at = self._memories[base], slice(line - base, line - base + LINE)
        if clean:
            memory[at] = self.uc.mem_read(line, LINE)
        if forget:
            self.uc.mem_write(line, bytes(memory[at]))

    def _read_memory(self, address: int, size: int, *, cached: bool = False) -> np.ndarray:
        base = self._base(address)
        if base is None:
            raise ModelError(f"the NPU reads 0x{address:08x}, where no memory is")
        memory, first, end = self._memories[base], address - base, address - base + size
        if not (cached and self.cache.on):
            return np.frombuffer(bytes(memory[first:end]), np.int8)
        start = first // NPU_LINE * NPU_LINE
        lines = (self.cache.line(base + at, bytes(memory[at : at + NPU_LINE])) for at in range(start, end, NPU_LINE))
        return np.frombuffer(b"".join(lines)[first - start :][:size], np.int8)

    def _write_memory(self, address: int, data: bytes) -> None:
        self._memories[MEMORY][address - MEMORY : address - MEMORY + len(data)] = data
        self.uc.mem_write(address, bytes(~b & 0xFF for b in data))

    # -- the network -------------------------------------------------------------------------------------------------

    def infer(self) -> None:
        if self._stuck or not self.rifsc.npu_reaches_memory:
            return
        pool = self._read_memory(self._pool.address, len(self._blob), cached=self._pool.cacheable)
        others = np.ones(len(pool), bool)
        others[self._places] = False
        if (pool != self._blob)[others].any():
            (changed,) = np.nonzero((pool != self._blob) & others)
            raise ModelError(f"byte {changed[0]} of the pool holds no weight and is not as compiled")
        tflite = write_weights(self._tflite, self._segments, pool[self._places])
        if self._interpreter is None or self._interpreter[0] != tflite:
            self._interpreter = tflite, TfliteInterpreter(tflite)
        shape = self._io.input_shape
        x = self._read_memory(INPUT, int(np.prod(shape))).reshape(shape)
        self._write_memory(OUTPUT, self._interpreter[1].run(x).astype(np.int8).tobytes())
        self.inferences += 1


class NpuDkMachine(NpuMachine, DkMachine):
    """An STM32N6570-DK: the NPU reaches its PSRAM, too, while that is mapped and right."""

    def map_psram(self) -> None:
        super().map_psram()
        if self.mapped_as != "memory":
            self._memories.pop(BASE, None)
        elif BASE not in self._memories:
            self._memories[BASE] = bytearray((self._random.randbytes(1 << 20) * 32)[:SIZE])
