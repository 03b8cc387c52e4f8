"""What has to hold of a compiled network before its weights may be changed in place, inference after inference."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from converters.errors import UserError
from converters.neural_art.compiled import ADVICE, Compiled, Node, Pool
from converters.neural_art.solver import WeightMap

# STEdgeAI Core whose layouts were compared with the .tflite of public builds, byte for byte; and what is in use.
COMPARED = ("2.1", "2.2", "3.0")
IN_USE = ("4.0",)

# Address ranges of RAM of the STM32N6: AXI SRAM and the NPU's, secure and not, and PSRAM on XSPI1 (STM32N6570-DK).
RAM = ((0x34000000, 0x34400000), (0x24000000, 0x24400000), (0x90000000, 0xA0000000))

_NOT_COMPUTED = ("Param", "Return")  # kinds of node that mark constants and the end


@dataclass(frozen=True)
class Findings:
    """cpu: "NAME (KIND)" of every node that the CPU computes, in order. warnings: whole sentences."""

    version: str
    cpu: tuple[str, ...]
    warnings: tuple[str, ...]


def check(compiled: Compiled, weight_map: WeightMap, any_version: bool = False) -> Findings:
    """Raises UserError for the first thing that makes training in place wrong, naming it.

    any_version: let a version of the compiler pass that nobody has looked at; the bytes were compared all the same.
    """
    warnings = _version(compiled, any_version)
    for pool in weight_map.pools:
        _own_ram_pool(compiled, pool)
    _no_overlap(compiled)
    nodes = _nodes(compiled)
    for entry in weight_map.entries:
        readers = [n for n in nodes if entry.buffer.id in n.inputs]
        readers = [n for n in readers if n.leaf] or readers
        name = weight_map.filters[entry.segment].name
        if not readers:
            raise UserError(
                f"no node of {compiled.folder} reads buffer '{entry.buffer.name}', which holds the weights of "
                f"'{name}': {ADVICE}."
            )
        for node in readers:
            if node.mapping != "NODE_HW":
                raise UserError(
                    f"layer '{node.name}', whose weights of '{name}' would be trained, runs on the CPU "
                    f"({node.mapping}), not on the NPU: train other layers (--train) or change its shape."
                )
    if compiled.epoch_controller:
        warnings.append(
            "The network was compiled with the epoch controller: nobody has shown yet that it sees changed weights in "
            "RAM. Leave --enable-epoch-controller out."
        )
    return Findings(compiled.version, cpu_nodes(nodes), tuple(warnings))


def cpu_nodes(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(
        f"{n.name} ({n.kind or 'epoch'})"
        for n in nodes
        if n.leaf and n.mapping in ("NODE_SW", "NODE_SW_HW") and n.kind not in _NOT_COMPUTED
    )


def _nodes(compiled: Compiled) -> tuple[Node, ...]:
    if compiled.nodes is None:
        raise UserError(
            f"{compiled.folder} lacks network_c_info.json, which says what runs on the NPU: copy it there, it lies "
            "beside network.c."
        )
    return compiled.nodes


def _version(compiled: Compiled, any_version: bool) -> list[str]:
    number = re.match(r"\d+\.\d+", compiled.version)
    short = number.group() if number else ""
    if short in COMPARED:
        return []
    name = f"STEdgeAI Core {compiled.version or 'of unknown version'}"
    if short in IN_USE:
        return [f"{name}: its layouts were not compared with public builds before; here every byte was."]
    if not any_version:
        raise UserError(
            f"{compiled.folder} was made by {name}; known are {', '.join(COMPARED + IN_USE)}: compile with one of "
            "those, or pass --any-npu-compiler."
        )
    return [f"{name} is unknown; every byte of the weights was compared, nothing else."]


def _own_ram_pool(compiled: Compiled, pool: Pool) -> None:
    what = f"the weights lie in pool '{pool.name}' ({pool.address:#x})"
    remedy = "compile with the memory pools that python -m pipeline.convert --npu neural_art writes"
    if pool.virtual:
        raise UserError(f"{what}, a virtual pool made of others: {remedy}, without --enable-virtual-mem-pools.")
    if not any(first <= pool.address and pool.address + pool.size <= last for first, last in RAM):
        raise UserError(f"{what}, which is not RAM, so they cannot be trained there: {remedy}.")
    if pool.rights != "ACC_READ":
        raise UserError(
            f"{what} with rights {pool.rights}, not ACC_READ: the network may write over them after their last use; "
            f"{remedy}."
        )
    for b in compiled.buffers:
        if not b.is_param and b.pool == pool.id:
            raise UserError(f"{what} together with activation buffer '{b.name}': {remedy}.")


def _no_overlap(compiled: Compiled) -> None:
    """No activation buffer shares a byte with a parameter, whatever their pools are called."""
    for a, b in itertools.product(compiled.buffers, compiled.parameters):
        if not a.is_param and a.address < b.end and b.address < a.end:
            raise UserError(
                f"activation buffer '{a.name}' overlaps parameter buffer '{b.name}' at {max(a.address, b.address):#x}: "
                "the second inference would read activations as parameters; give the weights an ACC_READ pool of their "
                "own."
            )
