"""Random bits: the counter-based generator Philox4x32-10, and the streams that training draws from it.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), and its library Random123,
whose known-answer vectors stand in tests/test_zo_philox.py. Counter-based: the bits of weight i depend on (seed, i)
alone, so any slice, order or memory layout sees the same ones and nothing has to be stored.

Streams. With the seed of one direction (or of one rounding) as the key, counter = (block, stream, 0, 0):
stream 0 gives signs (one bit a weight), stream 1 rounding bits (16 bits a weight). With the seed of the run as the key:
stream 2 gives the seeds of directions, stream 3 the seeds of roundings, stream 4 the order of the samples.
"""

from __future__ import annotations

import numpy as np

SIGNS, ROUNDING, DIRECTION_SEEDS, ROUNDING_SEEDS, ORDER = range(5)

_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1, added to the key after every round
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: np.ndarray, key: int) -> np.ndarray:
    """Ten rounds of Philox4x32.

    Args:
        counter: uint32 [..., 4].
        key: 64 bits; the low 32 are key word 0.

    Returns:
        uint32 [..., 4].
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = _MULTIPLY[0] * c0, _MULTIPLY[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _WORD,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def _words(key: int, first_block: int, blocks: int, second: int, third: int) -> np.ndarray:
    """The output words, uint32 [4 * blocks], of counters (first_block + b, second, third, 0)."""
    counter = np.zeros((blocks, 4), dtype=np.uint32)
    counter[:, 0] = np.arange(first_block, first_block + blocks, dtype=np.uint32)
    counter[:, 1] = second
    counter[:, 2] = third
    return philox4x32(counter, key).reshape(-1)


def _stream(seed: int, first: int, count: int, stream: int, per_block: int, unpack) -> np.ndarray:
    """Elements first .. first + count - 1 of a stream that yields per_block elements from every counter."""
    block, skip = divmod(first, per_block)
    blocks = -(-(skip + count) // per_block)
    return unpack(_words(seed, block, blocks, stream, 0).astype("<u4"))[skip : skip + count]


def sign_bits(seed: int, first: int, count: int) -> np.ndarray:
    """One bit a weight, uint8 [count] of 0 and 1: weight i has bit i%32 (0 the LSB) of word i/32%4 of block i/128."""
    return _stream(seed, first, count, SIGNS, 128, lambda words: np.unpackbits(words.view(np.uint8), bitorder="little"))


def signs(seed: int, first: int, count: int) -> np.ndarray:
    """The direction z of a seed, int8 [count] of -1 and +1 (a set bit is +1), for weights first, first + 1, ..."""
    return (sign_bits(seed, first, count) * np.uint8(2) - np.uint8(1)).view(np.int8)


def rounding_bits(seed: int, first: int, count: int) -> np.ndarray:
    """Sixteen bits a weight, uint16 [count]: weight i has half i%8 of block i/8, the low half of a word first."""
    return _stream(seed, first, count, ROUNDING, 8, lambda words: words.view("<u2")).astype(np.uint16)


def derive_seed(run_seed: int, step: int, direction: int, stream: int) -> int:
    """A 64-bit seed of a step: words 0 and 1, the low word first, of counter (step, direction, stream, 0)."""
    low, high = _words(run_seed, step, 1, direction, stream)[:2]
    return int(high) << 32 | int(low)


def direction_seeds(run_seed: int, step: int, q: int) -> tuple[int, ...]:
    """The seeds of the q directions of a step; they do not depend on q."""
    return tuple(derive_seed(run_seed, step, j, DIRECTION_SEEDS) for j in range(q))


def rounding_seed(run_seed: int, step: int) -> int:
    """The seed of the rounding bits of a step."""
    return derive_seed(run_seed, step, 0, ROUNDING_SEEDS)


def epoch_order(run_seed: int, epoch: int, n: int) -> np.ndarray:
    """The order of n samples in an epoch, int64 [n]: the stable sort of the samples by a random word each.

    Sample i has word i%4 of Philox(run seed, counter (i/4, epoch, 4, 0)).
    """
    words = _words(run_seed, 0, -(-n // 4), epoch, ORDER)[:n]
    return np.argsort(words, kind="stable")
