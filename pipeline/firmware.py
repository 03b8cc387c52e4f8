"""`make firmware BOARD=qemu_an547|stm32n6`: build a board's firmware and account for its memory, region by region.

Prints what is used of each region and what for, and the most stack that the firmware can take; writes the same beside
the ELF file. Fails when a stack may overflow, when the firmware recurses, or when a heap is linked. With --npu the
runner is a network compiled for the NPU; where ST's runtime lets the stacks have no known bound, that is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.neural_art.compiled import Compiled
from pipeline import cli, npu_firmware, stack
from pipeline.elf import Elf
from pipeline.npu_firmware import NpuSources
from pipeline.stages import write
from pipeline.targets.boards import KERNELS, ROOT, VARIANTS, build_an547, build_stm32n6
from pipeline.targets.memory import Requirements, Shortage, board_memory, fit, place, requirements, with_psram


@dataclass(frozen=True)
class Firmware:
    """How a board's firmware is made. build: of a set of kernels and a variant to the ELF file; places: the objects
    that images are placed in, and for what."""

    build: Callable[[str, str | None], Path]
    script: Path
    places: Mapping[str, str]
    variants: tuple[str, ...] = ()


FIRMWARE = {
    "qemu_an547": Firmware(
        lambda kernels, _: build_an547("zo_board", kernels),
        ROOT / "boards" / "qemu_an547" / "an547.ld",
        {"work": "activations, scratch", "large": "image, samples"},
    ),
    "stm32n6": Firmware(
        lambda kernels, variant: build_stm32n6(variant or VARIANTS[0], kernels),
        ROOT / "boards" / "stm32n6" / "stm32n6.ld",
        {"work": "activations, scratch", "image": "image", "samples": "samples", "psram": "larger images, samples"},
        VARIANTS,
    ),
}

NPU_SCRIPT = ROOT / "boards" / "stm32n6" / "stm32n6_npu.ld"

OBJECT_LIBRARIES = ("an547",)  # of boards/*/board.cmake

# Members of struct app (tflm_app/app/app.h) by purpose; the others are the rest.
APP = {"link buffers": ("link", "request", "reply"), "training": ("partial",), "batch": ("batch", "batch_size")}
TITLES = {
    "process_stack": "stack of main", "handler_stack": "stack of handlers", ".vectors": "vectors",
    ".ARM.exidx": "unwinding table", ".data": "data", ".bss": "other variables", ".stack": "stacks",
    ".rodata": "constants",
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """One line of MEMORY of a linker script."""

    name: str
    origin: int
    size: int

    def has(self, address: int) -> bool:
        return self.origin <= address < self.origin + self.size


@dataclass(frozen=True)
class Row:
    """Bytes for one purpose. inner: part of the row before."""

    purpose: str
    size: int
    note: str = ""
    inner: bool = False


def memories(script: str) -> tuple[Memory, ...]:
    """The regions of a linker script."""
    lines = re.findall(r"^\s*(\w+)\s*\(\w+\)\s*:\s*ORIGIN = (\w+), LENGTH = (\d+)([KM])", script, re.MULTILINE)
    return tuple(Memory(n, int(at, 0), int(size) << {"K": 10, "M": 20}[unit]) for n, at, size, unit in lines)


def call_graphs(elf: Path) -> list[Path]:
    """What GCC wrote of the sources of an ELF file. Another of the same build may have them with other definitions."""
    targets = (elf.stem, *OBJECT_LIBRARIES)
    return sorted(path for t in targets for path in (elf.parent / "CMakeFiles" / f"{t}.dir").glob("**/*.ci"))


def stacks(elf: Elf) -> tuple[stack.Stack, ...]:
    return stack.cortex_m_stacks(elf, stack.CallGraph(elf, call_graphs(elf.path)))


def rows(elf: Elf, found: tuple[stack.Stack, ...], board: Firmware) -> dict[str, list[Row]]:
    """What each region of the board holds, by the region's name."""
    regions = memories(board.script.read_text())
    table: dict[str, list[Row]] = {region.name: [] for region in regions}

    def region_of(address: int) -> list[Row]:
        return table[next(region.name for region in regions if region.has(address))]

    for section in elf.sections:
        region_of(section.address).extend(_section_rows(elf, section.name, found, board))
        if section.load not in (None, section.address):
            region_of(section.load).append(Row("initial values of data", section.size))
    return table


