/* Weights as the x86 kernels want them, perturbed on the way.
 *
 * A convolution or FULLY_CONNECTED is a matrix product: pixels x depth times depth x channels. Its packed form is one
 * panel for 16 channels after the other: what requantisation needs, then the weights as [depth / 4][16 channels][4],
 * which is a B tile of AMX (16 rows of 64 bytes) and what vpdpbusd takes. Depth is padded with zeros to a multiple of
 * 64, channels to 16. A depthwise filter is, for 16 channels: the same constants, then [column][rows / 4][16][4]. */
#ifndef RUNNERS_INT8_X86_PACKED_H
#define RUNNERS_INT8_X86_PACKED_H

#include "runners/int8/kernels.h"

/* Output widths from which a set reads windows row by row. */
enum { AMX_COLUMNS = 16, VNNI_COLUMNS = 8, AVX2_COLUMNS = 4 };

enum { LANES = 16, MAX_SHIFT = 20, DEPTH_STEP = 64, TILE = 16 /* pixels */, MAX_SIGNS = LANES << 16 };

/* Of 16 channels. rescale(x) of requantize.h for right shifts only:
 * t = high word of (x * multiplier + 2^31), plus x where the multiplier wrapped;
 * result = (t + half - (t >>> sign_shift)) >> shift, zero point included. */
struct channel_constants {
    int32_t start[LANES];      /* bias less zero point times the sum of the weights */
    int32_t multiplier[LANES]; /* twice the plan's, which wraps from 2^30 on */
    int32_t half[LANES];       /* 2^(shift - 1), or 0; plus the zero point << shift */
    int32_t shift[LANES];
    int32_t sign_shift[LANES]; /* 31: subtract 1 from a negative t; 32: do not, for there is no shift */
    uint32_t wrapped;          /* bit i: multiplier[i] is less by 2^32, x is to be added */
    uint32_t general;          /* shifts to the left or huge sums: not with this formula */
    uint32_t unused[LANES - 2];
};

/* How the depth of a product is cut: one segment where patches are gathered, else one a row of the window, read from
 * the input where it is. Each is padded to whole steps. */
struct product_shape {
    uint32_t segments, segment_depth, segment_steps;
    uint32_t channels, panels;
};

/* least_columns: output width from which windows are read row by row (neighbours are one tile then). */
static inline struct product_shape product_shape(const struct plan *plan, const struct plan_op *op,
                                                 uint32_t least_columns)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct product_shape shape = {1, 0, 0, out->c, (out->c + LANES - 1) / LANES};
    if (op->kind == PLAN_FULLY_CONNECTED) {
        shape.segment_depth = plan_elements(in) / (plan_elements(out) / out->c);
    } else {
        const struct plan_window *w = &((const struct plan_conv *)op)->window;
        bool by_rows = w->kernel_h > 1 && out->w >= least_columns && w->dilation_w == 1;
        shape.segments = by_rows ? w->kernel_h : 1;
        shape.segment_depth = w->kernel_w * in->c * (by_rows ? 1 : w->kernel_h);
    }
    shape.segment_steps = (shape.segment_depth + DEPTH_STEP - 1) / DEPTH_STEP;
    return shape;
}

static inline uint32_t product_depth(struct product_shape shape)
{
    return shape.segments * shape.segment_depth;
}

static inline uint32_t padded_depth(struct product_shape shape)
{
    return shape.segments * shape.segment_steps * DEPTH_STEP;
}

static inline size_t panel_bytes(struct product_shape shape)
{
    return sizeof(struct channel_constants) + (size_t)padded_depth(shape) * LANES;
}

/* Depthwise filters of multiplier 1 have a packed form of their own; others (and giants) are copied as they are. */
struct depthwise_shape {
    uint32_t columns, row_groups, blocks; /* taps of a column come in groups of 4 */
};

static inline bool depthwise_is_plain(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    uint32_t channels = tensor_out(plan, op)->c;
    return tensor_in(plan, op)->c != channels || (uint64_t)w->kernel_h * w->kernel_w * channels > MAX_SIGNS;
}

static inline struct depthwise_shape depthwise_shape(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    return (struct depthwise_shape){w->kernel_w, (w->kernel_h + 3) / 4, (tensor_out(plan, op)->c + LANES - 1) / LANES};
}

static inline size_t depthwise_block_bytes(struct depthwise_shape shape)
{
    return sizeof(struct channel_constants) + (size_t)shape.columns * shape.row_groups * LANES * 4;
}

/* Where a filter's weights begin in index order. */
struct filter_index {
    bool trainable;
    uint32_t first;
};

/* The filter of an op that has one. */
static inline const struct plan_filter *filter_of(const struct plan_op *op)
{
    return op->kind == PLAN_FULLY_CONNECTED ? &((const struct plan_fully_connected *)op)->filter
                                            : &((const struct plan_conv *)op)->filter;
}

struct filter_index filter_index(const struct image *image, const struct plan_filter *filter);

/* Fill in the constants of the channels first .. first + 15 whose weights sum up to sums[]; input is the value that a
 * zero of the network has in the product. */
void channel_constants(struct channel_constants *constants, const struct plan *plan, const struct plan_op *op,
                       const struct plan_filter *filter, uint32_t first, const int32_t *sums, int32_t input,
                       uint32_t depth);

/* Of an op, for a set that reads windows by rows from least_columns on; plain_depthwise: copies depthwise filters. */
size_t packed_bytes(const struct plan *plan, const struct plan_op *op, uint32_t least_columns, bool plain_depthwise);

size_t packed_bytes_avx2(const struct plan *plan, const struct plan_op *op);
size_t packed_bytes_vnni(const struct plan *plan, const struct plan_op *op);
size_t packed_bytes_amx(const struct plan *plan, const struct plan_op *op);

void pack_avx2(const struct image *image, const struct plan_op *op, uint64_t seed, int step, uint8_t *packed,
               unsigned worker, unsigned workers);
void pack_vnni(const struct image *image, const struct plan_op *op, uint64_t seed, int step, uint8_t *packed,
               unsigned worker, unsigned workers);
void pack_amx(const struct image *image, const struct plan_op *op, uint64_t seed, int step, uint8_t *packed,
              unsigned worker, unsigned workers);

kernel conv_2d_amx, conv_2d_vnni, conv_2d_avx2, fully_connected_amx, fully_connected_vnni, fully_connected_avx2,
    depthwise_conv_2d_copied, depthwise_conv_2d_vnni, add_avx512, max_pool_2d_avx512, mean_avx512;

size_t product_amx_scratch(const struct plan *plan, const struct plan_op *op);
size_t product_vnni_scratch(const struct plan *plan, const struct plan_op *op);
size_t product_avx2_scratch(const struct plan *plan, const struct plan_op *op);
size_t depthwise_conv_2d_vnni_scratch(const struct plan *plan, const struct plan_op *op);

#endif
