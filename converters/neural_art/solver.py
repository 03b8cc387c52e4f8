"""Which buffers of a compiled network hold which filter, in which layout: found by comparing bytes, never assumed.

The layout is the compiler's choice and may change with its version, its options and the shape of a layer, so every
parameter is searched for in every build. A layout is accepted only if it puts every weight of the .tflite where the
raw file has it and if every other byte of the buffer is zero. Weights that repeat can make several layouts fit; then
the fits are compared as permutations, and where they differ nothing is decided: `probe_model` makes the same network
with random weights, and the layouts of that one, compiled the same way, are checked against the network's own bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from converters.errors import UserError
from converters.neural_art.compiled import Buffer, Compiled, Convolution, Pool
from converters.neural_art.layouts import Blocked, Box, Deep, Dims, Inflated, Layout, Piece, Plain, covers, valid
from converters.tflite_model import Graph, Segment, read_graph, trainable_segments, weight_tensors, write_weights

# Groups and multiples that `Deep` is searched for; every other parameter is searched for in its whole range.
GROUPS = (8, 4, 16, 2, 32, 1)
MULTIPLES = (3, 2, 4, 8, 16)

_FITS = 16  # permutations of one filter that are looked for in one buffer; there are more where its weights are alike
_SAMPLES = 512  # weights that sift candidates before all are compared


class Ambiguous(UserError):
    """The weights repeat, so that more than one map explains the build; a compiled probe_model settles it."""


@dataclass(frozen=True)
class Filter:
    """A trainable filter: its name, its place in the order of the segments, and its weights, int8 [O, H, W, I]."""

    name: str
    segment: int
    values: np.ndarray

    @property
    def dims(self) -> Dims:
        return self.values.shape


@dataclass(frozen=True)
class Entry:
    """A piece of a filter and the buffer that holds it."""

    segment: int
    buffer: Buffer
    piece: Piece


@dataclass(frozen=True)
class WeightMap:
    """Where every weight of every segment lies: one entry for each buffer, in the order of the segments.

    pools are the pools of those buffers, sizes the bytes of their raw files, crc is zlib's CRC-32 of those in order.
    """

    filters: tuple[Filter, ...]
    entries: tuple[Entry, ...]
    pools: tuple[Pool, ...]
    sizes: tuple[int, ...]
    crc: int

    def of(self, segment: int) -> list[Entry]:
        return [e for e in self.entries if e.segment == segment]


def filters_of(graph: Graph, segments: Sequence[Segment]) -> tuple[Filter, ...]:
    """The filters of these segments (tflite_model.trainable_segments), as [O, H, W, I]."""
    tensors = {tensor.data[0]: tensor for _, tensor in weight_tensors(graph) if tensor.data is not None}
    filters = []
    for number, segment in enumerate(segments):
        values = graph.constant(tensors[segment.offset], np.int8)
        filters.append(Filter(segment.name, number, values.reshape(values.shape if values.ndim == 4 else _fc(values))))
    return tuple(filters)


def _fc(values: np.ndarray) -> Dims:
    return (values.shape[0], 1, 1, values.shape[1])


def probe_model(tflite: bytes, seed: int) -> bytes:
    """The same network with random weights, int8 uniform in -127..127; shapes, scales and biases stay.

    Compiled with the same options it is laid out in the same way, and no two of its filters look alike.
    """
    segments = trainable_segments(read_graph(tflite))
    weights = np.random.default_rng(seed).integers(-127, 128, sum(s.count for s in segments), np.int8)
    return write_weights(tflite, segments, weights)


def recover(
    compiled: Compiled, tflite: bytes, scope: str = "all", probe: tuple[Compiled, bytes] | None = None
) -> WeightMap:
    """The map of a compiled network.

    scope: which filters, see tflite_model.trainable_segments. probe: the compiled probe_model of this .tflite and its
    .tflite; its layouts are taken, and compared with this build. Raises UserError, naming filter, buffer and offset and
    the nearest layout, where a weight is not explained exactly once, and where the layout stays in doubt.
    """
    graph = read_graph(tflite)
    segments = trainable_segments(graph)
    filters = filters_of(graph, segments)
    chosen = [segments.index(s) for s in trainable_segments(graph, scope)]
    if probe is None:
        entries = search(compiled, filters, chosen)
    else:
        graph = read_graph(probe[1], "the probe")
        others = filters_of(graph, trainable_segments(graph))
        if [f.dims for f in others] != [f.dims for f in filters]:
            raise UserError("the probe is not of this network: its filters have other shapes; make it anew.")
        try:
            found = search(probe[0], others, chosen, Proof(compiled, filters))
        except UserError as error:
            raise UserError(f"the probe in {probe[0].folder} cannot settle it: {error}") from error
        entries = [_transfer(compiled, filters[e.segment], e) for e in found]
    _check_disjoint(compiled, entries)
    _check_gaps(compiled, {e.buffer.pool for e in entries})
    pools = tuple(compiled.pools[k] for k in sorted({e.buffer.pool for e in entries}))
    blobs = [compiled.memory.get(pool.address, np.zeros(0, np.int8)) for pool in pools]
    crc = zlib.crc32(b"".join(blob.tobytes() for blob in blobs))
    entries = [replace(e, segment=chosen.index(e.segment)) for e in entries]
    kept = tuple(replace(filters[k], segment=n) for n, k in enumerate(chosen))
    return WeightMap(kept, tuple(entries), pools, tuple(len(blob) for blob in blobs), crc)


# --- the search ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """The build, and its filters, that a probe's layouts have to explain too."""

    compiled: Compiled
    filters: Sequence[Filter]

    def of(self, segment: int, buffer: Buffer, piece: Piece) -> bool:
        twins = [b for b in self.compiled.parameters if (b.name, b.size) == (buffer.name, buffer.size)]
        values = self.filters[segment].values[piece.box.slices]
        return len(twins) == 1 and not _wrong(piece, values, self.compiled.contents(twins[0])).size


