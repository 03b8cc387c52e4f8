/* CONV_2D and FULLY_CONNECTED as matrix products, for a set's own multiplication: included by one file a set, which
 * defines multiply_tiles, READING and FLIP (what inputs are xored with, to have them unsigned). */
#include <string.h>

#include "runners/int8/x86/packed.h"

enum {
    PATCH_BYTES = 512 << 10, /* gathered at a time: in the L2 cache beside a panel */
    ACC_BYTES = 2 * 2 * 2 * TILE * LANES * 4,
};

/* A tile: up to 16 pixels, whose inputs begin a fixed number of bytes apart. */
struct tile {
    const uint8_t *a;
    int8_t *out;
    uint32_t rows;
};

/* Where inputs lie: pixels and segments of a window, in bytes from each other. */
struct pitch {
    size_t pixel, segment;
};

/* acc[panel][tile][row][16] = the products (and start values, if requantize_rows does not add them) of tiles and
 * panels: up to two by two, or four tiles by one panel (then as acc[tile][row][16]). */
static void multiply_tiles(const struct tile tiles[4], uint32_t count, struct pitch pitch, struct product_shape shape,
                           const uint8_t *panel, uint32_t panels, int32_t *acc);

struct product {
    const struct plan *plan;
    const struct plan_op *op;
    struct product_shape shape;
    const uint8_t *packed;
    int32_t *acc;
};

/* Tiles whose accumulators wait for requantisation while the next ones are multiplied. */
struct pending {
    const int32_t *acc;
    uint32_t panel, panels, count;
    struct tile tiles[4];
};

static void finish(const struct product *p, const struct pending *done)
{
    for (uint32_t i = 0; i < done->panels; i++) {
        uint32_t channel = (done->panel + i) * LANES;
        uint32_t channels = p->shape.channels - channel < LANES ? p->shape.channels - channel : LANES;
        const uint8_t *panel = p->packed + (done->panel + i) * panel_bytes(p->shape);
        for (uint32_t t = 0; t < done->count; t++)
            requantize_rows(p->plan, p->op, (const struct channel_constants *)panel,
                            done->acc + (2 * i + t) * TILE * LANES, done->tiles[t].rows, channel, channels,
                            done->tiles[t].out + channel, p->shape.channels);
    }
}

/* A grid of pixels, times all panels. */
static void multiply_grid(const struct product *p, const uint8_t *a, struct pitch pitch, size_t row_pitch,
                          uint32_t rows, uint32_t columns, int8_t *out)
{
    struct pending waiting = {0};
    uint32_t turn = 0;
    for (uint32_t panel = 0; panel < p->shape.panels; panel += 2) {
        const uint8_t *packed = p->packed + panel * panel_bytes(p->shape);
        uint32_t panels = p->shape.panels - panel < 2 ? 1 : 2, most = 4 / panels, count = 0;
        struct tile tiles[4];
        for (uint32_t y = 0; y < rows; y++)
            for (uint32_t x = 0; x < columns; x += TILE) {
                tiles[count++] = (struct tile){a + y * row_pitch + x * pitch.pixel,
                                               out + ((size_t)y * columns + x) * p->shape.channels,
                                               columns - x < TILE ? columns - x : TILE};
                if (count < most && !(y == rows - 1 && x + TILE >= columns))
                    continue;
                int32_t *acc = p->acc + turn * (ACC_BYTES / 2 / sizeof *acc);
                multiply_tiles(tiles, count, pitch, p->shape, packed, panels, acc);
                if (waiting.count)
                    finish(p, &waiting);
                waiting = (struct pending){.acc = acc, .panel = panel, .panels = panels, .count = count};
                memcpy(waiting.tiles, tiles, sizeof tiles);
                turn ^= 1;
                count = 0;
            }
    }
    finish(p, &waiting);
}

static void flip(uint8_t *to, const uint8_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[i] ^ FLIP;
}

/* Copies count bytes; reads and writes up to 63 more, so what is filled so is filled from front to back. */
static inline void copy_over(uint8_t *to, const uint8_t *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += 64)
        memcpy(to + i, from + i, 64);
}

/* The part of an input, with its padding, that the windows see. */
struct field {
    uint32_t h, w;
};

static struct field field_of(const struct plan_window *w, const struct plan_tensor *out)
{
    return (struct field){(out->h - 1) * w->stride_h + (w->kernel_h - 1) * w->dilation_h + 1,
                          (out->w - 1) * w->stride_w + (w->kernel_w - 1) * w->dilation_w + 1};
}

/* Bytes of a field, of which tiles and copies read a little too much. */
static size_t field_bytes(const struct plan_window *w, const struct plan_tensor *in, const struct plan_tensor *out)
{
    struct field f = field_of(w, out);
    return ((size_t)f.h * f.w * in->c + (size_t)TILE * w->stride_w * in->c + 2 * 64) / 64 * 64;
}

static void make_field(const struct plan_window *w, const struct plan_tensor *in, struct field f, const int8_t *input,
                       uint8_t *to)
{
    uint8_t zero = (uint8_t)in->zero_point ^ FLIP;
    uint32_t inside = f.w - w->pad_left < in->w ? f.w - w->pad_left : in->w;
    size_t left = w->pad_left * in->c, middle = inside * in->c, right = (f.w - w->pad_left - inside) * in->c;
    for (uint32_t y = 0; y < f.h; y++) {
        uint32_t in_y = y - w->pad_top; /* wraps above the input */
        if (in_y >= in->h) {
            memset(to, zero, left + middle + right);
            to += left + middle + right;
            continue;
        }
        memset(to, zero, left);
        flip(to + left, (const uint8_t *)input + (size_t)in_y * in->w * in->c, middle);
        memset(to + left + middle, zero, right);
        to += left + middle + right;
    }
}

