/* Weights as the x86 kernels want them, perturbed on the way.
 *
 * A convolution or FULLY_CONNECTED is a matrix product: pixels x depth times depth x channels. Its packed form is one
 * panel for 16 channels after the other: what requantisation needs, then the weights as [depth / 4][16 channels][4],
 * which is a B tile of AMX (16 rows of 64 bytes) and what vpdpbusd takes. Depth is padded with zeros to a multiple of
 * 64, channels to 16. A depthwise filter is, for 16 channels: the same constants, then [column][rows / 4][16][4]. */
#ifndef RUNNERS_INT8_X86_PACKED_H
#define RUNNERS_INT8_X86_PACKED_H

#include "runners/int8/kernels.h"

enum { LANES = 16, MAX_SHIFT = 20, DEPTH_STEP = 64, TILE = 16 /* pixels */, MAX_SIGNS = LANES << 16 };

/* Of 16 channels: rescale(x) + zero point of requantize.h, for right shifts, in few instructions.
 *
 * With m the plan's multiplier, the doubling high product is t = (2 m x + 2^31) >> 32. Accumulators hold u = x + 2^31,
 * unsigned, so 2 m fits into 32 bits and t is the high word of 2 m u + 2^31 - 2^32 m. What is added to t before the
 * shift (one half and the zero point, less one where x is negative, for ties away from zero) joins that constant:
 *
 *     (high word of (2 m u + offset) + (u >>> sign_shift)) >> shift
 *
 * u >>> 31 is 1 where x is not negative, so the constant has the one less. (x = -1 with m = 2^30, whose t is 0, comes
 * out the same.) Without a shift there is no tie: sign_shift is 32. */
struct channel_constants {
    uint32_t start[LANES]; /* BIAS + bias less zero point times the sum of the weights */
    uint32_t multiplier[LANES];
    uint64_t offset_even[LANES / 2], offset_odd[LANES / 2]; /* of the lanes 0, 2, ... and 1, 3, ... */
    uint32_t shift[LANES], sign_shift[LANES];
    uint32_t general; /* shifts to the left or huge sums: not with this formula */
    uint32_t unused[LANES - 1];
};

#define BIAS 0x80000000u

static inline uint64_t rescale_offset(struct plan_scale scale, int32_t zero_point)
{
    int64_t before_shift = scale.shift < 0 ? (1 << (-scale.shift - 1)) - 1 : 0;
    before_shift += (int64_t)zero_point << -scale.shift;
    return ((uint64_t)before_shift << 32) + BIAS - ((uint64_t)scale.multiplier << 32);
}

/* How the depth of a product is cut: one segment where patches are gathered, else one a row of the window, read from
 * the input where it is. Each is padded to whole steps. */
struct product_shape {
    uint32_t segments, segment_depth, segment_steps;
    uint32_t channels, panels;
};

/* How a set reads windows: row by row from an output width on where neighbours are one tile, in steps of some bytes. */
struct reading {
    uint32_t least_columns, step;
};

static inline struct product_shape product_shape(const struct plan *plan, const struct plan_op *op,
                                                 struct reading reading)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct product_shape shape = {1, 0, 0, out->c, (out->c + LANES - 1) / LANES};
    if (op->kind == PLAN_FULLY_CONNECTED) {
        shape.segment_depth = plan_elements(in) / (plan_elements(out) / out->c);
    } else {
        const struct plan_window *w = &((const struct plan_conv *)op)->window;
        uint32_t row = w->kernel_w * in->c, window = w->kernel_h * row;
        /* reading by rows pads each of them, gathering copies each of them: a copy takes a pixel about as long as a
         * step takes a tile */
        uint32_t by_rows = w->kernel_h * ((row + reading.step - 1) / reading.step) * shape.panels;
        uint32_t gathered = (window + reading.step - 1) / reading.step * shape.panels +
                            w->kernel_h * ((row + DEPTH_STEP - 1) / DEPTH_STEP);
        if (w->kernel_h > 1 && w->dilation_w == 1 && out->w >= reading.least_columns && by_rows <= gathered)
            shape.segments = w->kernel_h;
        shape.segment_depth = window / shape.segments;
    }
    shape.segment_steps = (shape.segment_depth + DEPTH_STEP - 1) / DEPTH_STEP;
    return shape;
}

#define AMX_READING  ((struct reading){16, DEPTH_STEP})
#define VNNI_READING ((struct reading){8, 4})
#define AVX2_READING ((struct reading){4, 4})

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

/* Fill in the constants of the channels first .. first + 15, or only start, which depends on the weights: on their
 * sums. input is the value that a zero of the network has in the product. */
void channel_constants(struct channel_constants *constants, const struct plan *plan, const struct plan_op *op,
                       uint32_t first, const int32_t *sums, int32_t input, uint32_t depth, bool all);

/* Of an op, for a set that reads windows like this and may want depthwise filters as they are. */
size_t packed_bytes(const struct plan *plan, const struct plan_op *op, struct reading reading, bool plain_depthwise);

size_t packed_bytes_avx2(const struct plan *plan, const struct plan_op *op);
size_t packed_bytes_vnni(const struct plan *plan, const struct plan_op *op);
size_t packed_bytes_amx(const struct plan *plan, const struct plan_op *op);

void pack_avx2(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed);
void pack_vnni(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed);
void pack_amx(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed);

/* The products are of CONV_2D and FULLY_CONNECTED. */
kernel product_amx, product_vnni, product_avx2, depthwise_conv_2d_vnni, add_avx512, max_pool_2d_avx512, mean_avx512;

/* A block with a kernel of single samples: for what the fast ones leave to the portable set. */
void each_sample(kernel *run, const struct plan *plan, const struct plan_op *op, struct kernel_memory memory);

/* Of channels whose scales or sums are not for the formula of struct channel_constants; acc has the BIAS too. */
void requantize_general(const struct plan *plan, const struct plan_op *op, const int32_t *acc, uint32_t first,
                        uint32_t channels, int8_t *out);

size_t product_amx_scratch(const struct plan *plan, const struct plan_op *op);
size_t product_vnni_scratch(const struct plan *plan, const struct plan_op *op);
size_t product_avx2_scratch(const struct plan *plan, const struct plan_op *op);
size_t max_pool_2d_avx512_scratch(const struct plan *plan, const struct plan_op *op);
size_t depthwise_conv_2d_vnni_scratch(const struct plan *plan, const struct plan_op *op);

#endif
