/* Packing with AVX-512: signs from 16 Philox blocks at a time, 16 channels x 64 weights transposed in registers. */
#include <immintrin.h>
#include <string.h>

#include "runners/int8/x86/packed.h"
#include "zo/philox.h"

enum { BLOCK = 128, BLOCKS = 16 };

/* Signs of a panel or of a depthwise filter, and what a generation of 16 blocks writes beyond them. */
static _Thread_local uint32_t sign_words[(MAX_SIGNS + (BLOCKS + 2) * BLOCK) / 32];

/* a * b for 16 unsigned lanes: low and high words. */
static inline void multiply(__m512i a, __m512i b, __m512i *low, __m512i *high)
{
    __m512i even = _mm512_mul_epu32(a, b), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    *low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}

/* The bits of the signs first .. first + count - 1, the first of them at bit first % 128 of bits[]. */
static void sign_bits(uint64_t seed, uint32_t first, uint32_t count, uint32_t *bits)
{
    uint32_t end = (first + count + BLOCK - 1) / BLOCK;
    const __m512i m0 = _mm512_set1_epi32((int)0xD2511F53u), m1 = _mm512_set1_epi32((int)0xCD9E8D57u);
    for (uint32_t block = first / BLOCK; block < end; block += BLOCKS, bits += 4 * BLOCKS) {
        __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32((int)block),
                                      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        __m512i c1 = _mm512_set1_epi32(PHILOX_SIGNS), c2 = _mm512_setzero_si512(), c3 = c2;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            __m512i low0, high0, low1, high1;
            multiply(c0, m0, &low0, &high0);
            multiply(c2, m1, &low1, &high1);
            c0 = _mm512_xor_si512(_mm512_xor_si512(high1, c1), _mm512_set1_epi32((int)k0));
            c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), _mm512_set1_epi32((int)k1));
            c1 = low1;
            c3 = low0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        /* words of block b to bits[4 b]: a 4 x 4 transposition within the 128-bit lanes, then of the lanes */
        __m512i a = _mm512_unpacklo_epi32(c0, c1), b = _mm512_unpackhi_epi32(c0, c1);
        __m512i c = _mm512_unpacklo_epi32(c2, c3), d = _mm512_unpackhi_epi32(c2, c3);
        __m128i out[4][4]; /* [block % 4][block / 4] */
        __m512i t[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                        _mm512_unpackhi_epi64(b, d)};
        memcpy(out, t, sizeof out);
        for (int i = 0; i < BLOCKS; i++)
            _mm_storeu_si128((__m128i *)(bits + 4 * i), out[i % 4][i / 4]);
    }
}

