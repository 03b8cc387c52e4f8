"""The most stack that a firmware can take, from its call graph: no measurement, no run.

GCC writes who calls whom, with the frame of each function (-fcallgraph-info=su, .ci files). What it did not compile
(newlib, libgcc) or cannot see (assembler) is read off the instructions in the ELF file, for every function: its frame
is the larger of both, its callees are those of both. A call through a pointer may reach every function of the ELF file
that has the type of an object with the pointer's name. Recursion, frames of variable size and calls that cannot be
resolved are errors: then there is no bound.
"""

from __future__ import annotations

import bisect
import itertools
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from converters.errors import UserError
from pipeline.elf import Elf

HEAP = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("malloc", "calloc", "realloc", "free", "memalign", "sbrk")
    for prefix, suffix in (("", ""), ("_", "_r"), ("_", ""), ("__", ""))
)


@dataclass(frozen=True)
class Depth:
    """Bytes of stack that a function takes with all that it calls, and the calls that lead there: name and frame."""

    size: int
    path: tuple[tuple[str, int], ...]


@dataclass
class _Function:
    name: str
    frame: int = 0
    calls: set[int] = field(default_factory=set)  # addresses
    why_unbounded: str | None = None


def check_no_heap(elf: Elf) -> None:
    """Raises UserError when something of a heap is linked."""
    if found := sorted(HEAP & {s.name for s in elf.symbols}):
        raise UserError(f"{elf.path} has a heap ({', '.join(found)}): firmware takes all its memory when it is built.")


