/* DEPTHWISE_CONV_2D of multiplier 1 with AVX512-VNNI, 16 channels at a time.
 *
 * A lane's 4 bytes are 4 vertical neighbours of one channel. The row of such columns under an output row is made once
 * and shared by all windows that see it; a 3 x 3 window is then three vpdpbusd. */
#include <immintrin.h>
#include <string.h>

#include "runners/int8/x86/requantize_avx512.h"

enum { PIXELS = 4 }; /* at a time */

static uint32_t field_width(const struct plan_window *w, const struct plan_tensor *out)
{
    return (out->w - 1) * w->stride_w + (w->kernel_w - 1) * w->dilation_w + 1;
}

/* Lanes of one row of columns; the last windows of a row look a little beyond. */
static size_t row_lanes(const struct plan_window *w, const struct plan_tensor *out)
{
    uint32_t columns = field_width(w, out) + (PIXELS - 1) * w->stride_w;
    return ((size_t)columns * out->c + 2 * 64) / LANES * LANES;
}

size_t depthwise_conv_2d_vnni_scratch(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_tensor *out = tensor_out(plan, op);
    if (depthwise_is_plain(plan, op))
        return depthwise_conv_2d_scratch(plan, op);
    return row_lanes(&((const struct plan_conv *)op)->window, out) * 4 * depthwise_shape(plan, op).row_groups;
}

/* Interleave 64 elements of four rows: to[i] holds the elements 16 i and on. */
static inline void interleave(__m512i rows[4], __m512i *to)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int i = 0; i < 4; i++)
        rows[i] = _mm512_permutexvar_epi32(order, rows[i]);
    __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]), high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
    __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]), high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi16(low01, low23));
    _mm512_storeu_si512(to + 1, _mm512_unpackhi_epi16(low01, low23));
    _mm512_storeu_si512(to + 2, _mm512_unpacklo_epi16(high01, high23));
    _mm512_storeu_si512(to + 3, _mm512_unpackhi_epi16(high01, high23));
}

/* The columns of four rows of the window at output row y: padding, input, padding. */
static void make_columns(const struct plan_window *w, const struct plan_tensor *in, const struct plan_tensor *out,
                         const int8_t *input, uint32_t y, uint32_t first_row, int32_t *to)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80), zero = _mm512_set1_epi8((char)in->zero_point);
    const int8_t *rows[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t in_y = y * w->stride_h + (first_row + i) * w->dilation_h - w->pad_top; /* wraps above the input */
        rows[i] = first_row + i < w->kernel_h && in_y < in->h ? input + (size_t)in_y * in->w * in->c : NULL;
    }
    uint32_t width = field_width(w, out), inside = width - w->pad_left < in->w ? width - w->pad_left : in->w;
    size_t left = (size_t)w->pad_left * in->c, middle = (size_t)inside * in->c, end = (size_t)width * in->c;
    const __m512i outside = _mm512_xor_si512(zero, flip);
    for (size_t i = 0; i < left; i += LANES)
        _mm512_storeu_si512(to + i, outside);
    for (size_t i = 0; i < middle; i += 64) {
        __m512i v[4];
        for (int r = 0; r < 4; r++) /* may read 63 bytes behind the row */
            v[r] = _mm512_xor_si512(rows[r] ? _mm512_loadu_si512(rows[r] + i) : zero, flip);
        interleave(v, (__m512i *)(to + left + i));
    }
    for (size_t i = left + middle; i < end; i += LANES)
        _mm512_storeu_si512(to + i, outside);
}

/* Where the windows of one channel block find their columns, in lanes. */
struct steps {
    size_t pixel, column, group;
};

static inline __m512i window_sum(const int32_t *columns, struct steps steps, uint32_t kernel_w, uint32_t row_groups,
                                 const __m512i *weights, __m512i sum)
{
    for (uint32_t kx = 0; kx < kernel_w; kx++)
        for (uint32_t group = 0; group < row_groups; group++)
            sum = _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(columns + kx * steps.column + group * steps.group),
                                      weights[kx * row_groups + group]);
    return sum;
}

/* Output row: all pixels of one channel block. kernel_w and row_groups are constants where this is inlined. */
static inline void output_row(const int32_t *columns, struct steps steps, uint32_t kernel_w, uint32_t row_groups,
                              const __m512i *weights, const struct channel_constants *constants,
                              const struct output_range *range, uint32_t pixels, __mmask16 valid, int8_t *out,
                              size_t stride)
{
    struct rescale_lanes lanes = rescale_lanes(constants);
    __m512i start = _mm512_load_si512(constants->start);
    for (uint32_t x = 0; x < pixels; x += PIXELS, columns += PIXELS * steps.pixel, out += PIXELS * stride) {
        __m512i v[PIXELS];
        for (int i = 0; i < PIXELS; i++)
            v[i] = rescale_avx512(window_sum(columns + i * steps.pixel, steps, kernel_w, row_groups, weights, start),
                                  &lanes);
        store_rows(narrow(v, range), pixels - x, valid, out, stride);
    }
}

void depthwise_conv_2d_vnni(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    if (depthwise_is_plain(plan, op)) {
        each_sample(depthwise_conv_2d, plan, op, memory);
        return;
    }
    struct depthwise_shape shape = depthwise_shape(plan, op);
    struct output_range range = output_range(op);
    struct steps steps = {(size_t)w->stride_w * in->c, (size_t)w->dilation_w * in->c, row_lanes(w, out)};
    int32_t *columns = memory.scratch;
    const int8_t *input = activation(memory, in);
    int8_t *to = activation(memory, out);
    for (uint32_t row = 0; row < memory.samples * out->h; row++, to += out->w * out->c) {
        for (uint32_t group = 0; group < shape.row_groups; group++)
            make_columns(w, in, out, input + (size_t)(row / out->h) * plan_elements(in), row % out->h, 4 * group,
                         columns + group * steps.group);
        for (uint32_t block = 0; block < shape.blocks; block++) {
            const uint8_t *packed = memory.packed + block * depthwise_block_bytes(shape);
            const struct channel_constants *constants = (const struct channel_constants *)packed;
            const __m512i *weights = (const __m512i *)(packed + sizeof *constants);
            uint32_t channel = block * LANES, channels = out->c - channel < LANES ? out->c - channel : LANES;
            __mmask16 valid = (__mmask16)((1u << channels) - 1);
            const int32_t *at = columns + channel;
            if (constants->general) {
                for (uint32_t x = 0; x < out->w; x++) {
                    _Alignas(64) int32_t acc[LANES];
                    _mm512_store_si512(acc, window_sum(at + x * steps.pixel, steps, w->kernel_w, shape.row_groups,
                                                       weights, _mm512_load_si512(constants->start)));
                    requantize_general(plan, op, acc, channel, channels, to + x * out->c + channel);
                }
            } else if (w->kernel_w == 3 && shape.row_groups == 1) {
                output_row(at, steps, 3, 1, weights, constants, &range, out->w, valid, to + channel, out->c);
            } else {
                output_row(at, steps, w->kernel_w, shape.row_groups, weights, constants, &range, out->w, valid,
                           to + channel, out->c);
            }
        }
    }
}