def _section_rows(elf: Elf, name: str, found: tuple[stack.Stack, ...], board: Firmware) -> Iterator[Row]:
    section = elf.section(name)
    objects = [s for s in elf.symbols if s.size and section.address <= s.address < section.address + section.size]
    by_name = {s.name: s.size for s in objects}
    if name == ".text":
        code = elf.symbol("text_end").address - elf.symbol("text_start").address
        yield Row("code", code)
        if section.size > code:
            yield Row("constants", section.size - code)
        return
    left = section.size
    for item in found:
        if item.name in by_name:
            yield Row(TITLES[item.name], item.size, f"at most {item.worst:,} are used")
            left -= item.size
    if "app" in by_name:
        yield from _app_rows(elf)
        left -= by_name["app"]
    for symbol, title in board.places.items():
        if symbol in by_name:
            yield Row(title, by_name[symbol], "shared out when an image is loaded")
            left -= by_name[symbol]
    if left:
        yield Row(TITLES.get(name, name), left)


def _app_rows(elf: Elf) -> Iterator[Row]:
    size, members = elf.symbol("app").size, {m.name: m.size for m in elf.structures["app"]}
    yield Row("app context", size)
    for purpose, names in APP.items():
        yield Row(purpose, sum(members[n] for n in names), inner=True)
        size -= sum(members[n] for n in names)
    yield Row("the rest", size, inner=True)


def describe(title: str, elf: Elf, found: tuple[stack.Stack, ...], board: Firmware) -> Iterator[str]:
    """The table of a firmware, in lines. found: () where the stacks have no known bound."""
    table = rows(elf, found, board)
    yield f"{title}, bytes"
    for region in memories(board.script.read_text()):
        if not table[region.name]:  # of another variant, or the network's
            continue
        used = sum(row.size for row in table[region.name] if not row.inner)
        yield f"  {region.name:<28}{region.size:>15,}   {used:,} used, {region.size - used:,} free"
        for row in table[region.name]:
            purpose = f"  {row.purpose}" if row.inner else row.purpose
            yield f"    {purpose:<26}{row.size:>15,}" + (f"   {row.note}" if row.note else "")
    if found:
        yield "worst case of each stack, and the calls that lead there with their frames"
        for item in found:
            yield f"  {TITLES[item.name]:<19}{item.worst:>6,} of {item.size:,}: {item.why}"
        yield "no heap, no recursion"


def npu_firmware_of(sources: NpuSources, variant: str | None) -> tuple[Firmware, Compiled]:
    """How a firmware with the NPU's runner is made, and the network in it."""
    there = [m for m in memories(NPU_SCRIPT.read_text()) if variant == "dk" or m.name != "PSRAM"]
    compiled = npu_firmware.read(sources, [(m.name, m.origin, m.size) for m in there])

    def build(kernels: str, variant: str | None) -> Path:
        return npu_firmware.build(sources, compiled, variant or VARIANTS[0], kernels)

    return Firmware(build, NPU_SCRIPT, {"memory": "head of the image, samples"}, VARIANTS), compiled


def bounded_stacks(elf: Elf) -> tuple[tuple[stack.Stack, ...], str]:
    """The stacks, or (), and why they have no known bound."""
    try:
        return stacks(elf), ""
    except UserError as error:
        return (), f"the stacks have no known bound, since ST's runtime is in it: {error}"


