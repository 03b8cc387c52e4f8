"""The NART section of a device image: a weight map as little-endian words that a device reads without parsing.

docs/neural_art.md says what each word means. `unpack` trusts nothing that it reads.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from converters.errors import UserError
from converters.neural_art.compiled import Compiled
from converters.neural_art.layouts import FAMILIES, Box, Piece, covers, parameters, valid
from converters.neural_art.solver import WeightMap

VERSION = 2
CACHE_LINE = 32  # bytes
HEADER_WORDS, POOL_WORDS, ENTRY_WORDS = 5, 4, 20
LIMIT = 1 << 31  # addresses within a pool, sizes and counts lie below
MAX_POOLS, MAX_ENTRIES = 16, 4096  # a device compares each with each

_HEADER = struct.Struct(f"<{HEADER_WORDS}I")
_POOL = struct.Struct(f"<{POOL_WORDS}I")
_ENTRY = struct.Struct(f"<{ENTRY_WORDS}I")
_PARAMETERS = 4


@dataclass(frozen=True)
class SectionPool:
    address: int
    size: int  # bytes of its raw file
    cacheable: bool


@dataclass(frozen=True)
class SectionEntry:
    """A piece of a segment: where its buffer begins in a pool, and how it lies there."""

    segment: int
    pool: int
    offset: int
    piece: Piece


@dataclass(frozen=True)
class Section:
    """crc: zlib's CRC-32 of the raw files of all pools, in order, as compiled. network: its id, 0 where not known."""

    crc: int
    pools: tuple[SectionPool, ...]
    entries: tuple[SectionEntry, ...]
    network: int = 0


@dataclass(frozen=True)
class CompiledNetwork:
    """What a device image has of a compiled network: the map, and the initial bytes of its one pool of weights.

    activations: bytes of the other pools that the network uses; 0 where the compiler did not say.
    """

    section: Section
    blob: bytes
    activations: int = 0

    @staticmethod
    def of(compiled: Compiled, weight_map: WeightMap) -> CompiledNetwork:
        """Raises UserError where the weights lie in more than one pool, or not from a line of the cache on."""
        section = replace(from_map(weight_map), network=compiled.id)
        if len(section.pools) != 1:
            names = ", ".join(p.name for p in weight_map.pools)
            raise UserError(f"the weights lie in {len(section.pools)} pools ({names}): compile with one pool for them.")
        if section.pools[0].address % CACHE_LINE:
            raise UserError(
                f"the weights' pool begins at {section.pools[0].address:#x}: let it begin at {CACHE_LINE} bytes."
            )
        own = section.pools[0].address
        activations = sum(p.used for p in compiled.pools.values() if p.address != own and not p.virtual)
        return CompiledNetwork(section, compiled.memory[own].tobytes(), activations)

    def get_weights(self) -> np.ndarray:
        """int8 [d] in index order (a copy)."""
        return gather(self.section, np.frombuffer(self.blob, np.int8))


def gather(section: Section, pool: np.ndarray) -> np.ndarray:
    """The weights of all segments, int8 [d], out of the bytes of the one pool, int8."""
    parts = []
    for _, group in itertools.groupby(section.entries, lambda e: e.segment):
        entries = list(group)
        weights = np.zeros(math.prod(entries[0].piece.filter), np.int8)
        for e in entries:
            weights[e.piece.weights()] = e.piece.gather(pool[e.offset : e.offset + e.piece.size])
        parts.append(weights)
    return np.concatenate(parts)


def from_map(weight_map: WeightMap) -> Section:
    order = {pool.id: n for n, pool in enumerate(weight_map.pools)}
    pools = tuple(
        SectionPool(p.address, size, p.cacheable) for p, size in zip(weight_map.pools, weight_map.sizes, strict=True)
    )
    entries = tuple(
        SectionEntry(
            e.segment, order[e.buffer.pool], e.buffer.address - weight_map.pools[order[e.buffer.pool]].address, e.piece
        )
        for e in weight_map.entries
    )
    return Section(weight_map.crc, pools, entries)


def pack(section: Section) -> bytes:
    words = [_HEADER.pack(VERSION, len(section.pools), len(section.entries), section.crc, section.network)]
    words += [_POOL.pack(p.address, p.size, int(p.cacheable), 0) for p in section.pools]
    for e in section.entries:
        box, layout = e.piece.box, e.piece.layout
        bounds = [n for pair in zip(box.start, box.dims, strict=True) for n in pair]
        values = list(parameters(layout).values())
        values += [0] * (_PARAMETERS - len(values))
        words.append(_ENTRY.pack(e.segment, e.pool, e.offset, layout.family, *bounds, *e.piece.filter, *values))
    return b"".join(words)


