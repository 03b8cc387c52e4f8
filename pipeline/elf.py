"""What a firmware's ELF file says: sections, symbols, and from its debug information types and functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.dwarf.die import DIE
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from converters.errors import UserError


@dataclass(frozen=True)
class Section:
    """Memory that the program takes. load: where the file has its contents; None: it has none (NOBITS)."""

    name: str
    address: int
    size: int
    load: int | None


@dataclass(frozen=True)
class Symbol:
    name: str
    address: int  # without the lowest bit of Thumb code
    size: int
    is_function: bool


@dataclass(frozen=True)
class Member:
    """Of a structure: bytes from its start, bytes that it takes."""

    name: str
    offset: int
    size: int


class Elf:
    """An ELF file with debug information, read whole. Raises UserError for anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                elf = ELFFile(file)
                self.sections = tuple(_sections(elf))
                self.symbols = tuple(_symbols(elf))
                self.bytes = {s.name: s.data() for s in elf.iter_sections() if s.name == ".vectors"}
                self.structures: dict[str, tuple[Member, ...]] = {}  # members, by the structure's name
                self.signatures: dict[int, str] = {}  # of functions, by address
                self.sources: dict[int, str] = {}  # the file of each function, as the compiler was told
                self.pointers: dict[str, set[str]] = {}  # signatures of what objects of a name point to
                for unit in elf.get_dwarf_info().iter_CUs():
                    source = _name(unit.get_top_DIE())
                    for die in unit.iter_DIEs():
                        self._read_entry(die, source)
        except (OSError, ELFError) as error:
            raise UserError(f"{path} cannot be read as an ELF file: {error}.") from error

    def section(self, name: str) -> Section | None:
        return next((s for s in self.sections if s.name == name), None)

    def symbol(self, name: str) -> Symbol | None:
        return next((s for s in self.symbols if s.name == name), None)

    def _read_entry(self, die: DIE, source: str) -> None:
        if die.tag == "DW_TAG_structure_type" and "DW_AT_name" in die.attributes:
            self.structures[_name(die)] = tuple(
                Member(_name(m), m.attributes["DW_AT_data_member_location"].value, _size(m))
                for m in die.iter_children()
                if m.tag == "DW_TAG_member" and "DW_AT_data_member_location" in m.attributes  # no bit fields
            )
        elif die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes:
            address = die.attributes["DW_AT_low_pc"].value
            self.signatures[address], self.sources[address] = _signature(_origin(die)), source
        elif die.tag in ("DW_TAG_member", "DW_TAG_variable", "DW_TAG_formal_parameter"):
            target = _stripped(_type(die))
            if target is not None and target.tag == "DW_TAG_pointer_type":
                function = _stripped(_type(target))
                if function is not None and function.tag == "DW_TAG_subroutine_type":
                    self.pointers.setdefault(_name(_origin(die)), set()).add(_signature(function))


def _sections(elf: ELFFile) -> Iterator[Section]:
    for s in elf.iter_sections():
        if not s["sh_flags"] & SH_FLAGS.SHF_ALLOC or not s["sh_size"]:
            continue
        load = None
        if s["sh_type"] != "SHT_NOBITS":
            load = next(
                p["p_paddr"] + s["sh_addr"] - p["p_vaddr"]
                for p in elf.iter_segments("PT_LOAD")
                if p["p_vaddr"] <= s["sh_addr"] < p["p_vaddr"] + p["p_memsz"]
            )
        yield Section(s.name, s["sh_addr"], s["sh_size"], load)


def _symbols(elf: ELFFile) -> Iterator[Symbol]:
    table = elf.get_section_by_name(".symtab")
    for s in table.iter_symbols() if table else ():
        kind = s["st_info"]["type"]
        if s.name and not s.name.startswith("$") and s["st_shndx"] != "SHN_UNDEF" and kind != "STT_FILE":
            is_function = kind == "STT_FUNC"
            yield Symbol(s.name, s["st_value"] & ~1 if is_function else s["st_value"], s["st_size"], is_function)


# -- debug information (DWARF) ---------------------------------------------------------------------------------------

_TRANSPARENT = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type")


def _name(die: DIE) -> str:
    return die.attributes["DW_AT_name"].value.decode() if "DW_AT_name" in die.attributes else ""


def _origin(die: DIE) -> DIE:
    """The declaration that a definition or an inlined copy refers to."""
    for reference in ("DW_AT_abstract_origin", "DW_AT_specification"):
        if reference in die.attributes:
            return _origin(die.get_DIE_from_attribute(reference))
    return die


def _type(die: DIE) -> DIE | None:
    die = _origin(die)
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def _stripped(die: DIE | None) -> DIE | None:
    """Without the names and qualifiers of typedefs: what is there in memory."""
    while die is not None and die.tag in _TRANSPARENT:
        die = _type(die)
    return die


def _size(die: DIE) -> int:
    """Bytes of an object's type."""
    kind = _stripped(_type(die))
    if kind.tag == "DW_TAG_array_type":
        counts = [
            s.attributes["DW_AT_upper_bound"].value + 1 if "DW_AT_upper_bound" in s.attributes else 0
            for s in kind.iter_children()
            if s.tag == "DW_TAG_subrange_type"
        ]
        size = _size(kind)
        for count in counts:
            size *= count
        return size
    return kind.attributes["DW_AT_byte_size"].value


def _spelled(die: DIE | None) -> str:
    """A type without qualifiers."""
    die = _stripped(die)
    if die is None:
        return "void"
    if die.tag == "DW_TAG_pointer_type":
        return f"{_spelled(_type(die))} *"
    if die.tag == "DW_TAG_subroutine_type":
        return f"({_signature(die)})"
    kind = {"DW_TAG_structure_type": "struct ", "DW_TAG_enumeration_type": "enum ", "DW_TAG_union_type": "union "}
    return kind.get(die.tag, "") + _name(die)


def _signature(die: DIE) -> str:
    """What a function takes and returns: "void (struct area *)"."""
    parameters = (_spelled(_type(p)) for p in die.iter_children() if p.tag == "DW_TAG_formal_parameter")
    return f"{_spelled(_type(die))} ({', '.join(parameters)})"
