"""The map of weights in C: what its reader accepts, and that walks through it reach weights and nothing else."""

from __future__ import annotations

import ctypes as ct
import itertools
import random
import struct
import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from app_library import DeviceWeights, Nart, Segment, Status, Update, Weights, library
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_builds import MIXES, bytes_in_order, make_build, network
from test_neural_art import pieces

from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.neural_art import section
from converters.neural_art.layouts import Box, Piece
from converters.neural_art.section import SectionEntry

# -- the reader in C is the reader in Python ---------------------------------------------------------------------------


def verdict_in_c(data: bytes, counts: list[int]) -> Status:
    words = (ct.c_uint8 * (len(data) + 8))(*data)
    segments = (Segment * max(1, len(counts)))(*((0, c) for c in counts))
    return library().nart_open(Nart(), words, len(data), segments, len(counts))


def verdict_in_python(data: bytes, counts: list[int]) -> str:
    try:
        section.unpack(data, counts)
    except UserError as error:
        return str(error)
    return ""


EDGES = [0, 1, 2, 3, 7, 8, 16, 63, 255, 256, 257, 2**15, 2**16, 2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]


def hostile(rng: random.Random, data: bytes, counts: list[int]) -> tuple[bytes, list[int]]:
    """A section with a few words, entries or sizes changed, most of them by little."""
    words, counts = list(struct.unpack(f"<{len(data) // 4}I", data)), list(counts)
    entries_at = section.HEADER_WORDS + 4 * words[1]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(words) if rng.random() < 0.8 else min(len(words), entries_at + 20))
        kind = rng.randrange(8)
        if kind <= 2:
            words[at] = (words[at] + rng.choice([-1, 1, -16, 16, 2, -8])) % 2**32
        elif kind == 3:
            words[at] = rng.choice(EDGES)
        elif kind == 4 and len(words) > entries_at + 40:  # words of two entries change places
            a, b = (entries_at + 20 * rng.randrange((len(words) - entries_at) // 20) for _ in range(2))
            word = rng.randrange(20)
            a, b = a + word, b + word
            if max(a, b) < len(words):
                words[a], words[b] = words[b], words[a]
        elif kind == 5:
            counts[rng.randrange(len(counts))] += rng.choice([-1, 1])
        elif kind == 6:
            words = words[: rng.randrange(len(words) + 1)] if rng.random() < 0.3 else words
            words = words or [0]
            entries_at = min(entries_at, len(words) - 1)
        else:  # an entry once more, or a pool
            start = section.HEADER_WORDS if rng.random() < 0.3 else entries_at
            step = 4 if start == section.HEADER_WORDS else 20
            words[start:start] = words[start : start + step]
            if len(words) > 2:
                words[1 if step == 4 else 2] += 1
    return struct.pack(f"<{len(words)}I", *(w % 2**32 for w in words)), counts


@pytest.mark.parametrize("mix", MIXES)
def test_hostile_sections_are_refused_in_c_as_in_python(mix, tmp_path):
    rng = random.Random(mix)
    build = make_build(tmp_path / "compiled", network("mobilenet_v2_035_32"), mix, solve=False)
    image = DeviceImage.read(build.image)
    whole = image.npu.section
    some = [e for e in whole.entries if e.segment < 6]  # small enough for thousands of cases
    verdicts: Counter[str] = Counter()
    for _ in range(1500):
        small = replace(whole, entries=tuple(some))
        data, counts = hostile(rng, section.pack(small), [s.count for s in image.segments[:6]])
        in_python, in_c = verdict_in_python(data, counts), verdict_in_c(data, counts)
        assert (in_c.code == 0) == (in_python == ""), (in_python, in_c.code, in_c.a, in_c.b)
        verdicts[f"check {in_c.b}" if in_c.code else "sound"] += 1
    assert verdicts["sound"] > 20 and len(verdicts) > 8, verdicts


# -- the walk ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    parts=st.lists(pieces(), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    rounding=st.booleans(),
    lead=st.integers(0, 70),
)
def test_the_walk_reaches_weights_and_nothing_else(parts, seed, rounding, lead):
    """Perturb, update and checksum through any layouts are those of the same weights in index order."""
    rng = np.random.default_rng(seed)
    counts = [piece.live for piece in parts]
    boxes = [Piece(p.box.dims, Box.whole(p.box.dims), p.layout) for p in parts]
    offsets = list(itertools.accumulate([lead, *(b.size + 3 for b in boxes)]))
    entries = [SectionEntry(n, 0, offsets[n], b) for n, b in enumerate(boxes)]
    packed = section.pack(section.Section(0, (section.SectionPool(0, offsets[-1], False),), tuple(entries)))
    weights = rng.integers(-123, 124, sum(counts), np.int8)
    plain = DeviceWeights(weights, counts, [0] * len(counts), 4)
    pool = np.full(offsets[-1], 0x55, np.int8)
    places = np.concatenate([offset + places_of(b) for offset, b in zip(offsets, boxes, strict=False)])
    pool[places] = weights

    words = (ct.c_uint8 * len(packed))(*packed)
    segments = (Segment * len(counts))(*((0, c) for c in counts))
    nart = Nart()
    assert library().nart_open(nart, words, len(packed), segments, len(counts)).code == 0
    mapped = Weights(pool.ctypes.data, segments, len(counts), 123, ct.addressof(nart.layout))
    seeds, coefficients = [seed, seed + 1], [90_000, -70_000]
    request = Update(int(rounding), seed, 2, (ct.c_uint64 * 2)(*seeds), (ct.c_int32 * 2)(*coefficients))
    for step in (3, -6):
        plain.perturb(seed, step)
        library().zo_perturb(mapped, seed, step)
        np.testing.assert_array_equal(pool[places], plain.read())
    plain.perturb(seed, 3)
    library().zo_perturb(mapped, seed, 3)
    expected = plain.update(rounding, seed, seeds, coefficients)
    found = library().zo_apply_update(mapped, request)
    assert (found.changed, found.at_rail) == (expected.changed, expected.at_rail)
    np.testing.assert_array_equal(pool[places], plain.read())
    assert library().zo_weights_crc(mapped) == plain.crc() == zlib.crc32(plain.read().tobytes())
    free = np.ones(pool.size, bool)
    free[places] = False
    assert (pool[free] == 0x55).all(), "a byte that holds no weight was written"


def places_of(piece: Piece) -> np.ndarray:
    """The byte of each weight of a whole filter, by loops."""
    numbers = np.arange(1, piece.live + 1).reshape(piece.box.dims)
    content = bytes_in_order(piece, numbers)
    places = np.empty(piece.live, np.int64)
    (at,) = np.nonzero(content)
    places[content[at] - 1] = at
    return places
