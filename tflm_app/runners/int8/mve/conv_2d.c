/* CONV_2D: the input under two windows is laid out for the filters; taps that only ever see padding are left out. */
#include "runners/int8/mve/filters.h"
#include "runners/int8/mve/shallow.h"

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

static bool usable(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    uint32_t channels = tensor_out(plan, op)->c;
    return channels >= FILTERS_LEAST && mve_shifts_right(plan, &conv->filter, channels);
}

/* Where the windows of one row of outputs lie: in the input itself, or in a strip with the padding around it. */
struct view {
    const struct plan_window *window;
    const struct plan_tensor *in;
    struct taps rows, columns;
    uint32_t pitch;                     /* bytes from one row of taps to the next */
    uint32_t pieces, piece, piece_step; /* of a row of taps: what is contiguous; bytes of it, and to the next one */
    bool in_blocks;                     /* pieces are multiples of 16 bytes */
    uint32_t strip_columns;             /* of input, for all windows of a row */
    int8_t *strip, *patch;              /* scratch; patch: the taps of one window where pieces are not in blocks */
};

static struct view view_of(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct view v = {
        .window = w,
        .in = in,
        .rows = used_taps(w->kernel_h, w->stride_h, w->dilation_h, w->pad_top, in->h, out->h),
        .columns = {0, w->kernel_w},
    };
    if (v.rows.count == 1) /* what is used of a filter has to be in one piece */
        v.columns = used_taps(w->kernel_w, w->stride_w, w->dilation_w, w->pad_left, in->w, out->w);
    bool dilated = w->dilation_w > 1;
    v.pieces = dilated ? v.columns.count : 1;
    v.piece = dilated ? in->c : v.columns.count * in->c;
    v.piece_step = w->dilation_w * in->c;
    v.in_blocks = v.piece % 16 == 0;
    v.strip_columns = (out->w - 1) * w->stride_w + (v.columns.count - 1) * w->dilation_w + 1;
    return v;
}

static uint32_t view_depth(const struct view *v)
{
    return v->rows.count * v->columns.count * v->in->c;
}

static bool is_one_tap(const struct view *v)
{
    return v->rows.count * v->columns.count == 1;
}

static bool is_shallow(const struct view *v)
{
    return is_one_tap(v) && v->in->c <= SHALLOW_DEPTH;
}

static uint32_t strip_bytes(const struct view *v)
{
    return v->rows.count * v->strip_columns * v->in->c;
}

size_t mve_conv_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    if (!usable(plan, op))
        return conv_2d_scratch(plan, op);
    struct view v = view_of(plan, op);
    uint32_t depth = view_depth(&v);
    const struct plan_tensor *out = tensor_out(plan, op);
    return filters_scratch(out, depth) + strip_bytes(&v) + (v.in_blocks ? 0 : depth) + SHALLOW_DEPTH;
}

/* The first window of output row y; the next ones are a stride to the right. */
static const int8_t *enter_row(struct view *v, const int8_t *input, uint32_t y)
{
    const struct plan_window *w = v->window;
    const struct plan_tensor *in = v->in;
    int32_t top = (int32_t)(y * w->stride_h + v->rows.first * w->dilation_h) - (int32_t)w->pad_top;
    int32_t left = (int32_t)(v->columns.first * w->dilation_w) - (int32_t)w->pad_left;
    int32_t bottom = top + (int32_t)((v->rows.count - 1) * w->dilation_h), right = left + (int32_t)v->strip_columns;
    uint32_t row_bytes = in->w * in->c;
    if (top >= 0 && bottom < (int32_t)in->h && left >= 0 && right <= (int32_t)in->w) {
        v->pitch = w->dilation_h * row_bytes;
        return input + (uint32_t)top * row_bytes + (uint32_t)left * in->c;
    }
    v->pitch = v->strip_columns * in->c;
    uint32_t before = left < 0 ? (uint32_t)-left * in->c : 0;
    uint32_t after = right > (int32_t)in->w ? ((uint32_t)right - in->w) * in->c : 0, inside = v->pitch - before - after;
    int8_t *to = v->strip;
    for (uint32_t ky = 0; ky < v->rows.count; ky++, top += (int32_t)w->dilation_h, to += v->pitch) {
        if (!is_inside(top, in->h)) {
            mve_fill(to, (int8_t)in->zero_point, v->pitch);
            continue;
        }
        mve_fill(to, (int8_t)in->zero_point, before);
        mve_copy(to + before, input + (uint32_t)top * row_bytes + (left > 0 ? (uint32_t)left * in->c : 0), inside);
        mve_fill(to + before + inside, (int8_t)in->zero_point, after);
    }
    return v->strip;
}