def search(
    compiled: Compiled, filters: Sequence[Filter], chosen: Sequence[int], proof: Proof | None = None
) -> list[Entry]:
    """The entries of the filters of these numbers; the others are looked for because they may look the same."""
    buffers = [(b, compiled.contents(b)) for b in compiled.parameters if b.int8]
    found: dict[int, dict[int, list[Piece]]] = {f.segment: {} for f in filters}  # segment -> buffer id -> fits
    for f, (buffer, data) in itertools.product(filters, buffers):
        boxes = _named_box(buffer.name, f.dims) or [Box.whole(f.dims)]
        fits = [piece for box in boxes for piece in fitting(f, box, data)]
        if fits:
            found[f.segment][buffer.id] = fits
    taken = {b for fits in found.values() for b in fits}
    for f in filters:  # slices that no name tells of
        if not found[f.segment]:
            for buffer, data in buffers:
                if buffer.id not in taken and data.size < f.values.size:
                    fits = [piece for box in _slices(f.dims, data.size) for piece in fitting(f, box, data)]
                    if fits:
                        found[f.segment][buffer.id] = fits
    entries = []
    by_id = {b.id: b for b, _ in buffers}
    for f in (filters[k] for k in chosen):
        held = {by_id[k]: _settled(compiled, by_id[k], f, fits, proof) for k, fits in found[f.segment].items()}
        rivals = [g for g in filters if g is not f and found[g.segment].keys() & found[f.segment].keys()]
        if rivals:
            shared = next(by_id[k] for k in found[f.segment] if k in found[rivals[0].segment])
            raise Ambiguous(
                f"filters '{f.name}' and '{rivals[0].name}' are the same bytes, so it cannot be told which of them "
                f"buffer '{shared.name}' holds: {_PROBE}."
            )
        pieces = list(held.values())
        if not covers(pieces, f.dims):
            raise UserError(_unexplained(f, held, buffers, taken))
        placed = [Entry(f.segment, b, p) for b, p in held.items()]
        entries += sorted(placed, key=lambda e: (e.piece.box.start, e.buffer.address))
    return entries