class CallGraph:
    """Every function of an ELF file, and what it calls."""

    def __init__(self, elf: Elf, call_graphs: Iterable[Path]) -> None:
        """call_graphs: .ci files; those of sources that are not in the ELF file (any more) are left out. Raises
        UserError when objdump is missing."""
        self._elf = elf
        self._functions: dict[int, _Function] = {}
        self._jumps_by_register: set[int] = set()
        self._read_instructions()
        self._resolved: set[int] = set()  # functions whose calls through pointers are known
        linked = set(elf.sources.values())
        for path in call_graphs:
            text = path.read_text()
            if (title := _GRAPH.match(text)) and title[1] in linked:
                self._read_call_graph(text)
        for address in self._jumps_by_register - self._resolved:
            self._functions[address].why_unbounded = "calls through a pointer that is in no call graph"
        self._depths: dict[int, Depth] = {}

    def depth(self, address: int) -> Depth:
        """Of the function there. Raises UserError where there is no bound."""
        return self._depth(address, ())

    def callee(self, address: int, name: str) -> int:
        """The address of the function of this name that the function at an address calls."""
        for callee in self._functions[address].calls:
            if self._functions[callee].name == name:
                return callee
        raise UserError(f"{self._elf.path}: {self._functions[address].name} does not call {name}.")

    def _depth(self, address: int, callers: tuple[int, ...]) -> Depth:
        if address in callers:
            cycle = (*callers[callers.index(address) :], address)
            names = " > ".join(self._functions[a].name for a in cycle)
            raise UserError(f"{self._elf.path} recurses ({names}): its stack has no bound.")
        if address not in self._depths:
            function = self._functions[address]
            if function.why_unbounded:
                raise UserError(
                    f"{self._elf.path}: {function.name} {function.why_unbounded}: the stack that it takes has no bound."
                )
            below = [self._depth(a, (*callers, address)) for a in sorted(function.calls)]
            deepest = max(below, key=lambda d: d.size, default=Depth(0, ()))
            step = ((function.name, function.frame),)
            self._depths[address] = Depth(function.frame + deepest.size, step + deepest.path)
        return self._depths[address]

    # -- instructions ------------------------------------------------------------------------------------------------

    def _read_instructions(self) -> None:
        objdump = shutil.which("arm-none-eabi-objdump")
        if objdump is None:
            raise UserError("arm-none-eabi-objdump is missing, it reads firmware: apt-get install gcc-arm-none-eabi.")
        command = [objdump, "-d", "--no-show-raw-insn", str(self._elf.path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        current, jumps = 0, []
        for line in text.splitlines():
            if heading := _HEADING.match(line):
                current = int(heading[1], 16)
                self._functions[current] = _Function(heading[2])
            elif instruction := _INSTRUCTION.match(line):
                jumps.append((current, *self._read_instruction(current, *instruction.groups())))
        starts = sorted(self._functions)
        for caller, is_call, target in jumps:
            if target is not None:
                callee = starts[bisect.bisect(starts, target) - 1]
                if callee != caller or is_call:  # a jump inside a function is none
                    self._functions[caller].calls.add(callee)

    def _read_instruction(self, at: int, mnemonic: str, operands: str) -> tuple[bool, int | None]:
        """Adds to the frame. Returns where a jump or call goes, and whether it is a call."""
        function = self._functions[at]
        function.frame += _pushed(mnemonic, operands)
        if _MOVES_STACK.match(f"{mnemonic} {operands}"):
            function.why_unbounded = "has a frame of variable size"
        if re.match(r"bl?x(ns)?$", mnemonic) and operands != "lr" and not operands.startswith("<"):
            self._jumps_by_register.add(at)
        target = _TARGET.search(operands) if _JUMP.match(mnemonic) else None
        return mnemonic in ("bl", "blx"), int(target[1], 16) if target else None

    # -- GCC's call graph --------------------------------------------------------------------------------------------

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for s in self._elf.symbols:
            if s.address in self._functions:
                found.setdefault(s.name, []).append(s.address)
        return found

    def _address(self, title: str) -> int | None:
        """Of "name", or of "source:name" where it is static; None for what was inlined or not linked."""
        source, _, name = title.rpartition(":")
        found = self._by_name.get(name, ())
        if source:
            found = [a for a in found if self._elf.sources.get(a) == source]
        return found[0] if found else None

    def _read_call_graph(self, text: str) -> None:
        for line in text.splitlines():
            if node := _NODE.match(line):
                address = self._address(node[1])
                if address is not None:
                    function = self._functions[address]
                    function.frame = max(function.frame, int(node[2]))
                    function.why_unbounded = None if node[3] == "static" else "has a frame of variable size"
            elif edge := _EDGE.match(line):
                caller = self._address(edge[1])
                if caller is None:
                    continue
                if edge[2] == "__indirect_call":
                    self._functions[caller].calls |= self._pointed_to(edge[3])
                    self._resolved.add(caller)
                elif (callee := self._address(edge[2])) is not None:
                    self._functions[caller].calls.add(callee)

    def _pointed_to(self, place: str) -> set[int]:
        """What a call through a pointer in this place, FILE:LINE:COLUMN, may reach. A pointer to a type that no
        function has can only be null."""
        source, line, _ = place.rsplit(":", 2)
        words = Path(source).read_text().splitlines()[int(line) - 1]
        names = [name for name in re.findall(r"\b(\w+)\(", words) if name in self._elf.pointers]
        if not names:
            raise UserError(f"{source}, line {line}, calls a function through something that has no name of its own.")
        signatures = set().union(*(self._elf.pointers[name] for name in names))
        return {a for a, s in self._elf.signatures.items() if s in signatures and a in self._functions}


_HEADING = re.compile(r"([0-9a-f]+) <(.+)>:$")
_INSTRUCTION = re.compile(r" *[0-9a-f]+:\t(\S+)\t?([^@]*)")
# objdump 2.40 takes some Helium instructions for branches to come (BFCSEL): these alone are jumps.
_JUMP = re.compile(r"(b|bl|b(eq|ne|cs|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le)|cbn?z)(\.[nw])?$")
_TARGET = re.compile(r"\b([0-9a-f]+) <")
_GRAPH = re.compile(r'graph: \{ title: "([^"]*)"')
_NODE = re.compile(r'node: \{ title: "([^"]*)" label: "[^"]*\\n(\d+) bytes \(([^)]*)\)')
_EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"(?: label: "([^"]*)")?')
# Anything but push, pop and constants: mov sp, r7; sub sp, r3.
_MOVES_STACK = re.compile(r"(mov|add|sub|and|bic)\S* sp, (?!#)(?!sp, #)")
_LIST = re.compile(r"\{(.*)\}")


def _pushed(mnemonic: str, operands: str) -> int:
    """Bytes by which an instruction lowers the stack pointer."""
    operands = operands.strip()
    registers = _LIST.search(operands)
    if registers and (mnemonic.startswith(("push", "vpush")) or re.match(r"v?stmdb\S* sp!", f"{mnemonic} {operands}")):
        return sum(_registers(registers[1]))
    if stored := re.search(r"\[sp, #-(\d+)\]!", operands):
        return int(stored[1])
    if taken := re.match(r"sub\S* sp, (?:sp, )?#(\d+)$", f"{mnemonic} {operands}"):
        return int(taken[1])
    return 0


def _registers(names: str) -> Iterator[int]:
    """Bytes of each item of a list of registers: "r4, r5, lr", "d8-d15"."""
    for item in names.split(", "):
        first, _, last = item.partition("-")
        count = int(last[1:]) - int(first[1:]) + 1 if last else 1
        yield count * {"d": 8, "q": 16}.get(first[0], 4)


# -- A Cortex-M's stacks (boards/cortex_m/startup.c) -----------------------------------------------------------------

# What the core pushes for an exception: 8 words, s0 to s15, FPSCR, VPR, and a word that aligns them.
EXCEPTION_FRAME = 108
MAIN, START = "run", "prepare"  # what reset calls: on the process stack; before that, on the handlers'


@dataclass(frozen=True)
class Stack:
    """A stack: bytes that it has, bytes that it may need, and how these come about."""

    name: str
    size: int
    worst: int
    why: str


def cortex_m_stacks(elf: Elf, graph: CallGraph) -> tuple[Stack, ...]:
    """The process stack and the handlers'.

    On the process stack one exception finds its frame, since handlers have a stack of their own. There an interrupt or
    a fault may be interrupted by a HardFault, and that by the NMI: no board sets priorities, so nothing else nests.
    Before main, the start-up code stands in the place of the thread. Raises UserError where there is no bound.
    """
    vectors = struct.unpack(f"<{len(elf.bytes['.vectors']) // 4}I", elf.bytes[".vectors"])

    def worst(entries: Iterable[int]) -> Depth:
        handlers = {vectors[i] & ~1 for i in entries if i < len(vectors) and vectors[i]}
        return max((graph.depth(a) for a in handlers), key=lambda d: d.size)

    reset = vectors[1] & ~1
    thread, start = (graph.depth(graph.callee(reset, name)) for name in (MAIN, START))
    handlers = worst(range(4, len(vectors))), worst([3]), worst([2])  # HardFault, NMI
    exceptions = [Depth(EXCEPTION_FRAME + d.size, (("exception frame", EXCEPTION_FRAME), *d.path)) for d in handlers]
    on_process = [thread, Depth(EXCEPTION_FRAME, (("exception frame", EXCEPTION_FRAME),))]
    return (
        _stack(elf, "process_stack", on_process),
        _stack(elf, "handler_stack", [start, *exceptions]),
    )


def _stack(elf: Elf, name: str, one_after_the_other: list[Depth]) -> Stack:
    symbol = elf.symbol(name)
    if symbol is None:
        raise UserError(f"{elf.path} has no {name}: it was not linked with boards/cortex_m.")
    parts = []
    for depth, same in itertools.groupby(one_after_the_other):
        calls, times = " > ".join(f"{n} {size}" for n, size in depth.path), len(list(same))
        parts.append(f"{times} x ({calls})" if times > 1 else calls)
    return Stack(name, symbol.size, sum(d.size for d in one_after_the_other), ", then ".join(parts))


def check_stacks(stacks: Iterable[Stack]) -> None:
    """Raises UserError for a stack that may overflow."""
    for stack in stacks:
        if stack.worst > stack.size:
            raise UserError(
                f"{stack.name} has {stack.size:,} bytes and may need {stack.worst:,} ({stack.why}): make it larger, "
                "or the frames smaller."
            )