/* rows[r] holds 64 bytes of channel r; afterwards rows[i] holds 4 bytes of each channel: words transposed. */
static inline void transpose(__m512i rows[LANES])
{
    __m512i t[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i a = rows[i], b = rows[4 + i], c = rows[8 + i], d = rows[12 + i];
        __m512i ab0 = _mm512_shuffle_i32x4(a, b, 0x88), ab1 = _mm512_shuffle_i32x4(a, b, 0xDD);
        __m512i cd0 = _mm512_shuffle_i32x4(c, d, 0x88), cd1 = _mm512_shuffle_i32x4(c, d, 0xDD);
        t[i] = _mm512_shuffle_i32x4(ab0, cd0, 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(ab0, cd0, 0xDD);
        t[4 + i] = _mm512_shuffle_i32x4(ab1, cd1, 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(ab1, cd1, 0xDD);
    }
    memcpy(rows, t, sizeof t);
}

static inline __mmask64 first_bytes(uint32_t count)
{
    return count >= 64 ? ~0ull : (1ull << count) - 1;
}

/* Perturbation: which bits of the stream belong to the weights at hand. */
struct signs {
    const uint8_t *bits;
    uint32_t base; /* index of the weight at bit 0 of bits */
    __m512i minus, twice;
};

/* The first 64 of count weights from index first on, perturbed. */
static inline __m512i perturbed(const int8_t *weights, uint32_t count, const struct signs *signs, uint32_t first)
{
    __mmask64 valid = first_bytes(count);
    __m512i w = _mm512_maskz_loadu_epi8(valid, weights);
    if (!signs->bits)
        return w;
    uint32_t bit = first - signs->base;
    uint64_t low;
    memcpy(&low, signs->bits + bit / 8, sizeof low);
    uint64_t plus = low >> bit % 8;
    if (bit % 8)
        plus |= (uint64_t)signs->bits[bit / 8 + 8] << (64 - bit % 8);
    w = _mm512_maskz_sub_epi8(valid, w, signs->minus);
    return _mm512_mask_add_epi8(w, valid & plus, w, signs->twice);
}

/* For the weights first .. first + count - 1 of a filter, at most MAX_SIGNS of them; until the next call. */
static struct signs signs_of(struct filter_index index, const struct packing *packing, uint32_t first, uint32_t count)
{
    struct signs signs = {NULL, 0, _mm512_set1_epi8((char)packing->step), _mm512_set1_epi8((char)(2 * packing->step))};
    if (index.trainable && packing->step) {
        signs.base = (index.first + first) / BLOCK * BLOCK;
        signs.bits = (const uint8_t *)sign_words;
        sign_bits(packing->seed, index.first + first, count, sign_words);
    }
    return signs;
}

static void pack_product(const struct image *image, const struct plan_op *op, struct product_shape shape,
                         const struct packing *packing, int32_t input, uint8_t *packed)
{
    const struct plan *plan = &image->plan;
    uint32_t depth = product_depth(shape);
    struct filter_index index = filter_index(image, filter_of(op));
    const int8_t *weights = (const int8_t *)plan->model + filter_of(op)->weights;
    for (uint32_t p = packing->worker; p < shape.panels; p += packing->workers) {
        uint8_t *panel = packed + p * panel_bytes(shape);
        __m512i *to = (__m512i *)(panel + sizeof(struct channel_constants));
        uint32_t first = p * LANES, channels = shape.channels - first < LANES ? shape.channels - first : LANES;
        struct signs signs = signs_of(index, packing, first * depth, channels * depth);
        __m512i sums = _mm512_setzero_si512();
        for (uint32_t i = 0; i < shape.segments * shape.segment_steps; i++, to += LANES) {
            __m512i rows[LANES];
            uint32_t k = i % shape.segment_steps * DEPTH_STEP, left = shape.segment_depth - k;
            uint32_t at = first * depth + i / shape.segment_steps * shape.segment_depth + k;
            for (uint32_t r = 0; r < LANES; r++, at += depth)
                rows[r] =
                    r < channels ? perturbed(weights + at, left, &signs, index.first + at) : _mm512_setzero_si512();
            transpose(rows);
            for (int j = 0; j < LANES; j++) {
                sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), rows[j]);
                _mm512_store_si512(to + j, rows[j]);
            }
        }
        int32_t sum[LANES];
        _mm512_storeu_si512(sum, sums);
        channel_constants((struct channel_constants *)panel, plan, op, first, sum, input, depth, packing->first);
    }
}

/* Four taps of 16 channels to 16 lanes of four taps. */
static inline __m512i interleave(const __m128i taps[4])
{
    __m128i low01 = _mm_unpacklo_epi8(taps[0], taps[1]), high01 = _mm_unpackhi_epi8(taps[0], taps[1]);
    __m128i low23 = _mm_unpacklo_epi8(taps[2], taps[3]), high23 = _mm_unpackhi_epi8(taps[2], taps[3]);
    __m512i lanes = _mm512_castsi128_si512(_mm_unpacklo_epi16(low01, low23));
    lanes = _mm512_inserti32x4(lanes, _mm_unpackhi_epi16(low01, low23), 1);
    lanes = _mm512_inserti32x4(lanes, _mm_unpacklo_epi16(high01, high23), 2);
    return _mm512_inserti32x4(lanes, _mm_unpackhi_epi16(high01, high23), 3);
}

