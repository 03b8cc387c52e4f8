/* CONV_2D and FULLY_CONNECTED with AVX512-VNNI: vpdpbusd wants unsigned inputs, so they are taken plus 128. */
#include <immintrin.h>

#include "runners/int8/x86/requantize_avx512.h"

static inline void requantize_rows(const struct plan *plan, const struct plan_op *op,
                                   const struct channel_constants *constants, const int32_t *acc, uint32_t rows,
                                   uint32_t first, uint32_t channels, int8_t *out, size_t stride)
{
    requantize_panel(plan, op, constants, acc, rows, first, channels, out, stride, false);
}

#define FLIP    0x80
#define READING VNNI_READING
#include "runners/int8/x86/product.h"

enum { ROWS = 8 }; /* pixels x 2 panels of accumulators in registers */

static inline __m512i four_inputs(const uint8_t *at)
{
    int32_t word;
    memcpy(&word, at, 4);
    return _mm512_set1_epi32(word);
}

/* acc[row][16] and, for a second panel, second[row][16] of 8 pixels. */
static inline void multiply_rows(const uint8_t *a, struct pitch pitch, struct product_shape shape, const uint8_t *panel,
                                 const uint8_t *panel1, int32_t *acc, int32_t *second)
{
    uint32_t groups = (shape.segment_depth + 3) / 4;
    const __m512i *b0 = (const __m512i *)(panel + sizeof(struct channel_constants));
    const __m512i *b1 = (const __m512i *)(panel1 + sizeof(struct channel_constants));
    __m512i sum0[ROWS], sum1[ROWS];
    for (int i = 0; i < ROWS; i++) {
        sum0[i] = _mm512_load_si512(((const struct channel_constants *)panel)->start);
        sum1[i] = _mm512_load_si512(((const struct channel_constants *)panel1)->start);
    }
    for (uint32_t s = 0; s < shape.segments; s++, a += pitch.segment) {
        for (uint32_t k = 0; k < groups; k++) {
            for (int i = 0; i < ROWS; i++) {
                __m512i x = four_inputs(a + i * pitch.pixel + 4 * k);
                sum0[i] = _mm512_dpbusd_epi32(sum0[i], x, b0[k]);
                if (second)
                    sum1[i] = _mm512_dpbusd_epi32(sum1[i], x, b1[k]);
            }
        }
        b0 += shape.segment_steps * 16;
        b1 += shape.segment_steps * 16;
    }
    for (int i = 0; i < ROWS; i++) {
        _mm512_store_si512(acc + i * LANES, sum0[i]);
        if (second)
            _mm512_store_si512(second + i * LANES, sum1[i]);
    }
}

static void multiply_tiles(const struct tile tiles[4], uint32_t count, struct pitch pitch, struct product_shape shape,
                           const uint8_t *panel, uint32_t panels, int32_t *acc)
{
    const uint8_t *second = panel + (panels == 2 ? panel_bytes(shape) : 0);
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t r = 0; r < tiles[t].rows; r += ROWS) {
            int32_t *to = acc + (t * TILE + r) * LANES;
            const uint8_t *a = tiles[t].a + r * pitch.pixel;
            if (panels == 2)
                multiply_rows(a, pitch, shape, panel, second, to, to + 2 * TILE * LANES);
            else
                multiply_rows(a, pitch, shape, panel, panel, to, NULL);
        }
}

void product_vnni(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    product(plan, op, memory);
}

size_t product_vnni_scratch(const struct plan *plan, const struct plan_op *op)
{
    return product_scratch(plan, op);
}