_PROBE = (
    "compile the probe of this network (the file beside it whose name ends in .probe.tflite: the same shapes, random "
    "weights) in the same way and give its directory with --compiled-probe"
)


def _settled(compiled: Compiled, buffer: Buffer, f: Filter, fits: list[Piece], proof: Proof | None) -> Piece:
    """The one fit, or the one that another build or the network source decides for."""
    contents = compiled.contents(buffer)
    if proof and len(fits) > 1:
        fits = [p for p in fits if proof.of(f.segment, buffer, p)] or fits
    if len(fits) > 1 and (hint := compiled.hint(buffer)):
        told = [p for p in _told(fits[0], buffer.size, hint) if not _wrong(p, f.values[p.box.slices], contents).size]
        if told and all(np.array_equal(told[0].offsets(), p.offsets()) for p in told):
            return told[0]
    if len(fits) > 1:
        raise Ambiguous(
            f"the weights of '{f.name}' in buffer '{buffer.name}' repeat, so they fit both as {fits[0]} and as "
            f"{fits[1]}, which differ for other weights: {_PROBE}."
        )
    return fits[0]


def _told(piece: Piece, size: int, hint: Convolution) -> list[Piece]:
    """The same box in the layouts that the network source allows."""
    no, _, _, ni = piece.box.dims
    outputs, inputs = min(hint.kernels, no), min(hint.depth, ni)
    layouts: list[Layout] = [Blocked(outputs, inputs), Inflated(hint.depth)]
    if hint.deep:
        layouts = [Deep(outputs, inputs, group, multiple) for group in GROUPS for multiple in (1, *MULTIPLES)]
    pieces = [Piece(piece.filter, piece.box, layout) for layout in layouts if valid(layout, piece.box.dims)]
    return [p for p in pieces if p.size == size]


def _named_box(name: str, dims: Dims) -> list[Box]:
    """The box in a name `..._submask_<o0>_<i0>_<row0>_<col0>_<O>_<I>_<rows>_<cols>_<n>`, or nothing."""
    numbers = re.search(r"_submask_" + "_".join([r"(\d+)"] * 8), name)
    if not numbers:
        return []
    o0, i0, h0, w0, outputs, inputs, rows, columns = map(int, numbers.groups())
    box = Box((o0, h0, w0, i0), (outputs, rows, columns, inputs))
    return [box] if box.inside(dims) else []


def _slices(dims: Dims, size: int) -> Iterator[Box]:
    """Boxes of so many weights that are cut along one axis."""
    for axis in range(4):
        rest = math.prod(dims) // dims[axis]
        extent = size // rest
        if extent * rest == size and 1 <= extent < dims[axis]:
            for first in range(dims[axis] - extent + 1):
                start, inner = [0, 0, 0, 0], list(dims)
                start[axis], inner[axis] = first, extent
                yield Box(tuple(start), tuple(inner))


def fitting(f: Filter, box: Box, data: np.ndarray) -> list[Piece]:
    """The layouts of a box of a filter that explain a buffer, int8 [size]: all its bytes, weights and zeros.

    One piece a permutation, plain ones first, and no more than _FITS: more than one means that the weights repeat.
    """
    if not box.inside(f.dims):
        return []
    values = np.ascontiguousarray(f.values[box.slices])
    if data.size < values.size or not np.array_equal(_histogram(values, data.size), _histogram(data, data.size)):
        return []
    fits: dict[bytes, Piece] = {}
    for grid in candidates(box.dims, data.size):
        for layout in _sift(grid, box.dims, values, data):
            piece = Piece(f.dims, box, layout)
            offsets = piece.offsets()
            if np.array_equal(data[offsets], values):
                fits.setdefault(hashlib.sha256(offsets.tobytes()).digest(), piece)
            if len(fits) == _FITS:
                return list(fits.values())
    return list(fits.values())


def _histogram(values: np.ndarray, size: int) -> np.ndarray:
    """How often each value occurs, with zeros up to size bytes."""
    counts = np.bincount(values.ravel().view(np.uint8), minlength=256)
    counts[0] += size - values.size
    return counts


