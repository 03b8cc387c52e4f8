#include "runners/int8/mve/shallow.h"

/* Dot products of 16 bytes with four filters. */
static inline int32x4_t dot_4(const int8_t *in, int8x16_t w0, int8x16_t w1, int8x16_t w2, int8x16_t w3)
{
    int32x4_t products;
    int32_t s0, s1, s2, s3;
    __asm("vldrb.8 %q[p], %[in]\n"
          "vmladav.s8 %[s0], %q[p], %q[w0]\n"
          "vmladav.s8 %[s1], %q[p], %q[w1]\n"
          "vmladav.s8 %[s2], %q[p], %q[w2]\n"
          "vmladav.s8 %[s3], %q[p], %q[w3]\n"
          "vmov %e[p], %[s0], %[s1]\n"
          "vmov %f[p], %[s2], %[s3]\n"
          : [p] "=&w"(products), [s0] "=&Te"(s0), [s1] "=&Te"(s1), [s2] "=&Te"(s2), [s3] "=&Te"(s3)
          : [in] "Ux"(*(const int8x16_t *)in), [w0] "w"(w0), [w1] "w"(w1), [w2] "w"(w2), [w3] "w"(w3));
    return products;
}

static inline void quad(const struct filters *f, const int8_t *in, uint32_t step, uint32_t pixels, uint32_t at,
                        int8_t *out, bool clamped)
{
    mve_pred16_t taps = vctp8q(f->depth);
    const int8_t *weights = f->weights + at * f->stride;
    int8x16_t w0 = vldrbq_z_s8(weights, taps), w1 = vldrbq_z_s8(weights + f->stride, taps);
    int8x16_t w2 = vldrbq_z_s8(weights + 2 * f->stride, taps), w3 = vldrbq_z_s8(weights + 3 * f->stride, taps);
    int32x4_t sums = {vaddvq_s8(w0), vaddvq_s8(w1), vaddvq_s8(w2), vaddvq_s8(w3)};
    int32x4_t bias_at = vldrwq_s32(f->bias + (f->bias_step ? at : 0));
    int32x4_t bias = vmlaq_n_s32(bias_at, sums, f->minus_zero);
    int32x4_t multiplier = vldrwq_s32(f->multipliers + at), shift = vldrwq_s32(f->shifts + at);
    int32x4_t min = vdupq_n_s32(f->min), max = vdupq_n_s32(f->max);
    const int32_t zero = f->zero;
    const uint32_t channels = f->channels;
    out += at;
    for (; pixels; pixels--, in += step, out += channels) {
        int32x4_t acc = vaddq_s32(dot_4(in, w0, w1, w2, w3), bias);
        acc = vaddq_n_s32(mve_rescale(acc, multiplier, shift, clamped), zero);
        vstrbq_s32(out, vminq_s32(vmaxq_s32(acc, min), max));
    }
}

void shallow_row(const struct filters *f, const int8_t *in, uint32_t step, uint32_t pixels, int8_t *out)
{
    bool clamped = f->min >= f->zero;
    for (uint32_t c = 0; c < f->channels; c += 4) {
        /* the last four channels may be some of the four before: they are computed twice */
        uint32_t at = c + 4 <= f->channels ? c : f->channels - 4;
        if (clamped)
            quad(f, in, step, pixels, at, out, true);
        else
            quad(f, in, step, pixels, at, out, false);
    }
}
