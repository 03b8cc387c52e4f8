"""What the Neural-ART compiler leaves in a directory: buffers, pools, nodes, and the initial contents of memory.

Read from `*c_info.json` (schema 2.0, with --all-buffers-info) and, where that is missing, from the generated network
source, whose comments list the pools and whose LL_Buffer_InfoTypeDef tables list the buffers. Memory comes from the raw
files; their names vary (`network_atonbuf.AXISRAM3.raw`, `NAME_atonbuf.AXISRAM3.raw`, `atonbuf.AXISRAM3.raw`), but all
end in the file name of a pool. Data types are told by their names: the numbers of the enumeration changed with 1.1.3.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import UserError

SCHEMA = "2."
ADVICE = "compile with --all-buffers-info and copy the whole output directory"


class _Checked:
    """A record whose fields are of their types and not negative: what is read may be anything."""

    def __post_init__(self) -> None:
        kinds = {"int": int, "str": str, "bool": bool, "tuple[int, ...]": tuple}
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) is not kinds[f.type] or (f.type == "int" and value < 0):
                raise ValueError(f"{f.name} of a {type(self).__name__.lower()} is {value!r}")


@dataclass(frozen=True)
class Pool(_Checked):
    id: int
    name: str
    address: int
    size: int
    rights: str  # "ACC_READ" or "ACC_WRITE"
    cacheable: bool
    virtual: bool  # made of other pools
    file: str  # the end of the name of its raw file, "AXISRAM3.raw"; "" for a virtual pool
    used: int = 0  # bytes that the compiler says it uses; 0 where only the network source is there


@dataclass(frozen=True)
class Buffer(_Checked):
    id: int
    name: str
    pool: int
    address: int
    size: int
    is_param: bool
    dtype: str  # "STAI_FORMAT_S8", "DataType_INT8", ...
    bits: int
    depth: int  # `batch`: the compiler's block of channels

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def int8(self) -> bool:
        return self.bits == 8 and self.dtype in ("STAI_FORMAT_S8", "STAI_FORMAT_Q", "DataType_INT8", "DataType_FXP")


@dataclass(frozen=True)
class Node(_Checked):
    id: int
    name: str
    kind: str  # "Conv", "Param", "Return", ...; "" for an epoch
    mapping: str  # "NODE_HW", "NODE_SW", "NODE_SW_HW", "NODE_EC"
    inputs: tuple[int, ...]  # ids of buffers
    leaf: bool


@dataclass(frozen=True)
class Convolution:
    """What a LL_Convacc_InitTypeDef says of how it reads its kernels."""

    kernels: int
    depth: int
    deep: bool


@dataclass(frozen=True)
class Compiled:
    """A compiled network. ``memory``: address of a pool -> its initial bytes, int8, as long as its raw file.

    id: of the network source, see network_id; 0 where that is missing.
    """

    folder: Path
    version: str  # of STEdgeAI Core, "2.1.0-20194"
    pools: Mapping[int, Pool]
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...] | None  # None: only the network source is there, which does not say
    epoch_controller: bool
    memory: Mapping[int, np.ndarray] = field(repr=False)
    convolutions: Mapping[str, frozenset[Convolution]]  # by layer, "Conv2D_3"
    id: int = 0

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.is_param)

    def contents(self, buffer: Buffer) -> np.ndarray:
        """int8 [buffer.size]: what the raw files put there. Raises UserError where they do not reach."""
        parts, at = [], buffer.address
        while at < buffer.end:
            for base, data in self.memory.items():
                if base <= at < base + len(data):
                    parts.append(data[at - base : buffer.end - base])
                    at += len(parts[-1])
                    break
            else:
                raise UserError(
                    f"{self.folder}: no raw file holds {at:#x}, where parameter buffer '{buffer.name}' of pool "
                    f"'{self.pools[buffer.pool].name}' lies: {ADVICE}."
                )
        return np.concatenate(parts) if parts else np.zeros(0, np.int8)

    def hint(self, buffer: Buffer) -> Convolution | None:
        """What the network source says of the convolution that reads a buffer, where it says one thing."""
        layer = re.match(r"[A-Za-z0-9]+_\d+", buffer.name)
        found = self.convolutions.get(layer.group(), frozenset()) if layer else frozenset()
        return next(iter(found)) if len(found) == 1 else None


def read_compiled(folder: Path) -> Compiled:
    """Raises UserError, in one sentence, for a directory that is no compiled network or lacks a part of one."""
    infos, sources = sorted(folder.glob("*c_info.json")), _network_sources(folder)
    for files, what in ((infos, "*c_info.json"), (sources, "network sources")):
        if len(files) > 1:
            names = ", ".join(f.name for f in files)
            raise UserError(f"{folder} has several {what} ({names}): give the directory of one compilation.")
    if not infos and not sources:
        raise UserError(f"{folder} has neither network_c_info.json nor network.c: {ADVICE}.")
    source = sources[0].read_text(errors="replace") if sources else ""
    try:
        if infos:
            version, pools, buffers, nodes, controller = _from_c_info(infos[0])
        else:
            version, pools, buffers, nodes, controller = _from_source(source)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(
            f"{(infos or sources)[0]} is damaged or of an unknown form ({type(error).__name__}: {error}): {ADVICE}."
        ) from error
    if not any(b.is_param for b in buffers):
        raise UserError(f"{(infos or sources)[0]} lists no parameter buffers: {ADVICE}.")
    memory = _memory(folder, pools, buffers)
    number = network_id(sources[0].read_bytes()) if sources else 0
    return Compiled(folder, version, pools, buffers, nodes, controller, memory, _convolutions(source), number)


def network_id(source: bytes) -> int:
    """By which firmware and image know that they are of one network; runners/neural_art/identity.cmake has the same.

    Of the source from the first #include on, whatever its line ends: before stands a comment with the compiler's paths.
    """
    text = source.replace(b"\r", b"")
    return int(hashlib.sha256(text[max(0, text.find(b"#include")) :]).hexdigest()[:8], 16)


def _network_sources(folder: Path) -> list[Path]:
    marker = b"LL_ATON_Input_Buffers_Info_"
    return [f for f in sorted(folder.glob("*.c")) if not f.name.startswith("stai_") and marker in f.read_bytes()]


def _from_c_info(path: Path) -> tuple[str, dict[int, Pool], tuple[Buffer, ...], tuple[Node, ...], bool]:
    info = json.loads(path.read_text())
    schema = str(info.get("json_schema_version"))
    if not schema.startswith(SCHEMA):
        raise ValueError(f"schema {schema}, not {SCHEMA}x")
    tools = {tool["name"]: tool["version"] for tool in info["environment"]["tools"]}
    pools = {}
    for p in info["memory_pools"]:
        virtual = bool(p.get("virtual")) or bool(p.get("subpools")) or not p["fname"]
        address = int(p["address"]) + int(p.get("offset_start", 0))
        cacheable = p.get("cacheable") == "CACHEABLE_ON"
        file = re.sub(r"^.*?atonbuf\.", "", p["fname"])
        pools[p["id"]] = Pool(
            p["id"], p["name"], address, int(p["size_bytes"]), p["rights"], cacheable, virtual,
            "" if virtual else file, int(p.get("used_size_bytes", 0)),
        )  # fmt: skip
    buffers = tuple(_buffer(b, pools) for b in info["buffers"] if int(b["size_bytes"]) > 0)
    nodes = tuple(node for graph in info["graphs"] for top in graph["nodes"] for node in _walk(top))
    controller = bool(info.get("ec_blobs_info")) or any(node.mapping == "NODE_EC" for node in nodes)
    return str(tools.get("ST.EdgeAI.Core", "")), pools, buffers, nodes, controller


def _buffer(b: dict[str, Any], pools: Mapping[int, Pool]) -> Buffer:
    address, size = pools[b["mpool_id"]].address + int(b["offset_start"]), int(b["size_bytes"])
    is_param, bits, depth = b["is_param"] is True, int(b["nbits"]), int(b.get("batch", 1))
    return Buffer(b["id"], b["name"], b["mpool_id"], address, size, is_param, b["format"], bits, depth)


def _walk(node: dict[str, Any]) -> Iterator[Node]:
    kind = str(node.get("description") or node.get("type") or "").partition("kind=")[2]
    inner = node.get("subgraph_nodes", [])
    yield Node(node["id"], node["name"], kind, node["mapping"], tuple(node["inputs"]), not inner)
    for sub in inner:
        yield from _walk(sub)


_POOL = re.compile(
    r"index=(\d+) file postfix=(\S*) name=(\S+) offset=(0x[0-9a-fA-F]+)\s+absolute_mode size=(\d+) (vpool )?"
    r"(READ_ONLY|READ_WRITE).*?cacheable=(\w+)"
)
_FIELDS = re.compile(
    r"\.name = \"(?P<name>[^\"]+)\",\s*\.addr_base = \{[^}]*?\((?P<base>0x[0-9a-fA-F]+)UL\)[^}]*\},"
    r"(?P<rest>.*?)\n    \}",
    re.DOTALL,
)
_CONVACC = re.compile(r"LL_Convacc_InitTypeDef (\w+?)_init\d+ = \{(.*?)\};", re.DOTALL)


def _from_source(source: str) -> tuple[str, dict[int, Pool], tuple[Buffer, ...], None, bool]:
    versions = [re.search(rf"{key}\s+\"STAI-([\d.]+[\d-]*)", source) for key in ("GIT_DESCRIPTION", "GIT_BRANCH")]
    version = next((v.group(1) for v in versions if v), "")
    pools = {}
    for index, postfix, name, address, size, virtual, rights, cacheable in _POOL.findall(source):
        read_only = "ACC_READ" if rights == "READ_ONLY" else "ACC_WRITE"
        file = "" if virtual else postfix + ".raw"
        pools[int(index)] = Pool(
            int(index), name, int(address, 16), int(size), read_only, cacheable == "ON", bool(virtual), file
        )
    if not pools:
        raise ValueError("no memory pools are listed")
    buffers: dict[tuple[str, int], Buffer] = {}
    tables = source[source.index("LL_ATON_Input_Buffers_Info_") :]
    for match in _FIELDS.finditer(tables):
        values = dict(re.findall(r"\.(\w+) = ([\w-]+)", match["rest"]))
        base, start, end = int(match["base"], 16), int(values["offset_start"]), int(values["offset_end"])
        holders = [p for p in pools.values() if p.address <= base + start and base + end <= p.address + p.size]
        holders.sort(key=lambda p: (p.address != base, p.virtual))
        if not holders:
            raise ValueError(f"buffer {match['name']} lies in no pool")
        is_param, bits, depth = values["is_param"] == "1", int(values["nbits"]), int(values["batch"])
        buffer = Buffer(
            len(buffers), match["name"], holders[0].id, base + start, end - start, is_param, values["type"], bits, depth
        )
        if buffer.size:
            buffers.setdefault((buffer.name, buffer.address), buffer)
    return version, pools, tuple(buffers.values()), None, '_ecblobs.h"' in source


def _convolutions(source: str) -> dict[str, frozenset[Convolution]]:
    found: dict[str, set[Convolution]] = {}
    for name, body in _CONVACC.findall(source):
        v = {key: int(value) for key, value in re.findall(r"\.(\w+) = (-?\d+)", body)}
        layer = re.match(r"[A-Za-z0-9]+_\d+", name)
        if layer and {"nKernels", "batchDepth", "deepmode"} <= v.keys():
            convolution = Convolution(v["nKernels"], v["batchDepth"], bool(v["deepmode"]))
            found.setdefault(layer.group(), set()).add(convolution)
    return {layer: frozenset(values) for layer, values in found.items()}


def _memory(folder: Path, pools: Mapping[int, Pool], buffers: tuple[Buffer, ...]) -> dict[int, np.ndarray]:
    """The raw files of all pools that have one; a pool with parameters has to."""
    memory = {}
    for pool in pools.values():
        if not pool.file:
            continue
        stem = pool.file.removesuffix(".raw")
        pattern = re.compile(rf"(^|.*[._]){re.escape(stem)}\.(raw|bin)")
        files = [f for f in sorted(folder.iterdir()) if pattern.fullmatch(f.name) and f.stat().st_size]
        if len(files) > 1:
            names = ", ".join(f.name for f in files)
            raise UserError(f"{folder} has several memory files of pool '{pool.name}' ({names}): keep the right one.")
        if files:
            memory[pool.address] = np.fromfile(files[0], np.int8)
        elif any(b.is_param and b.pool == pool.id for b in buffers):
            raise UserError(
                f"{folder} lacks the memory file of pool '{pool.name}', network_atonbuf.{stem}.raw, which holds "
                f"parameters: {ADVICE}."
            )
    return memory