def unpack(data: bytes, counts: Sequence[int] | None = None) -> Section:
    """counts: weights of each segment of the image (TRAN), when known. Raises UserError for anything inconsistent."""
    if len(data) < _HEADER.size:
        raise _bad("it is shorter than its header")
    version, n_pools, n_entries, crc, network = _HEADER.unpack_from(data)
    if version != VERSION:
        raise _bad(f"its version is {version}, not {VERSION}")
    if len(data) != _HEADER.size + n_pools * _POOL.size + n_entries * _ENTRY.size or not n_pools or not n_entries:
        raise _bad(f"{n_pools} pools and {n_entries} entries do not make its {len(data)} bytes")
    if n_pools > MAX_POOLS or n_entries > MAX_ENTRIES:
        raise _bad(
            f"{n_pools} pools and {n_entries} entries are more than the {MAX_POOLS} and {MAX_ENTRIES} it may have"
        )
    at = _HEADER.size
    pools = []
    for address, size, cacheable, zero in _POOL.iter_unpack(data[at : at + n_pools * _POOL.size]):
        if size >= LIMIT or address + size > 1 << 32 or cacheable > 1 or zero:
            raise _bad(f"pool {len(pools)} is no range of addresses")
        pools.append(SectionPool(address, size, bool(cacheable)))
    for a, b in itertools.combinations(pools, 2):
        if a.address < b.address + b.size and b.address < a.address + a.size:
            raise _bad("its pools overlap")
    at += n_pools * _POOL.size
    entries = [_entry(n, words, pools) for n, words in enumerate(_ENTRY.iter_unpack(data[at:]))]
    _check_cover(entries, counts)
    _check_overlap(entries)
    return Section(crc, tuple(pools), tuple(entries), network)


def _entry(number: int, words: tuple[int, ...], pools: Sequence[SectionPool]) -> SectionEntry:
    segment, pool, offset, family = words[:4]
    bounds, dims, values = words[4:12], words[12:16], words[16:]
    if not all(dims) or math.prod(dims) >= LIMIT:
        raise _bad(f"entry {number} is of a filter of {'x'.join(map(str, dims))}")
    box = Box(bounds[0::2], bounds[1::2])
    if not box.inside(dims):
        raise _bad(f"entry {number} is of a box outside its filter")
    if family >= len(FAMILIES):
        raise _bad(f"entry {number} has the unknown family {family}")
    used = len(fields(FAMILIES[family]))
    if any(values[used:]):
        raise _bad(f"entry {number} has parameters that its family does not have")
    layout = FAMILIES[family](*values[:used])
    if not valid(layout, box.dims):
        raise _bad(f"entry {number} has impossible parameters {values[:used]} for a box of {box.dims}")
    piece = Piece(dims, box, layout)
    if pool >= len(pools) or offset + piece.size > pools[pool].size:
        raise _bad(f"entry {number} lies outside its pool")
    return SectionEntry(segment, pool, offset, piece)


def _check_cover(entries: Sequence[SectionEntry], counts: Sequence[int] | None) -> None:
    """Segments come in order without a gap, and every weight of each once."""
    groups = [(segment, list(group)) for segment, group in itertools.groupby(entries, lambda e: e.segment)]
    if [segment for segment, _ in groups] != list(range(len(groups) if counts is None else len(counts))):
        raise _bad("its segments are not those of the image, in order")
    for segment, group in groups:
        dims = group[0].piece.filter
        if any(e.piece.filter != dims for e in group) or not covers([e.piece for e in group], dims):
            raise _bad(f"the entries of segment {segment} do not hold every weight once")
        if counts is not None and math.prod(dims) != counts[segment]:
            raise _bad(f"segment {segment} has {counts[segment]} weights, its entries are of {math.prod(dims)}")


def _check_overlap(entries: Sequence[SectionEntry]) -> None:
    ordered = sorted(entries, key=lambda e: (e.pool, e.offset))
    for a, b in itertools.pairwise(ordered):
        if a.pool == b.pool and b.offset < a.offset + a.piece.size:
            raise _bad(f"segments {a.segment} and {b.segment} overlap")


def _bad(why: str) -> UserError:
    return UserError(f"the NART section is damaged: {why}; make the image anew.")
