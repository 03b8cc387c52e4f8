/* CONV_2D and FULLY_CONNECTED with AVX2: products of 16-bit words, since those of bytes saturate. */
#include <immintrin.h>

#include "runners/int8/x86/packed.h"

enum { HALF = LANES / 2, ROWS = 4 };

/* rescale_avx512 of 8 lanes. */
static inline __m256i rescale_avx2(__m256i u, const struct channel_constants *c, int first)
{
    __m256i m = _mm256_load_si256((const __m256i *)(c->multiplier + first));
    __m256i even =
        _mm256_add_epi64(_mm256_mul_epu32(u, m), _mm256_load_si256((const __m256i *)(c->offset_even + first / 2)));
    __m256i odd = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(u, 32), _mm256_srli_epi64(m, 32)),
                                   _mm256_load_si256((const __m256i *)(c->offset_odd + first / 2)));
    __m256i high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    __m256i sign = _mm256_srlv_epi32(u, _mm256_load_si256((const __m256i *)(c->sign_shift + first)));
    return _mm256_srav_epi32(_mm256_add_epi32(high, sign), _mm256_load_si256((const __m256i *)(c->shift + first)));
}

static void requantize_rows(const struct plan *plan, const struct plan_op *op,
                            const struct channel_constants *constants, const int32_t *acc, uint32_t rows,
                            uint32_t first, uint32_t channels, int8_t *out, size_t stride)
{
    __m128i min = _mm_set1_epi8((char)op->min), max = _mm_set1_epi8((char)op->max);
    for (uint32_t r = 0; r < rows; r++, acc += LANES, out += stride) {
        if (constants->general) {
            requantize_general(plan, op, acc, first, channels, out);
            continue;
        }
        __m256i low = rescale_avx2(_mm256_load_si256((const __m256i *)acc), constants, 0);
        __m256i high = rescale_avx2(_mm256_load_si256((const __m256i *)(acc + HALF)), constants, HALF);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
        __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        bytes = _mm_min_epi8(_mm_max_epi8(bytes, min), max);
        if (channels == LANES) {
            _mm_storeu_si128((__m128i *)out, bytes);
        } else {
            int8_t piece[LANES];
            _mm_storeu_si128((__m128i *)piece, bytes);
            for (uint32_t i = 0; i < channels; i++)
                out[i] = piece[i];
        }
    }
}

#define FLIP    0
#define READING AVX2_READING
#include "runners/int8/x86/product.h"

/* Bytes 0 and 2, or 1 and 3, of each 4 as words. */
static inline __m256i even_words(__m256i bytes)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}

static inline __m256i odd_words(__m256i bytes)
{
    return _mm256_srai_epi16(bytes, 8);
}

/* acc[row][16] of 4 pixels. */
static inline void multiply_rows(const uint8_t *a, struct pitch pitch, struct product_shape shape, const uint8_t *panel,
                                 int32_t *acc)
{
    const struct channel_constants *constants = (const struct channel_constants *)panel;
    const __m256i *b = (const __m256i *)(panel + sizeof *constants);
    uint32_t groups = (shape.segment_depth + 3) / 4;
    __m256i sum[ROWS][2];
    for (int i = 0; i < ROWS; i++) {
        sum[i][0] = _mm256_load_si256((const __m256i *)constants->start);
        sum[i][1] = _mm256_load_si256((const __m256i *)(constants->start + HALF));
    }
    for (uint32_t s = 0; s < shape.segments; s++, a += pitch.segment, b += shape.segment_steps * 2 * LANES)
        for (uint32_t k = 0; k < groups; k++) {
            __m256i even0 = even_words(b[2 * k]), odd0 = odd_words(b[2 * k]);
            __m256i even1 = even_words(b[2 * k + 1]), odd1 = odd_words(b[2 * k + 1]);
            for (int i = 0; i < ROWS; i++) {
                int32_t four;
                memcpy(&four, a + i * pitch.pixel + 4 * k, 4);
                __m256i x = _mm256_set1_epi32(four), even = even_words(x), odd = odd_words(x);
                sum[i][0] = _mm256_add_epi32(
                    sum[i][0], _mm256_add_epi32(_mm256_madd_epi16(even, even0), _mm256_madd_epi16(odd, odd0)));
                sum[i][1] = _mm256_add_epi32(
                    sum[i][1], _mm256_add_epi32(_mm256_madd_epi16(even, even1), _mm256_madd_epi16(odd, odd1)));
            }
        }
    for (int i = 0; i < ROWS; i++) {
        _mm256_store_si256((__m256i *)(acc + i * LANES), sum[i][0]);
        _mm256_store_si256((__m256i *)(acc + i * LANES + HALF), sum[i][1]);
    }
}

static void multiply_tiles(const struct tile tiles[4], uint32_t count, struct pitch pitch, struct product_shape shape,
                           const uint8_t *panel, uint32_t panels, int32_t *acc)
{
    for (uint32_t p = 0; p < panels; p++, panel += panel_bytes(shape))
        for (uint32_t t = 0; t < count; t++)
            for (uint32_t r = 0; r < tiles[t].rows; r += ROWS)
                multiply_rows(tiles[t].a + r * pitch.pixel, pitch, shape, panel,
                              acc + ((2 * p + t) * TILE + r) * LANES);
}

void product_avx2(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    product(plan, op, memory);
}

size_t product_avx2_scratch(const struct plan *plan, const struct plan_op *op)
{
    return product_scratch(plan, op);
}
