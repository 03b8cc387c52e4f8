#include "image/plan.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    HEADER_WORDS = 8,
    TENSOR_WORDS = sizeof(struct plan_tensor) / 4,
    MAX_DIM = 1 << 15,
    MAX_ELEMENTS = 1 << 27,
    MAX_DEPTH = 1 << 16, /* products in one accumulator: 2^16 * 255 * 127 < 2^31 */
};

/* What a check compares with; one of these a plan. */
struct context {
    const struct plan *plan;
    uint32_t model_size, pool_size;
};

/* Every check has a number, which the refusal carries. */
#define REQUIRE(number, condition)                                                                                     \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (number);                                                                                           \
    } while (0)

static bool valid_shift(int32_t shift)
{
    return shift >= -31 && shift <= 30;
}

static bool valid_scale(struct plan_scale scale)
{
    return scale.multiplier >= 0 && valid_shift(scale.shift);
}

static bool same_shape(const struct plan_tensor *a, const struct plan_tensor *b)
{
    return a->h == b->h && a->w == b->w && a->c == b->c;
}

static uint32_t check_tensor(const struct plan_tensor *t, uint32_t arena)
{
    REQUIRE(10, t->h >= 1 && t->w >= 1 && t->c >= 1 && t->h <= MAX_DIM && t->w <= MAX_DIM && t->c <= MAX_DIM);
    uint64_t elements = (uint64_t)t->h * t->w * t->c;
    REQUIRE(11, elements <= MAX_ELEMENTS);
    REQUIRE(12, t->at + elements <= arena);
    REQUIRE(13, t->zero_point >= -128 && t->zero_point <= 127);
    return 0;
}

static uint32_t check_window(const struct plan_window *w, const struct plan_tensor *in, const struct plan_tensor *out)
{
    REQUIRE(20, w->kernel_h >= 1 && w->kernel_w >= 1 && w->kernel_h <= MAX_DIM && w->kernel_w <= MAX_DIM);
    REQUIRE(21, w->stride_h >= 1 && w->stride_w >= 1 && w->stride_h <= MAX_DIM && w->stride_w <= MAX_DIM);
    REQUIRE(22, w->dilation_h >= 1 && w->dilation_w >= 1 && w->dilation_h <= MAX_DIM && w->dilation_w <= MAX_DIM);
    uint64_t extent_h = (uint64_t)(w->kernel_h - 1) * w->dilation_h + 1;
    uint64_t extent_w = (uint64_t)(w->kernel_w - 1) * w->dilation_w + 1;
    REQUIRE(23, extent_h <= MAX_DIM && extent_w <= MAX_DIM && w->pad_top < extent_h && w->pad_left < extent_w);
    /* every window covers at least one input: no empty average, no index beyond int32 */
    REQUIRE(24, (uint64_t)(out->h - 1) * w->stride_h < (uint64_t)in->h + w->pad_top);
    REQUIRE(25, (uint64_t)(out->w - 1) * w->stride_w < (uint64_t)in->w + w->pad_left);
    return 0;
}

static uint32_t check_filter(const struct context *ctx, const struct plan_filter *f, uint64_t weights,
                             uint32_t channels)
{
    REQUIRE(30, f->weights + weights <= ctx->model_size);
    REQUIRE(31, f->bias == PLAN_NO_BIAS || (f->bias % 4 == 0 && f->bias + 4ull * channels <= ctx->model_size));
    REQUIRE(32, f->scales + 2ull * channels <= ctx->pool_size);
    const int32_t *scales = ctx->plan->pool + f->scales;
    for (uint32_t c = 0; c < channels; c++)
        REQUIRE(33, scales[c] >= 0 && valid_shift(scales[channels + c]));
    return 0;
}

static uint32_t check_conv(const struct context *ctx, const struct plan_conv *conv, const struct plan_tensor *in,
                           const struct plan_tensor *out)
{
    const struct plan_window *w = &conv->window;
    uint32_t failed = check_window(w, in, out);
    if (failed)
        return failed;
    uint64_t area = (uint64_t)w->kernel_h * w->kernel_w;
    if (conv->op.kind == PLAN_DEPTHWISE_CONV_2D) {
        REQUIRE(40, out->c % in->c == 0 && area <= MAX_DEPTH);
        return check_filter(ctx, &conv->filter, area * out->c, out->c);
    }
    REQUIRE(41, area * in->c <= MAX_DEPTH);
    return check_filter(ctx, &conv->filter, area * in->c * out->c, out->c);
}