def candidates(dims: Dims, size: int) -> Iterator[Layout]:
    """Layouts of a box that fill a buffer of so many bytes; their parameters are arrays of equal length.

    Most of what is the same permutation as another is left out: blocks as deep as the filter, groups larger than a
    frame, frames of one group or of whole groups where nothing separates the frames.
    """
    no, nh, nw, ni = dims
    live = math.prod(dims)
    if size == live:
        yield Plain()
    if no == 1 and size % live == 0:
        yield Inflated(np.array([size // live]))
    if nh == nw == 1:
        outputs, inputs = (p.ravel()[::-1] for p in np.mgrid[1 : no + 1, 1 : ni + 1])  # large frames first
        one_group = np.where(outputs <= 8, 8, np.where(outputs <= 16, 16, 32))  # a frame that is one group
        for multiple in (1,) if size == live else MULTIPLES:
            fills = Deep(outputs, inputs, 1, multiple).size(dims) == size
            for group in GROUPS:
                keep = fills & ((outputs > group) | (one_group == group))
                if multiple == 1:  # no zeros between frames
                    whole_groups = (inputs == ni) & (outputs < no) & (outputs % group == 0)
                    keep &= (group > 1) & (outputs > 1) & ((outputs > group) | (inputs == ni)) & ~whole_groups
                if keep.any():
                    yield Deep(outputs[keep], inputs[keep], group, multiple)
    if size == live and ni > 1:
        outputs, inputs = (p.ravel() for p in np.mgrid[1 : no + 1, 1:ni])
        keep = (outputs > 1) | (nh * nw > 1)
        yield Blocked(outputs[keep], inputs[keep])


def parameter_arrays(grid: Layout) -> tuple[np.ndarray, ...]:
    """The parameters of a grid of layouts, each an array of one length; () where the family has none."""
    return np.broadcast_arrays(*(np.atleast_1d(v) for v in vars(grid).values())) if vars(grid) else ()


def _sift(grid: Layout, dims: Dims, values: np.ndarray, data: np.ndarray) -> Iterable[Layout]:
    """Those of a grid of layouts that put a sample of weights, and few zeros, where they are."""
    parameters = parameter_arrays(grid)
    if not parameters:
        return [grid]
    rng = np.random.default_rng(0)
    for flat in rng.permutation(values.size)[:_SAMPLES]:
        o, h, w, i = map(int, np.unravel_index(flat, dims))
        keep = data[type(grid)(*parameters).at(dims, o, h, w, i)] == values[o, h, w, i]
        parameters = tuple(p[keep] for p in parameters)
        if len(parameters[0]) <= 1:
            break
    return (type(grid)(*map(int, p)) for p in zip(*parameters, strict=True))


# --- what is refused ----------------------------------------------------------------------------------------------


def _unexplained(
    f: Filter, held: dict[Buffer, Piece], buffers: list[tuple[Buffer, np.ndarray]], taken: set[int]
) -> str:
    """The sentence for a filter that its buffers do not hold exactly once, with the nearest other explanation."""
    text = f"the weights of '{f.name}', {'x'.join(map(str, f.dims))}, are not explained: "
    boxes = [piece.box for piece in held.values()]
    for (a, p), (b, q) in itertools.combinations(held.items(), 2):
        if p.box.overlaps(q.box):
            return (
                text + f"buffers '{a.name}' and '{b.name}' both hold them ({p}; {q}), and a change of one would not "
                "reach the other."
            )
    best: tuple[int, str] | None = None
    for buffer, data in buffers:
        if buffer.id in taken:
            continue
        for box in _named_box(buffer.name, f.dims) or [Box.whole(f.dims)]:
            if any(box.overlaps(b) for b in boxes):
                continue
            near = _nearest(f, box, data)
            if near and (best is None or near[0] < best[0]):
                best = near[0], f"{near[1]} in buffer '{buffer.name}' (at {buffer.address:#x})"
    if held:
        text += "only " + " and ".join(f"{p} in buffer '{b.name}'" for b, p in held.items()) + " fit; "
    if best is None:
        return text + "no other parameter buffer has a size that could hold them, so one is missing."
    return text + "nearest is " + best[1] + ": was this .tflite compiled, and is the compiler's version known?"


def _nearest(f: Filter, box: Box, data: np.ndarray) -> tuple[int, str] | None:
    """The layout with fewest wrong bytes: their number, and the layout in words."""
    values = f.values[box.slices]
    best: tuple[int, Piece] | None = None
    for grid in candidates(box.dims, data.size):
        parameters = parameter_arrays(grid)
        layouts = [grid]
        if parameters:
            score = np.zeros(len(parameters[0]), np.int64)
            for flat in np.random.default_rng(1).permutation(values.size)[:48]:
                o, h, w, i = map(int, np.unravel_index(flat, box.dims))
                score += data[type(grid)(*parameters).at(box.dims, o, h, w, i)] == values[o, h, w, i]
            top = np.argsort(-score, kind="stable")[:4]
            layouts = [type(grid)(*(int(p[k]) for p in parameters)) for k in top]
        for layout in layouts:
            piece = Piece(f.dims, box, layout)
            wrong = len(_wrong(piece, values, data))
            if best is None or wrong < best[0]:
                best = wrong, piece
    if best is None:
        return None
    wrong, piece = best
    where = int(_wrong(piece, values, data)[0])
    kind = "a byte that has to be zero" if where in piece.zeros() else "a weight"
    return wrong, f"{piece} with {wrong} of {data.size} bytes wrong, first {kind} at offset {where}"


def _wrong(piece: Piece, values: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Offsets of the bytes of a buffer, int8 [size], that a piece with these weights does not explain, ascending."""
    expected = np.zeros(data.size, np.int8)
    piece.scatter(expected, values)
    return np.flatnonzero(expected != data)


def _transfer(compiled: Compiled, f: Filter, entry: Entry) -> Entry:
    """An entry of the probe's map, proved on this build."""
    what = f"the probe's layout of '{f.name}', {entry.piece} in buffer '{entry.buffer.name}',"
    buffers = [b for b in compiled.parameters if b.name == entry.buffer.name]
    if len(buffers) != 1 or buffers[0].size != entry.buffer.size:
        raise UserError(f"{what} has no counterpart in {compiled.folder}: compile both with the same options.")
    data = compiled.contents(buffers[0])
    wrong = _wrong(entry.piece, f.values[entry.piece.box.slices], data)
    if wrong.size:
        raise UserError(
            f"{what} does not explain {compiled.folder}: {wrong.size} of {data.size} bytes are wrong, the first at "
            f"offset {wrong[0]}; compile both with the same options."
        )
    return Entry(f.segment, buffers[0], entry.piece)


def _check_disjoint(compiled: Compiled, entries: list[Entry]) -> None:
    """No byte of a filter's buffer belongs to another parameter buffer too."""
    ours = {e.buffer.id for e in entries}
    before: list[Buffer] = []
    for b in sorted(compiled.parameters, key=lambda b: b.address):
        before = [a for a in before if b.address < a.end]
        for a in before:
            if a.id in ours or b.id in ours:
                raise UserError(
                    f"parameter buffers '{a.name}' and '{b.name}' overlap at {b.address:#x}: a change of one changes "
                    f"the other; {compiled.folder} is damaged or of an unknown form."
                )
        before.append(b)


def _check_gaps(compiled: Compiled, pools: set[int]) -> None:
    """What lies between the parameters of the pools in question is zero."""
    for pool in (compiled.pools[k] for k in sorted(pools)):
        data = compiled.memory.get(pool.address)
        if data is None:
            continue
        rest = data != 0
        for b in compiled.parameters:
            rest[max(0, b.address - pool.address) : max(0, b.end - pool.address)] = False
        if rest.any():
            at = int(np.argmax(rest))
            raise UserError(
                f"byte {at} of pool '{pool.name}' ({pool.address + at:#x}) is {data[at]} and belongs to no parameter "
                "buffer, where only zeros are expected: the memory file and the list of buffers do not match."
            )