/* A depthwise filter is [row][column][channel]: taps of one column, 4 rows at a time, to the 4 bytes of a lane. */
static void pack_depthwise(const struct image *image, const struct plan_conv *conv, const struct packing *packing,
                           int32_t input, uint8_t *packed)
{
    const struct plan *plan = &image->plan;
    struct depthwise_shape shape = depthwise_shape(plan, &conv->op);
    struct filter_index index = filter_index(image, &conv->filter);
    const int8_t *weights = (const int8_t *)plan->model + conv->filter.weights;
    uint32_t rows = conv->window.kernel_h, all = tensor_out(plan, &conv->op)->c;
    struct signs signs = signs_of(index, packing, 0, rows * shape.columns * all);
    for (uint32_t block = packing->worker; block < shape.blocks; block += packing->workers) {
        uint8_t *at = packed + block * depthwise_block_bytes(shape);
        __m512i *to = (__m512i *)(at + sizeof(struct channel_constants));
        uint32_t first = block * LANES, channels = all - first < LANES ? all - first : LANES;
        __m512i sums = _mm512_setzero_si512();
        for (uint32_t x = 0; x < shape.columns; x++) {
            for (uint32_t group = 0; group < shape.row_groups; group++, to++) {
                __m128i taps[4] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
                for (uint32_t i = 0; i < 4 && 4 * group + i < rows; i++) {
                    uint32_t tap = ((4 * group + i) * shape.columns + x) * all + first;
                    taps[i] = _mm512_castsi512_si128(perturbed(weights + tap, channels, &signs, index.first + tap));
                }
                __m512i lanes = interleave(taps);
                sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), lanes);
                _mm512_store_si512(to, lanes);
            }
        }
        int32_t sum[LANES];
        _mm512_storeu_si512(sum, sums);
        channel_constants((struct channel_constants *)at, plan, &conv->op, first, sum, input, rows * shape.columns,
                          packing->first);
    }
}

/* Weights in their own order, perturbed: for kernels of the portable set. */
static void pack_plain(const struct image *image, const struct plan_filter *filter, uint32_t count,
                       const struct packing *packing, uint8_t *packed)
{
    enum { PIECE = BLOCK * BLOCKS };
    struct filter_index index = filter_index(image, filter);
    const int8_t *weights = (const int8_t *)image->plan.model + filter->weights;
    for (uint32_t start = 0; start < count; start += PIECE) {
        uint32_t end = count - start < PIECE ? count : start + PIECE;
        struct signs signs = signs_of(index, packing, start, end - start);
        for (uint32_t i = start; i < end; i += 64) {
            uint32_t n = end - i < 64 ? end - i : 64;
            _mm512_mask_storeu_epi8(packed + i, first_bytes(n), perturbed(weights + i, n, &signs, index.first + i));
        }
    }
}

/* offset: what the products add to their inputs, to have them unsigned. */
static void pack(const struct image *image, const struct plan_op *op, struct reading reading, int32_t offset,
                 const struct packing *packing, uint8_t *packed)
{
    const struct plan *plan = &image->plan;
    int32_t zero = tensor_in(plan, op)->zero_point;
    if (op->kind == PLAN_CONV_2D || op->kind == PLAN_FULLY_CONNECTED) {
        pack_product(image, op, product_shape(plan, op, reading), packing, zero + offset, packed);
    } else if (op->kind == PLAN_DEPTHWISE_CONV_2D) {
        const struct plan_conv *conv = (const struct plan_conv *)op;
        uint32_t weights = conv->window.kernel_h * conv->window.kernel_w * tensor_out(plan, op)->c;
        if (!depthwise_is_plain(plan, op))
            pack_depthwise(image, conv, packing, zero + 128, packed);
        else if (packing->worker == 0)
            pack_plain(image, &conv->filter, weights, packing, packed);
    }
}

size_t packed_bytes_vnni(const struct plan *plan, const struct plan_op *op)
{
    return packed_bytes(plan, op, VNNI_READING, false);
}

size_t packed_bytes_amx(const struct plan *plan, const struct plan_op *op)
{
    return packed_bytes(plan, op, AMX_READING, false);
}

void pack_vnni(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed)
{
    pack(image, op, VNNI_READING, 128, packing, packed);
}

void pack_amx(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed)
{
    pack(image, op, AMX_READING, 0, packing, packed);
}