static uint32_t check_fully_connected(const struct context *ctx, const struct plan_fully_connected *fc,
                                      const struct plan_tensor *in, const struct plan_tensor *out)
{
    uint32_t rows = plan_elements(out) / out->c;
    REQUIRE(50, plan_elements(in) % rows == 0);
    uint32_t depth = plan_elements(in) / rows;
    REQUIRE(51, depth <= MAX_DEPTH);
    return check_filter(ctx, &fc->filter, (uint64_t)depth * out->c, out->c);
}

static uint32_t check_mean(const struct plan_mean *mean, const struct plan_tensor *in, const struct plan_tensor *out)
{
    REQUIRE(60, mean->axes < 8 && valid_scale(mean->scale));
    uint32_t count = (mean->axes & 1 ? in->h : 1) * (mean->axes & 2 ? in->w : 1) * (mean->axes & 4 ? in->c : 1);
    REQUIRE(61, mean->count == count && count <= 1 << 23);
    REQUIRE(62, (uint64_t)plan_elements(out) * count == plan_elements(in));
    return 0;
}

static uint32_t check_pad(const struct plan_pad *pad, const struct plan_tensor *in, const struct plan_tensor *out)
{
    REQUIRE(70, (uint64_t)in->h + pad->before_h + pad->after_h == out->h);
    REQUIRE(71, (uint64_t)in->w + pad->before_w + pad->after_w == out->w);
    REQUIRE(72, (uint64_t)in->c + pad->before_c + pad->after_c == out->c);
    REQUIRE(73, pad->value >= -128 && pad->value <= 127);
    return 0;
}

static uint32_t check_pool(const struct plan_window *w, const struct plan_tensor *in, const struct plan_tensor *out)
{
    REQUIRE(90, in->c == out->c);
    REQUIRE(91, w->dilation_h == 1 && w->dilation_w == 1); /* the pools have none, and count on it */
    return check_window(w, in, out);
}

static bool broadcasts(const struct plan_tensor *in, const struct plan_tensor *out)
{
    return (in->h == out->h || in->h == 1) && (in->w == out->w || in->w == 1) && (in->c == out->c || in->c == 1);
}

static bool valid_constant(const struct context *ctx, uint32_t at, const struct plan_tensor *t)
{
    return at == PLAN_NO_CONSTANT || (uint64_t)at + plan_elements(t) <= ctx->model_size;
}

static uint32_t check_binary(const struct context *ctx, const struct plan_binary *p, const struct plan_tensor *out)
{
    const struct plan_tensor *in0 = &ctx->plan->tensors[p->op.in0], *in1 = &ctx->plan->tensors[p->op.in1];
    REQUIRE(100, broadcasts(in0, out) && broadcasts(in1, out));
    REQUIRE(101, valid_scale(p->in0) && valid_scale(p->in1) && valid_scale(p->out));
    bool sum = p->op.kind == PLAN_BROADCAST_ADD || p->op.kind == PLAN_SUB;
    REQUIRE(102, !sum || (p->in0.shift <= 0 && p->in1.shift <= 0 && p->out.shift <= 0));
    REQUIRE(103, valid_constant(ctx, p->constant0, in0) && valid_constant(ctx, p->constant1, in1));
    return 0;
}

static uint32_t check_place(const struct plan_place *p, const struct plan_tensor *in, const struct plan_tensor *out)
{
    REQUIRE(110, (uint64_t)p->at_h + in->h <= out->h);
    REQUIRE(111, (uint64_t)p->at_w + in->w <= out->w);
    REQUIRE(112, (uint64_t)p->at_c + in->c <= out->c);
    return 0;
}

static uint32_t check_pick(const struct context *ctx, const struct plan_pick *p, const struct plan_tensor *in,
                           const struct plan_tensor *out)
{
    REQUIRE(113, (uint64_t)p->first_c + out->c <= in->c);
    REQUIRE(114, (uint64_t)p->indices + out->h + out->w <= ctx->pool_size);
    const uint32_t *indices = (const uint32_t *)ctx->plan->pool + p->indices;
    for (uint32_t i = 0; i < out->h + out->w; i++)
        REQUIRE(115, indices[i] < (i < out->h ? in->h : in->w));
    return 0;
}

static uint32_t check_transpose_conv(const struct context *ctx, const struct plan_conv *conv,
                                     const struct plan_tensor *in, const struct plan_tensor *out)
{
    const struct plan_window *w = &conv->window;
    uint64_t depth = (uint64_t)w->kernel_h * w->kernel_w * in->c;
    REQUIRE(120, depth <= MAX_DEPTH);
    REQUIRE(121, w->dilation_h == 1 && w->dilation_w == 1);
    uint32_t failed = check_window(w, out, in); /* of the convolution that it transposes */
    return failed ? failed : check_filter(ctx, &conv->filter, depth * out->c, out->c);
}