def describe_image(need: Requirements, image: DeviceImage, board: str, variant: str | None) -> Iterator[str]:
    """What an image takes of the board when it is loaded, in lines. Raises UserError where it does not fit."""
    memory = board_memory(board, need.kernels)
    if variant == "dk":
        memory = with_psram(memory, need.image)
    placed = place(need, memory)
    if isinstance(placed, Shortage):
        raise UserError(fit(need, memory))
    lines = need.rows(memory.workers, placed.capacity)
    largest = max(range(len(need.op_scratch)), key=need.op_scratch.__getitem__)
    yield f"{image.meta.get('name', 'the image')}: what is taken when it is loaded"
    for purpose, name, note in (
        ("weights", memory.name(0), "trained in place"),
        ("model", memory.name(0), "the rest of the image, but for the loss table"),
        ("activations", memory.name(1), ""),
        ("scratch", memory.name(1), f"most for {image.meta['ops'][largest]}"),
        ("samples", memory.name(2), f"room for {placed.capacity:,} of {need.sample:,}, with labels"),
    ):
        yield f"  {purpose:<20}{name:<14}{lines[purpose]:>15,}" + (f"   {note}" if note else "")


@cli.command()
@click.option("--board", type=click.Choice(tuple(FIRMWARE)), default=next(iter(FIRMWARE)), help="Whose firmware.")
@click.option("--variant", type=click.Choice(VARIANTS), help=f"Of the STM32N6's boards.  [default: {VARIANTS[0]}]")
@click.option("--kernels", type=click.Choice(KERNELS), default=KERNELS[0], help="Of the int8 runner.")
@click.option("--image", "image_file", type=click.Path(path_type=Path), help="And what this device image takes.")
@click.option("--npu", type=click.Path(path_type=Path), help="The NPU as runner: what ST's compiler wrote.")
@click.option("--st-npu", type=click.Path(path_type=Path), help="--npu: the folder Npu of ST's runtime.")
@click.option("--st-npu-library", type=click.Path(path_type=Path), help="--npu: ST's NetworkRuntime*_CM55_GCC.a.")
def main(
    board: str,
    variant: str | None,
    kernels: str,
    image_file: Path | None,
    npu: Path | None,
    st_npu: Path | None,
    st_npu_library: Path | None,
) -> None:
    """Build a board's firmware; say what memory it takes, and the most stack."""
    firmware, network = FIRMWARE[board], None
    if variant not in (None, *firmware.variants):
        raise click.UsageError(f"--variant {variant} means nothing to --board {board}.")
    _refuse_stray_options(board, image_file, npu, st_npu, st_npu_library)
    if npu is not None and st_npu is not None:
        firmware, network = npu_firmware_of(NpuSources(npu, st_npu, st_npu_library), variant)
    path = firmware.build(kernels, variant)
    elf, title = Elf(path), f"{board}-{variant or VARIANTS[0]}" if firmware.variants else board
    stack.check_no_heap(elf)
    if network is None:
        found = stacks(elf)
        lines = list(describe(f"{title}, {kernels} kernels", elf, found, firmware))
    else:
        found, why = bounded_stacks(elf)
        lines = list(describe(f"{title}, runner neural_art", elf, found, firmware))
        lines += [*npu_firmware.describe(network), *([why] if why else [])]
    if image_file is not None:
        try:
            image = DeviceImage.read(image_file.read_bytes(), str(image_file))
        except OSError as error:
            raise UserError(f"{image_file} cannot be read: {error.strerror}.") from error
        lines += describe_image(requirements(image, kernels), image, board, variant)
    click.echo("\n".join(lines))
    write(path.with_suffix(".memory.txt"), ("\n".join(lines) + "\n").encode())
    stack.check_stacks(found)
    click.echo(f"firmware: {path}")


def _refuse_stray_options(
    board: str, image: Path | None, npu: Path | None, st_npu: Path | None, library: Path | None
) -> None:
    if npu is None and (st_npu or library):
        raise click.UsageError("--st-npu and --st-npu-library have no meaning without --npu: leave them out.")
    if npu is None:
        return
    if board != "stm32n6":
        raise click.UsageError(f"--npu means nothing to --board {board}: --board stm32n6 has an NPU.")
    if st_npu is None:
        raise click.UsageError("--npu needs ST's runtime, too: --st-npu .../Npu.")
    if image is not None:
        raise click.UsageError("--image means nothing to --npu, whose firmware says itself what the network takes.")


if __name__ == "__main__":
    main()
