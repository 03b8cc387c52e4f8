/* TFLite's fixed-point rescaling with its double rounding (kernels/internal/common.h, gemmlowp fixedpoint.h).
 *
 * SaturatingRoundingDoublingHighMul(x, m) rounds x * m / 2^31 to nearest, ties up; its saturation needs two INT32_MIN
 * and multipliers are never negative here. RoundingDivideByPOT rounds to nearest, ties away from zero. */
#ifndef RUNNERS_INT8_REQUANTIZE_H
#define RUNNERS_INT8_REQUANTIZE_H

#include <stdint.h>

static inline int32_t doubling_high_mul(int32_t x, int32_t multiplier)
{
    return (int32_t)(((int64_t)x * multiplier + (1 << 30)) >> 31);
}

static inline int32_t rounding_shift_right(int32_t x, int32_t shift)
{
    int32_t mask = (int32_t)((1u << shift) - 1);
    int32_t threshold = (mask >> 1) + (x < 0);
    return (x >> shift) + ((x & mask) > threshold);
}

/* tflite::MultiplyByQuantizedMultiplier; shift > 0 is to the left (and wraps, as there). */
static inline int32_t rescale(int32_t x, int32_t multiplier, int32_t shift)
{
    int32_t left = shift > 0 ? shift : 0;
    int32_t right = shift > 0 ? 0 : -shift;
    return rounding_shift_right(doubling_high_mul((int32_t)((uint32_t)x << left), multiplier), right);
}

static inline int8_t clamp_int8(int32_t x, int32_t min, int32_t max)
{
    return (int8_t)(x < min ? min : x > max ? max : x);
}

#endif
