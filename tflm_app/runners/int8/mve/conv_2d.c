/* CONV_2D: the input under two windows is laid out for the filters; taps that only ever see padding are left out. */
#include "runners/int8/mve/filters.h"

/* The taps of one axis that some output has inside the input. */
struct taps {
    uint32_t first, count;
};

static bool is_inside(int32_t at, uint32_t size)
{
    return at >= 0 && at < (int32_t)size;
}

static bool is_used(uint32_t tap, uint32_t stride, uint32_t dilation, uint32_t pad, uint32_t in, uint32_t out)
{
    int32_t at = (int32_t)(tap * dilation) - (int32_t)pad;
    uint32_t first = at < 0 ? ((uint32_t)-at + stride - 1) / stride : 0; /* output that has it at 0 or more */
    return first < out && is_inside(at + (int32_t)(first * stride), in);
}

static struct taps used_taps(uint32_t kernel, uint32_t stride, uint32_t dilation, uint32_t pad, uint32_t in,
                             uint32_t out)
{
    struct taps taps = {0, kernel};
    while (taps.count > 1 && !is_used(taps.first, stride, dilation, pad, in, out))
        taps = (struct taps){taps.first + 1, taps.count - 1};
    while (taps.count > 1 && !is_used(taps.first + taps.count - 1, stride, dilation, pad, in, out))
        taps.count--;
    return taps;
}

struct view {
    const struct plan_window *window;
    const struct plan_tensor *in;
    const int8_t *input;
    struct taps rows, columns;
    int8_t *patch; /* scratch: the taps of one window */
};

static bool usable(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    uint32_t channels = tensor_out(plan, op)->c;
    return channels >= FILTERS_LEAST && mve_shifts_right(plan, &conv->filter, channels);
}

static uint32_t depth_of(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    return w->kernel_h * w->kernel_w * tensor_in(plan, op)->c;
}

size_t mve_conv_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    uint32_t depth = depth_of(plan, op);
    return usable(plan, op) ? filters_scratch(depth, tensor_out(plan, op)->c) + depth : conv_2d_scratch(plan, op);
}

/* A row of taps, padding included. */
static int8_t *gather_row(const struct view *v, const int8_t *row, int32_t left, int8_t *to)
{
    const struct plan_tensor *in = v->in;
    uint32_t dilation = v->window->dilation_w, count = v->columns.count;
    int32_t end = left + (int32_t)count;
    if (dilation == 1) {
        uint32_t before = left<0 ? (uint32_t)-left : 0, after = end>(int32_t) in->w ? (uint32_t)end - in->w : 0;
        uint32_t inside = (count - before - after) * in->c;
        mve_fill(to, (int8_t)in->zero_point, before * in->c);
        to += before * in->c;
        mve_copy(to, row + (left + (int32_t)before) * (int32_t)in->c, inside);
        to += inside;
        mve_fill(to, (int8_t)in->zero_point, after * in->c);
        return to + after * in->c;
    }
    for (uint32_t x = 0; x < count; x++, left += (int32_t)dilation, to += in->c) {
        if (is_inside(left, in->w))
            mve_copy(to, row + left * (int32_t)in->c, in->c);
        else
            mve_fill(to, (int8_t)in->zero_point, in->c);
    }
    return to;
}

/* The input under the window of output (y, x): in place where it is one tap, otherwise in the patch. */
static const int8_t *gather(const struct view *v, uint32_t y, uint32_t x)
{
    const struct plan_window *w = v->window;
    const struct plan_tensor *in = v->in;
    int32_t top = (int32_t)(y * w->stride_h + v->rows.first * w->dilation_h) - (int32_t)w->pad_top;
    int32_t left = (int32_t)(x * w->stride_w + v->columns.first * w->dilation_w) - (int32_t)w->pad_left;
    uint32_t row_bytes = v->columns.count * in->c;
    if (v->rows.count * v->columns.count == 1 && is_inside(top, in->h) && is_inside(left, in->w))
        return v->input + ((uint32_t)top * in->w + (uint32_t)left) * in->c;
    int8_t *to = v->patch;
    for (uint32_t ky = 0; ky < v->rows.count; ky++, top += (int32_t)w->dilation_h) {
        if (is_inside(top, in->h)) {
            to = gather_row(v, v->input + (uint32_t)top * in->w * in->c, left, to);
        } else {
            mve_fill(to, (int8_t)in->zero_point, row_bytes);
            to += row_bytes;
        }
    }
    return v->patch;
}

void mve_conv_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    if (!usable(plan, op)) {
        conv_2d(plan, op, memory);
        return;
    }
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct filters filters = filters_of(plan, op, &conv->filter, depth_of(plan, op), memory.scratch);
    struct view view = {
        .window = w,
        .in = in,
        .input = activation(memory, in),
        .rows = used_taps(w->kernel_h, w->stride_h, w->dilation_h, w->pad_top, in->h, out->h),
        .columns = {0, w->kernel_w},
        .patch = (int8_t *)memory.scratch + filters_scratch(filters.depth, out->c),
    };
    if (view.rows.count == 1) /* what is used of a filter has to be in one piece */
        view.columns = used_taps(w->kernel_w, w->stride_w, w->dilation_w, w->pad_left, in->w, out->w);
    filters.weights += (view.rows.first * w->kernel_w + view.columns.first) * in->c;
    filters.depth = view.rows.count * view.columns.count * in->c;
    filters_start(&filters);

    int8_t *output = activation(memory, out), *previous = output;
    uint32_t pair = 1; /* the first pixel is the second of its pair */
    for (uint32_t y = 0; y < out->h; y++)
        for (uint32_t x = 0; x < out->w; x++, output += out->c, pair ^= 1) {
            filters_input(&filters, gather(&view, y, x), pair);
            if (y + x == 0)
                filters_apply_first(&filters, output);
            else if (pair)
                filters_apply(&filters, previous, output);
            previous = output;
        }
    if (pair) { /* one is left: both are the same */
        filters_input(&filters, gather(&view, out->h - 1, out->w - 1), 1);
        filters_apply(&filters, previous, previous);
    }
}