static bool apart(const struct plan_tensor *a, const struct plan_tensor *b)
{
    return a->at + plan_elements(a) <= b->at || b->at + plan_elements(b) <= a->at;
}

static bool is_binary(uint32_t kind)
{
    return kind == PLAN_BROADCAST_ADD || kind == PLAN_SUB || kind == PLAN_MUL || kind == PLAN_MINIMUM ||
           kind == PLAN_MAXIMUM || kind == PLAN_PRELU;
}

/* Kernels read inputs while they write outputs. Operands stored in the model have no place in the arena. */
static uint32_t check_places(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_tensor *out = &plan->tensors[op->out];
    bool stored0 = false, stored1 = false;
    if (is_binary(op->kind)) {
        stored0 = ((const struct plan_binary *)op)->constant0 != PLAN_NO_CONSTANT;
        stored1 = ((const struct plan_binary *)op)->constant1 != PLAN_NO_CONSTANT;
    }
    REQUIRE(6, stored0 || apart(&plan->tensors[op->in0], out));
    REQUIRE(7, stored1 || apart(&plan->tensors[op->in1], out));
    return 0;
}

static uint32_t check_op(const struct context *ctx, const struct plan_op *op)
{
    static const uint8_t words[PLAN_KINDS] = {
        [PLAN_CONV_2D] = sizeof(struct plan_conv) / 4,
        [PLAN_DEPTHWISE_CONV_2D] = sizeof(struct plan_conv) / 4,
        [PLAN_FULLY_CONNECTED] = sizeof(struct plan_fully_connected) / 4,
        [PLAN_ADD] = sizeof(struct plan_add) / 4,
        [PLAN_MEAN] = sizeof(struct plan_mean) / 4,
        [PLAN_MAX_POOL_2D] = sizeof(struct plan_pool) / 4,
        [PLAN_AVERAGE_POOL_2D] = sizeof(struct plan_pool) / 4,
        [PLAN_PAD] = sizeof(struct plan_pad) / 4,
        [PLAN_SOFTMAX] = sizeof(struct plan_softmax) / 4,
        [PLAN_QUANTIZE] = sizeof(struct plan_quantize) / 4,
        [PLAN_RELU6] = sizeof(struct plan_op) / 4,
        [PLAN_TABLE] = sizeof(struct plan_table) / 4,
        [PLAN_BROADCAST_ADD] = sizeof(struct plan_binary) / 4,
        [PLAN_SUB] = sizeof(struct plan_binary) / 4,
        [PLAN_MUL] = sizeof(struct plan_binary) / 4,
        [PLAN_PLACE] = sizeof(struct plan_place) / 4,
        [PLAN_PICK] = sizeof(struct plan_pick) / 4,
        [PLAN_TRANSPOSE_CONV] = sizeof(struct plan_conv) / 4,
        [PLAN_MINIMUM] = sizeof(struct plan_binary) / 4,
        [PLAN_MAXIMUM] = sizeof(struct plan_binary) / 4,
        [PLAN_PRELU] = sizeof(struct plan_binary) / 4,
    };
    REQUIRE(2, op->kind >= 1 && op->kind < PLAN_KINDS && op->words == words[op->kind]);
    const struct plan *plan = ctx->plan;
    REQUIRE(3, op->in0 < plan->tensor_count && op->in1 < plan->tensor_count && op->out < plan->tensor_count);
    REQUIRE(4, op->min >= -128 && op->max <= 127 && op->min <= op->max);
    const struct plan_tensor *in = &plan->tensors[op->in0], *out = &plan->tensors[op->out];
    switch (op->kind) {
    case PLAN_CONV_2D:
    case PLAN_DEPTHWISE_CONV_2D:
        return check_conv(ctx, (const struct plan_conv *)op, in, out);
    case PLAN_FULLY_CONNECTED:
        return check_fully_connected(ctx, (const struct plan_fully_connected *)op, in, out);
    case PLAN_ADD: {
        const struct plan_add *add = (const struct plan_add *)op;
        REQUIRE(80, same_shape(in, out) && same_shape(&plan->tensors[op->in1], out));
        REQUIRE(81, valid_scale(add->in0) && valid_scale(add->in1) && valid_scale(add->out));
        REQUIRE(82, add->in0.shift <= 0 && add->in1.shift <= 0 && add->out.shift <= 0);
        return 0;
    }
    case PLAN_MEAN:
        return check_mean((const struct plan_mean *)op, in, out);
    case PLAN_MAX_POOL_2D:
    case PLAN_AVERAGE_POOL_2D:
        return check_pool(&((const struct plan_pool *)op)->window, in, out);
    case PLAN_PAD:
        return check_pad((const struct plan_pad *)op, in, out);
    case PLAN_SOFTMAX: {
        const struct plan_softmax *softmax = (const struct plan_softmax *)op;
        REQUIRE(95, same_shape(in, out) && valid_scale(softmax->scale) && softmax->scale.shift >= 0);
        REQUIRE(99, softmax->diff_min <= 0); /* the largest logit itself counts: the sum is not 0 */
        REQUIRE(96, in->c <= 2048);          /* the sum of exponentials has 12 integer bits */
        return 0;
    }
    case PLAN_QUANTIZE:
        REQUIRE(97, same_shape(in, out) && valid_scale(((const struct plan_quantize *)op)->scale));
        return 0;
    case PLAN_RELU6:
        REQUIRE(98, same_shape(in, out));
        return 0;
    case PLAN_TABLE:
        REQUIRE(104, same_shape(in, out));
        REQUIRE(105, ((const struct plan_table *)op)->values + 64ull <= ctx->pool_size);
        return 0;
    case PLAN_PLACE:
        return check_place((const struct plan_place *)op, in, out);
    case PLAN_PICK:
        return check_pick(ctx, (const struct plan_pick *)op, in, out);
    case PLAN_TRANSPOSE_CONV:
        return check_transpose_conv(ctx, (const struct plan_conv *)op, in, out);
    default: /* the kinds of struct plan_binary */
        return check_binary(ctx, (const struct plan_binary *)op, out);
    }
}

