"""TFLM's fixed-point arithmetic on Python integers: what the converter computes for the device, bit for bit.

Tables are int8 [256], the output for the inputs -128 to 127. Sources are named as in docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_INT16, _INT32 = (1 << 15) - 1, (1 << 31) - 1


def round_away(x: float) -> int:
    """std::round: to nearest, ties away from zero."""
    return math.floor(x + 0.5) if x >= 0 else math.ceil(x - 0.5)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """(Q31 multiplier, left shift): tflite::QuantizeMultiplier, quantization_util.cc."""
    if real == 0.0:
        return 0, 0
    fraction, shift = math.frexp(real)
    q = round_away(fraction * (1 << 31))
    if q == 1 << 31:
        q //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    return q, shift


def doubling_high_mul(a: int, b: int, bits: int = 31) -> int:
    """gemmlowp::SaturatingRoundingDoublingHighMul: a * b / 2^bits to nearest, ties up (it never saturates here)."""
    return (a * b + (1 << (bits - 1))) >> bits


def rounding_shift_right(x: int, shift: int) -> int:
    """gemmlowp::RoundingDivideByPOT: to nearest, ties away from zero."""
    mask = (1 << shift) - 1
    return (x >> shift) + ((x & mask) > (mask >> 1) + (x < 0))


def _rounding_shift_right16(x: int, shift: int) -> int:
    """The same on int16, whose mask is -1 from 16 bits on: the result is then 1 or -1, never 0."""
    mask = (1 << shift) - 1 if shift < 16 else -1
    return (x >> shift) + ((x & mask) > (mask >> 1) + (x < 0))


def rescale(x: int, multiplier: int, shift: int) -> int:
    """tflite::MultiplyByQuantizedMultiplier with its two roundings, kernels/internal/common.h."""
    return rounding_shift_right(doubling_high_mul(x << max(shift, 0), multiplier), max(-shift, 0))


def _saturated(x: int, limit: int) -> int:
    return max(-limit - 1, min(limit, x))


def _table(function: Callable[[int], int]) -> np.ndarray:
    return np.array([_saturated(function(q), 127) for q in range(-128, 128)], np.int8)


# -- gemmlowp's fixedpoint.h. Numbers are Q0.31 unless said otherwise. -------------------------------------------------


def _exp_small(a: int) -> int:
    """exp(a) for a in [-1/4, 0): Taylor series around -1/8."""
    exp_minus_eighth, one_third = 1895147668, 715827883
    x = a + (1 << 28)
    x2 = doubling_high_mul(x, x)
    x3, x4 = doubling_high_mul(x2, x), doubling_high_mul(x2, x2)
    tail = doubling_high_mul(rounding_shift_right(x4, 2) + x3, one_third) + x2
    return exp_minus_eighth + doubling_high_mul(exp_minus_eighth, x + rounding_shift_right(tail, 1))


def _exp_negative(a: int, integer_bits: int) -> int:
    """exp(a) for a <= 0 with so many integer bits: the fraction by series, the rest by one factor a bit."""
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)  # exp(-1/4), ... exp(-16)
    if a == 0:
        return _INT32
    quarter = 1 << (31 - integer_bits - 2)
    fraction = (a & (quarter - 1)) - quarter
    result, rest = _exp_small(fraction << integer_bits), fraction - a
    for i, factor in enumerate(factors[: integer_bits + 2]):
        if rest & quarter << i:
            result = doubling_high_mul(result, factor)
    return result


def _reciprocal(a: int) -> int:
    """2 / (1 + a) in Q2.29 for a in [0, 1]: Newton-Raphson division."""
    half = (a + _INT32 + 1) // 2
    x = 1515870810 + doubling_high_mul(half, -1010580540)  # 48/17 - 32/17 half
    for _ in range(3):
        error = (1 << 29) - doubling_high_mul(half, x)
        x += _saturated(doubling_high_mul(x, error) << 2, _INT32)
    return x


def _logistic(a: int) -> int:
    """a in Q4.27."""
    if a == 0:
        return 1 << 30
    positive = _saturated(_reciprocal(_exp_negative(-abs(a), 4)) << 1, _INT32)
    return positive if a > 0 else _INT32 - positive


def _tanh(a: int) -> int:
    """a in Q4.27; twice that is the same number in Q5.26."""
    if a == 0:
        return 0
    positive = _saturated((_reciprocal(_exp_negative(-abs(a), 5)) - (1 << 29)) << 2, _INT32)
    return positive if a > 0 else -positive


# -- tables ------------------------------------------------------------------------------------------------------------


def _sigmoid_table(scale: float, zero_point: int, function: Callable[[int], int], fraction: int, low: int):
    real = scale * (1 << 27)
    significand, shift = math.frexp(real)
    multiplier = round_away(significand * (1 << 31))
    if not 0 <= shift <= 62:
        raise ValueError("an input scale so coarse or so fine")
    radius = (15 << 27) >> shift  # 0 for scales of 15 and more

    def value(q: int) -> int:
        x = q - zero_point
        if x <= -radius:
            return -128
        if x >= radius:
            return 127
        return rounding_shift_right(function(rescale(x, multiplier, shift)), 31 - fraction) + low

    return _table(value)


def logistic_table(scale: float, zero_point: int) -> np.ndarray:
    """Logistic, reference/integer_ops/logistic.h; output scale 1/256, zero point -128."""
    return _sigmoid_table(scale, zero_point, _logistic, 8, -128)


def tanh_table(scale: float, zero_point: int) -> np.ndarray:
    """Tanh, reference/integer_ops/tanh.h; output scale 1/128, zero point 0."""
    return _sigmoid_table(scale, zero_point, _tanh, 7, 0)


def leaky_relu_table(
    scale: np.float32, zero_point: int, out_scale: np.float32, out_zero: int, alpha: float
) -> np.ndarray:
    """QuantizeLeakyRelu, reference/leaky_relu.h; both multipliers come from quotients in float32."""
    identity = quantize_multiplier(float(scale / out_scale))
    slope = quantize_multiplier(float(scale * np.float32(alpha) / out_scale))
    return _table(
        lambda q: out_zero + rescale(q - zero_point, *(identity if q >= zero_point else slope)),
    )


def hard_swish_table(scale: np.float32, zero_point: int, out_scale: np.float32, out_zero: int) -> np.ndarray:
    """HardSwish, reference/hard_swish.h: 16-bit arithmetic on the input times 128."""
    hires = np.float32(1 / 128) * scale
    out_multiplier, out_shift = _multiplier16(float(hires / out_scale))
    reluish_multiplier, reluish_shift = _multiplier16(float(hires / (np.float32(3) / np.float32(32768))))
    if out_shift > 0 or reluish_shift > 30:
        raise ValueError("scales so far apart")

    def value(q: int) -> int:
        x = (q - zero_point) << 7
        reluish = x
        if reluish_shift > 0:
            reluish = _saturated(reluish << (reluish_shift - 1), _INT16)
        reluish = doubling_high_mul(reluish, reluish_multiplier, 15)
        if reluish_shift > 0:
            reluish = _saturated(reluish << 1, _INT16)
        else:
            reluish = _rounding_shift_right16(reluish, -reluish_shift)
        reluish = (reluish + (1 << 15)) >> 1  # of [-1, 1], the part that relu6(x + 3) / 6 has of [0, 1]
        product = reluish * doubling_high_mul(x, out_multiplier, 15)
        toward_zero = abs(product) >> 15  # SaturatingDoublingHighMul truncates
        shifted = _rounding_shift_right16(toward_zero if product >= 0 else -toward_zero, -out_shift)
        return shifted + out_zero

    return _table(value)


def _multiplier16(real: float) -> tuple[int, int]:
    """QuantizeMultiplier, then DownScaleInt32ToInt16Multiplier, kernels/internal/common.h."""
    multiplier, shift = quantize_multiplier(real)
    return min((multiplier + (1 << 15)) >> 16, _INT16), shift
