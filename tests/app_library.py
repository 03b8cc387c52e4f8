"""The C app as a shared library, for tests that compare its functions with their numpy references.

ZO_SANITIZE=address,undefined in the environment builds library and boards with sanitizers (test_sanitizers.py).
"""

from __future__ import annotations

import ctypes as ct
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from tiny_model import tiny_image

from pipeline.targets.boards import build_native, open_board

SANITIZE = os.environ.get("ZO_SANITIZE", "")


class Segment(ct.Structure):
    _fields_ = (("offset", ct.c_uint32), ("count", ct.c_uint32))


class Weights(ct.Structure):
    _fields_ = (
        ("base", ct.c_void_p),
        ("segments", ct.POINTER(Segment)),
        ("segment_count", ct.c_uint32),
        ("limit", ct.c_int32),
        ("layout", ct.c_void_p),
    )


class Update(ct.Structure):
    _fields_ = (
        ("rounding", ct.c_int),
        ("rounding_seed", ct.c_uint64),
        ("directions", ct.c_uint32),
        ("seeds", ct.POINTER(ct.c_uint64)),
        ("coefficients", ct.POINTER(ct.c_int32)),
    )


class UpdateResult(ct.Structure):
    _fields_ = (("changed", ct.c_uint32), ("at_rail", ct.c_uint32))


class Status(ct.Structure):
    _fields_ = (("code", ct.c_int), ("a", ct.c_uint32), ("b", ct.c_uint32))


class Layout(ct.Structure):
    _fields_ = (("entries", ct.c_void_p), ("count", ct.c_uint32))


class Nart(ct.Structure):
    _fields_ = (
        ("crc", ct.c_uint32),
        ("network", ct.c_uint32),
        ("pools", ct.c_void_p),
        ("pool_count", ct.c_uint32),
        ("layout", Layout),
    )


class LossTable(ct.Structure):
    _fields_ = (
        ("classes", ct.c_uint32),
        ("scale_q24", ct.c_uint32),
        ("reserved", ct.c_uint32 * 2),
        ("exp", ct.c_uint32 * 256),
    )


@contextmanager
def kernel_set(name: str) -> Iterator[None]:
    """Boards opened meanwhile run these kernels, or lesser ones where the machine has not got them."""
    before = os.environ.get("ZO_KERNELS")
    os.environ["ZO_KERNELS"] = name
    try:
        yield
    finally:
        del os.environ["ZO_KERNELS"]
        if before is not None:
            os.environ["ZO_KERNELS"] = before


@cache
def kernel_sets() -> tuple[str, ...]:
    """The kernel sets that this machine runs, the fastest first; the last is "portable"."""
    found = []
    for name in ("amx", "vnni", "avx2", "portable"):
        with kernel_set(name):
            board = open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)
        if board.info.runner == f"int8 {name}":
            found.append(name)
        board.close()
    return tuple(found)


@cache
def library() -> ct.CDLL:
    lib = ct.CDLL(str(build_native("zo_app", sanitize=SANITIZE)))
    lib.philox4x32.argtypes = (ct.c_uint64, ct.c_uint32, ct.c_uint32, ct.POINTER(ct.c_uint32))
    lib.zo_perturb.argtypes = (ct.POINTER(Weights), ct.c_uint64, ct.c_int)
    lib.zo_apply_update.argtypes = (ct.POINTER(Weights), ct.POINTER(Update))
    lib.zo_apply_update.restype = UpdateResult
    lib.zo_weights_crc.argtypes = (ct.POINTER(Weights),)
    lib.zo_weights_crc.restype = ct.c_uint32
    lib.zo_sample_loss.argtypes = (ct.POINTER(LossTable), ct.c_void_p, ct.c_uint32)
    lib.zo_sample_loss.restype = ct.c_uint32
    lib.zo_argmax.argtypes = (ct.c_void_p, ct.c_uint32)
    lib.zo_argmax.restype = ct.c_uint32
    lib.nart_open.argtypes = (ct.POINTER(Nart), ct.c_void_p, ct.c_uint32, ct.POINTER(Segment), ct.c_uint32)
    lib.nart_open.restype = Status
    lib.crc32_update.argtypes = (ct.c_uint32, ct.c_char_p, ct.c_size_t)
    lib.crc32_update.restype = ct.c_uint32
    return lib


class DeviceWeights:
    """int8 weights scattered over segments of a larger memory, as an image holds them.

    gaps: bytes before each segment; counts: weights of each segment. The memory between them is checked not to change.
    """

    def __init__(self, weights: np.ndarray, counts: list[int], gaps: list[int], mu_max: int):
        assert sum(counts) == weights.size
        offsets = np.cumsum(np.array(gaps)) + np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._spans = [(int(o), c) for o, c in zip(offsets, counts, strict=True)]
        self.memory = np.full(int(offsets[-1]) + counts[-1] + 5, 0x55, np.int8)
        at = 0
        for offset, count in self._spans:
            self.memory[offset : offset + count] = weights[at : at + count]
            at += count
        self._segments = (Segment * len(counts))(*self._spans)
        self.struct = Weights(self.memory.ctypes.data, self._segments, len(counts), 127 - mu_max)

    def read(self) -> np.ndarray:
        inside = np.zeros(self.memory.size, bool)
        for offset, count in self._spans:
            inside[offset : offset + count] = True
        assert (self.memory[~inside] == 0x55).all(), "memory between the segments was written"
        return np.concatenate([self.memory[o : o + c] for o, c in self._spans])

    def perturb(self, seed: int, step: int) -> None:
        library().zo_perturb(self.struct, seed, step)

    def update(self, stochastic: bool, rounding_seed: int, seeds: list[int], coefficients: list[int]) -> UpdateResult:
        q = len(seeds)
        request = Update(int(stochastic), rounding_seed, q, (ct.c_uint64 * q)(*seeds), (ct.c_int32 * q)(*coefficients))
        return library().zo_apply_update(self.struct, request)

    def crc(self) -> int:
        return library().zo_weights_crc(self.struct)