/* The windows of output row y, as patches pitch bytes apart. */
static void gather_row(const struct plan_window *w, uint32_t channels, struct field f, const uint8_t *field, uint32_t y,
                       uint32_t columns, size_t pitch, uint8_t *to)
{
    size_t row = (size_t)f.w * channels * w->dilation_h;
    uint32_t run = (w->dilation_w == 1 ? w->kernel_w : 1) * channels, runs = w->dilation_w == 1 ? 1 : w->kernel_w;
    field += (size_t)y * w->stride_h * f.w * channels;
    for (uint32_t x = 0; x < columns; x++, field += w->stride_w * channels, to += pitch) {
        uint8_t *patch = to;
        for (uint32_t ky = 0; ky < w->kernel_h; ky++)
            for (uint32_t i = 0; i < runs; i++, patch += run)
                copy_over(patch, field + ky * row + (size_t)i * w->dilation_w * channels, run);
    }
}

static uint32_t patch_rows(struct product_shape shape, uint32_t columns)
{
    uint32_t rows = PATCH_BYTES / padded_depth(shape) / TILE * TILE;
    return rows > columns ? rows : (columns + TILE - 1) / TILE * TILE;
}

/* A window of one pixel needs no copy: what lies behind it meets weights of zero. */
static bool is_pixel(const struct plan_window *w, const struct plan_tensor *in, const struct plan_tensor *out)
{
    return w->kernel_h * w->kernel_w == 1 && in->h == out->h && in->w == out->w && w->stride_h == 1 && w->stride_w == 1;
}

static size_t product_scratch(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct product_shape shape = product_shape(plan, op, READING);
    size_t patches = (size_t)patch_rows(shape, out->w) * padded_depth(shape) + 64;
    if (op->kind == PLAN_FULLY_CONNECTED)
        return ACC_BYTES + patches;
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    return ACC_BYTES + (is_pixel(w, in, out) ? 0 : field_bytes(w, in, out)) + (shape.segments > 1 ? 0 : patches);
}

/* Vectors of depth bytes, one after the other. */
static void multiply_vectors(const struct product *p, const uint8_t *from, uint32_t count, uint8_t *patches,
                             int8_t *out)
{
    uint32_t depth = product_depth(p->shape), pitch = padded_depth(p->shape), step = patch_rows(p->shape, 1);
    uint32_t whole = FLIP ? 0 : count / TILE * TILE;
    if (whole)
        multiply_grid(p, from, (struct pitch){depth, 0}, 0, 1, whole, out);
    for (uint32_t first = whole; first < count; first += step) {
        uint32_t rows = count - first < step ? count - first : step;
        for (uint32_t i = 0; i < rows; i++)
            flip(patches + (size_t)i * pitch, from + (size_t)(first + i) * depth, depth);
        multiply_grid(p, patches, (struct pitch){pitch, 0}, 0, 1, rows, out + (size_t)first * p->shape.channels);
    }
}

static void convolve(const struct product *p, const struct plan_window *w, const struct kernel_memory *memory,
                     uint8_t *field, uint8_t *patches)
{
    const struct plan_tensor *in = tensor_in(p->plan, p->op), *out = tensor_out(p->plan, p->op);
    struct field f = field_of(w, out);
    uint32_t pitch = padded_depth(p->shape), room = patch_rows(p->shape, out->w), gathered = 0;
    int8_t *output = activation(*memory, out);
    for (uint32_t sample = 0; sample < memory->samples; sample++) {
        make_field(w, in, f, activation(*memory, in) + (size_t)sample * plan_elements(in), field);
        if (p->shape.segments > 1) {
            size_t row = (size_t)f.w * in->c;
            multiply_grid(p, field, (struct pitch){w->stride_w * in->c, row * w->dilation_h}, row * w->stride_h, out->h,
                          out->w, output + (size_t)sample * plan_elements(out));
            continue;
        }
        for (uint32_t y = 0; y < out->h; y++) {
            gather_row(w, in->c, f, field, y, out->w, pitch, patches + (size_t)gathered * pitch);
            gathered += out->w;
            if (gathered + out->w <= room && !(sample == memory->samples - 1 && y == out->h - 1))
                continue;
            multiply_grid(p, patches, (struct pitch){pitch, 0}, 0, 1, gathered, output);
            output += (size_t)gathered * out->c;
            gathered = 0;
        }
    }
}

static void product(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct product p = {plan, op, product_shape(plan, op, READING), memory.packed, memory.scratch};
    uint8_t *scratch = (uint8_t *)memory.scratch + ACC_BYTES;
    const struct plan_window *w = &((const struct plan_conv *)op)->window; /* of a convolution */
    if (op->kind == PLAN_FULLY_CONNECTED || is_pixel(w, in, out))
        multiply_vectors(&p, (const uint8_t *)activation(memory, in), memory.samples * (plan_elements(out) / out->c),
                         scratch, activation(memory, out));
    else
        convolve(&p, w, &memory, scratch, scratch + field_bytes(w, in, out));
}
