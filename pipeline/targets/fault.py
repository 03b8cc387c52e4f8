"""What a Cortex-M board says when it ends by a fault, in words: what happened, where, and the registers.

Registers: Arm v8-M Architecture Reference Manual (DDI 0553), CFSR and HFSR. The firmware prints them
(boards/cortex_m/fault.c); where it could not, because the core locked up, QEMU does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

EXCEPTIONS = {
    3: "HardFault", 4: "MemManage fault", 5: "BusFault", 6: "UsageFault", 7: "SecureFault",
}  # fmt: skip
CAUSES = {  # bits of CFSR
    0: "code fetched from memory that is not executable",
    1: "access to memory that the MPU protects",
    3: "memory protection while returning from an exception",
    4: "memory protection while taking an exception",
    5: "memory protection while saving floating-point registers",
    8: "code fetched from memory that is not there",
    9: "access to memory that is not there",
    10: "access to memory that is not there",
    11: "bus error while returning from an exception",
    12: "bus error while taking an exception",
    13: "bus error while saving floating-point registers",
    16: "undefined instruction",
    17: "branch to an address that is no Thumb code",
    18: "invalid return from an exception",
    19: "FPU or Helium is not enabled",
    20: "stack overflow",
    24: "unaligned access",
    25: "division by zero",
}
HARD_CAUSES = {  # bits of HFSR, for a HardFault without one of CFSR
    1: "the vector table cannot be read",
    30: "a fault that could not be taken as what it was",
    31: "a breakpoint without a debugger",
}
WATCHDOGS = (2, 34)  # the NMI; the STM32N6's interrupt 18
NPU = 69  # the STM32N6's interrupt 53
REPORT_START, REPORT_END = b"\n@FAULT exception=", b"@END\n"
MMFAR_VALID, BFAR_VALID, STACK_OVERFLOW = 1 << 7, 1 << 15, 1 << 20
REGISTERS = (*(f"r{i}" for i in range(13)), "sp", "lr", "pc", "xpsr", "cfsr", "hfsr", "mmfar", "bfar")


@dataclass(frozen=True)
class Fault:
    """exception: its number, None for a core that locked up. registers by lower-case name; callers: return addresses
    that were found on the stack, innermost first."""

    exception: int | None
    registers: dict[str, int]
    callers: tuple[int, ...]

    @classmethod
    def parse(cls, printed: str) -> Fault | None:
        """From what the board and its emulator printed; None when that is no fault."""
        if report := re.search(r"@FAULT((?: \w+=[0-9a-f]{8})+)\s+@CALLERS((?: at=[0-9a-f]{8})*)", printed):
            registers = {name: int(value, 16) for name, value in re.findall(r"(\w+)=([0-9a-f]{8})", report[1])}
            return cls(registers.pop("exception"), registers, tuple(int(a, 16) for a in report[2].split(" at=")[1:]))
        if "Lockup" in printed:
            numbered = {int(n): int(value, 16) for n, value in re.findall(r"\bR(\d\d)=([0-9a-f]{8})", printed)}
            names = {**{i: f"r{i}" for i in range(13)}, 13: "sp", 14: "lr", 15: "pc"}
            registers = {names[n]: value for n, value in numbered.items()}
            if xpsr := re.search(r"\bXPSR=([0-9a-f]{8})", printed):
                registers["xpsr"] = int(xpsr[1], 16)
            return cls(None, registers, ())
        return None

    @property
    def what(self) -> str:
        """ "stack overflow (UsageFault)"."""
        if self.exception is None:
            return "the core locked up (a fault where none could be taken)"
        if self.exception in WATCHDOGS:
            return "the watchdog ran out (a command made no progress)"
        if self.exception == NPU:
            return "the NPU reported an error (of a bus access or of one of its units)"
        name = EXCEPTIONS.get(self.exception, f"exception {self.exception}")
        cfsr = self.registers["cfsr"]
        hfsr = self.registers.get("hfsr", 0)
        causes = dict.fromkeys(words for bit, words in CAUSES.items() if cfsr >> bit & 1)
        causes = causes or dict.fromkeys(words for bit, words in HARD_CAUSES.items() if hfsr >> bit & 1)
        address = ""
        if cfsr & MMFAR_VALID:
            address = f" at address 0x{self.registers['mmfar']:08x}"
        elif cfsr & BFAR_VALID:
            address = f" at address 0x{self.registers['bfar']:08x}"
        return f"{' and '.join(causes) or 'no cause given'}{address} ({name})"

    def describe(self, firmware: Path) -> str:
        """Two sentences and a table of registers; places as function and line, from the firmware's ELF file."""
        pc = self.registers.get("pc", 0)
        # A return address has bit 0 set and is that of the next instruction; the call, of two or four, stands before.
        places = _places(firmware, [pc, *(a - 3 for a in self.callers)])
        callers = list(dict.fromkeys(p for p in places[1:] if p))
        where = places[0] or f"0x{pc:08x}"
        if "pc" not in self.registers:  # no room on the stack for the core to save it
            where = f"or below {callers.pop(0)}" if callers else "an unknown place"
        called = f" On the stack: {', '.join(callers)}." if callers else ""
        values = [f"{name:>5} {self.registers[name]:08x}" for name in REGISTERS if name in self.registers]
        table = "\n".join("  ".join(values[i : i + 7]) for i in range(0, len(values), 7))
        return f"{self.what} in {where}.{called}\n{table}\n"


def _places(firmware: Path, addresses: list[int]) -> list[str]:
    """'function (file.c:12)' of each address, "" where the firmware has no line for it."""
    tool = shutil.which("arm-none-eabi-addr2line")
    if tool is None or not firmware.exists():
        return [""] * len(addresses)
    command = [tool, "-e", str(firmware), "-a", "-f", "-i", *(hex(a) for a in addresses)]
    words = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [_place(block.splitlines()[1:]) for block in re.split(r"^(?=0x)", words, flags=re.MULTILINE)[1:]]


def _place(lines: list[str]) -> str:
    """lines: function and file:line in turn, of the place itself and of what it is inlined into."""
    functions, file = lines[0::2], lines[1].partition(" (")[0]
    if file.startswith("?"):
        return ""
    path, _, number = file.rpartition(":")
    with suppress(ValueError):
        path = str(Path(path).resolve().relative_to(ROOT))
    inlined = f", inlined into {functions[-1]}" if len(functions) > 1 else ""
    return f"{functions[0]} ({path}:{number}{inlined})"