/* count pieces of so many bytes, a step apart, to one after the other: in the patch, or (in_blocks) to every second
 * block of 16 bytes. Where they end. */
static inline int8_t *copy_pieces(int8_t *to, const int8_t *from, uint32_t bytes, uint32_t count, uint32_t step,
                                  bool in_blocks)
{
    const int8_t *source;
    int8_t *target;
    if (in_blocks)
        __asm volatile("1: mov %[source], %[from]\n"
                       "wlstp.8 lr, %[bytes], 3f\n"
                       "2: vldrb.8 q0, [%[source]], #16\n"
                       "vstrb.8 q0, [%[to]], #32\n"
                       "letp lr, 2b\n"
                       "3: add %[from], %[from], %[step]\n"
                       "subs %[count], %[count], #1\n"
                       "bne 1b\n"
                       : [to] "+r"(to), [from] "+r"(from), [count] "+r"(count), [source] "=&r"(source)
                       : [bytes] "r"(bytes), [step] "r"(step)
                       : "q0", "lr", "cc", "memory");
    else
        __asm volatile(
            "1: mov %[source], %[from]\n"
            "mov %[target], %[to]\n"
            "wlstp.8 lr, %[bytes], 3f\n"
            "2: vldrb.8 q0, [%[source]], #16\n"
            "vstrb.8 q0, [%[target]], #16\n"
            "letp lr, 2b\n"
            "3: add %[from], %[from], %[step]\n"
            "add %[to], %[to], %[bytes]\n"
            "subs %[count], %[count], #1\n"
            "bne 1b\n"
            : [to] "+r"(to), [from] "+r"(from), [count] "+r"(count), [source] "=&r"(source), [target] "=&r"(target)
            : [bytes] "r"(bytes), [step] "r"(step)
            : "q0", "lr", "cc", "memory");
    return to;
}

/* The inputs of a window, for the filters. */
static void gather(const struct view *v, const struct filters *filters, const int8_t *window, uint32_t pixel)
{
    if (is_one_tap(v)) {
        filters_input(filters, window, pixel);
        return;
    }
    int8_t *to = v->in_blocks ? filters->inputs + 16 * pixel : v->patch;
    if (v->pieces == 1) {
        copy_pieces(to, window, v->piece, v->rows.count, v->pitch, v->in_blocks);
    } else {
        for (uint32_t ky = 0; ky < v->rows.count; ky++, window += v->pitch)
            to = copy_pieces(to, window, v->piece, v->pieces, v->piece_step, v->in_blocks);
    }
    if (!v->in_blocks)
        filters_input(filters, v->patch, pixel);
}

static void shallow_rows(struct view *v, const struct filters *filters, const int8_t *input,
                         const struct plan_tensor *out, int8_t *output)
{
    uint32_t step = v->window->stride_w * v->in->c;
    if (out->h == v->in->h && out->w == v->in->w && v->window->pad_top + v->window->pad_left == 0) {
        shallow_row(filters, input, step, out->h * out->w, output); /* of all rows */
        return;
    }
    for (uint32_t y = 0; y < out->h; y++, output += out->w * out->c)
        shallow_row(filters, enter_row(v, input, y), step, out->w, output);
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
    struct view view = view_of(plan, op);
    uint32_t depth = view_depth(&view), first = (view.rows.first * w->kernel_w + view.columns.first) * in->c;
    struct filters filters =
        filters_of(plan, op, &conv->filter, w->kernel_h * w->kernel_w * in->c, first, depth, memory.scratch);
    view.strip = (int8_t *)memory.scratch + filters_scratch(out, depth);
    view.patch = view.strip + strip_bytes(&view);
    if (is_shallow(&view)) {
        shallow_rows(&view, &filters, activation(memory, in), out, activation(memory, out));
        return;
    }
    const int8_t *input = activation(memory, in), *window = input;
    int8_t *output = activation(memory, out), *previous = output;
    uint32_t step = w->stride_w * in->c, pair = 1; /* the first pixel is the second of its pair */
    for (uint32_t y = 0; y < out->h; y++) {
        window = enter_row(&view, input, y);
        for (uint32_t x = 0; x < out->w; x++, window += step, output += out->c, pair ^= 1) {
            gather(&view, &filters, window, pair);
            if (y + x == 0)
                filters_apply_first(&filters, output);
            else if (pair)
                filters_apply(&filters, previous, output);
            previous = output;
        }
    }
    if (pair) { /* one is left: both are the same */
        gather(&view, &filters, window - step, 1);
        filters_apply(&filters, previous, previous);
    }
}