struct status plan_open(struct plan *plan, const uint32_t *words, uint32_t count, const uint8_t *model,
                        uint32_t model_size)
{
    if (count < HEADER_WORDS)
        return STATUS(STATUS_IMAGE_PLAN, 0, 1);
    uint32_t ops_at = words[5], pool_at = words[6], pool_size = words[7];
    plan->tensor_count = words[0];
    plan->op_count = words[1];
    plan->input = words[2];
    plan->output = words[3];
    plan->arena = words[4];
    if (plan->tensor_count > count / TENSOR_WORDS || ops_at != HEADER_WORDS + plan->tensor_count * TENSOR_WORDS ||
        pool_at < ops_at || pool_at > count || pool_size > count - pool_at || plan->input >= plan->tensor_count ||
        plan->output >= plan->tensor_count || plan->arena > MAX_ELEMENTS)
        return STATUS(STATUS_IMAGE_PLAN, 0, 1);
    plan->tensors = (const struct plan_tensor *)(words + HEADER_WORDS);
    plan->ops = words + ops_at;
    plan->pool = (const int32_t *)words + pool_at;
    plan->model = model;
    for (uint32_t t = 0; t < plan->tensor_count; t++) {
        uint32_t failed = check_tensor(&plan->tensors[t], plan->arena);
        if (failed)
            return STATUS(STATUS_IMAGE_PLAN, t, failed);
    }
    struct context ctx = {plan, model_size, pool_size};
    uint32_t at = ops_at;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        if (pool_at - at < sizeof(struct plan_op) / 4 || words[at + 1] > pool_at - at)
            return STATUS(STATUS_IMAGE_PLAN, i, 5);
        const struct plan_op *op = (const struct plan_op *)(words + at);
        uint32_t failed = check_op(&ctx, op);
        if (!failed)
            failed = check_places(plan, op);
        if (failed)
            return STATUS(STATUS_IMAGE_PLAN, i, failed);
        at += words[at + 1];
    }
    return STATUS(STATUS_OK, 0, 0);
}

bool plan_has_filter(const struct plan *plan, uint32_t offset, uint32_t size)
{
    bool found = false;
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    for (uint32_t i = 0; i < plan->op_count; i++, op = plan_next(op)) {
        const struct plan_tensor *in = &plan->tensors[op->in0], *out = &plan->tensors[op->out];
        const struct plan_conv *conv = (const struct plan_conv *)op;
        const struct plan_filter *filter = &conv->filter;
        uint64_t weights;
        if (op->kind == PLAN_FULLY_CONNECTED) {
            filter = &((const struct plan_fully_connected *)op)->filter;
            weights = (uint64_t)plan_elements(in) / (plan_elements(out) / out->c) * out->c;
        } else if (op->kind == PLAN_CONV_2D || op->kind == PLAN_DEPTHWISE_CONV_2D) {
            uint32_t depth = op->kind == PLAN_CONV_2D ? in->c : 1;
            weights = (uint64_t)conv->window.kernel_h * conv->window.kernel_w * depth * out->c;
        } else {
            continue;
        }
        if (filter->bias != PLAN_NO_BIAS && filter->bias < (uint64_t)offset + size &&
            offset < filter->bias + 4ull * out->c)
            return false;
        found = found || (filter->weights == offset && weights == size);
    }
    return found;
}
