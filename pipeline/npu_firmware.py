"""What a firmware with the NPU's runner is made of: the compiled network, ST's runtime, and the memory between them.

The firmware itself lies in CODE and DATA of boards/stm32n6/stm32n6_npu.ld; the other memories there are the network's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from converters.errors import UserError
from converters.neural_art.checks import cpu_nodes
from converters.neural_art.compiled import Buffer, Compiled, Pool, read_compiled
from pipeline.targets.boards import build_stm32n6

OWN = {"CODE", "DATA"}  # memories of the firmware itself
POOLS = "compile with the memory pools that python -m pipeline.convert --npu neural_art writes"


@dataclass(frozen=True)
class NpuSources:
    """Directories of the user's: what the compiler wrote, the folder Npu of ST's runtime; and the library of ST's
    functions for what the CPU computes, where there is such."""

    network: Path
    runtime: Path
    library: Path | None = None


def build(sources: NpuSources, compiled: Compiled, variant: str, kernels: str) -> Path:
    """Build the firmware and return the ELF file."""
    pool = weights_pool(compiled)
    options = {
        "NEURAL_ART_DIR": sources.network.resolve(),
        "NEURAL_ART_NAME": network_name(compiled),
        "ST_NPU_DIR": sources.runtime.resolve(),
        "ST_NPU_LIBRARY": sources.library.resolve() if sources.library else "",
        "WEIGHTS_ADDRESS": f"{pool.address:#x}",
        "WEIGHTS_BYTES": pool.size,
    }
    return build_stm32n6(variant, kernels, *(f"-D{name}={value}" for name, value in options.items()), name="npu")


def read(sources: NpuSources, memories: Sequence[tuple[str, int, int]]) -> Compiled:
    """The compiled network, which keeps to memory that is there and not the firmware's own.

    memories: name, address, size of each, as the linker script has them. Raises UserError for what cannot be built, or
    would not work.
    """
    if not (sources.runtime / "ll_aton" / "ll_aton_runtime.h").is_file():
        raise UserError(
            f"{sources.runtime} lacks ll_aton/ll_aton_runtime.h: give the folder Npu of ST's runtime, of the version "
            "that compiled the network."
        )
    if sources.library is not None and not sources.library.is_file():
        raise UserError(f"{sources.library} is not there: give ST's NetworkRuntime*_CM55_GCC.a.")
    compiled = read_compiled(sources.network)
    if compiled.epoch_controller:
        raise UserError(
            f"the network in {sources.network} was compiled with the epoch controller, which bakes biases and scales "
            "into a command stream: compile it without --enable-epoch-controller."
        )
    for buffer in compiled.buffers:
        if not (names := set(_names_of(buffer, memories))).isdisjoint(OWN):
            where = f"where the firmware has {', '.join(sorted(names & OWN))}"
        elif "PSRAM" in names and not buffer.is_param:
            where = "in PSRAM, where only weights may lie"
        elif "" in names:
            where = f"where this board has no memory for it ({', '.join(n for n, *_ in memories if n not in OWN)})"
        else:
            continue
        raise UserError(
            f"the network in {sources.network} has buffer '{buffer.name}' at {buffer.address:#x}, {where}: {POOLS}."
        )
    weights_pool(compiled)
    network_name(compiled)
    return compiled


def _names_of(buffer: Buffer, memories: Sequence[tuple[str, int, int]]) -> Iterator[str]:
    """Of the memories that a buffer lies in; "" where it lies in none."""
    at = buffer.address
    while at < buffer.end:
        name, first, size = next((m for m in memories if m[1] <= at < m[1] + m[2]), ("", at, buffer.end - at))
        yield name
        at = first + size


def weights_pool(compiled: Compiled) -> Pool:
    pools = [compiled.pools[n] for n in sorted({b.pool for b in compiled.parameters})]
    if len(pools) > 1:
        names = ", ".join(f"{p.name} at {p.address:#x}" for p in pools)
        raise UserError(f"the network in {compiled.folder} has parameters in several pools ({names}): {POOLS}.")
    return pools[0]


def network_name(compiled: Compiled) -> str:
    """What the generated functions end in."""
    for file in sorted(compiled.folder.glob("*.c")):
        if found := re.search(r"\bLL_ATON_Input_Buffers_Info_(\w+)\s*\(", file.read_text(errors="replace")):
            return found[1]
    raise UserError(f"{compiled.folder} has no network.c: copy the whole directory that stedgeai generate wrote.")


def describe(compiled: Compiled) -> Iterator[str]:
    """What the network takes of the memory, in lines, and what of it the CPU computes."""
    yield "the network's own, bytes"
    for pool in compiled.pools.values():
        buffers = [b for b in compiled.buffers if b.pool == pool.id]
        if buffers and not pool.virtual:
            used = max(b.end for b in buffers) - pool.address
            what = "weights" if any(b.is_param for b in buffers) else "activations"
            yield f"  {pool.name + f' at {pool.address:#x}':<28}{pool.size:>15,}   {used:,} used for {what}"
    nodes = cpu_nodes(compiled.nodes or ())
    yield f"  on the CPU: {', '.join(nodes) or 'nothing'}"
