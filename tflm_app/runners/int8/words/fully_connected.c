#include "runners/int8/words/words.h"

enum { FILTERS = 4 }; /* at a time: each input is loaded once for all of them */

/* acc[f] += weights[f] . (in - zero point), for FILTERS filters. */
static void dot_products(const int8_t *weights, const int8_t *in, uint32_t depth, int32_t zero_point, int32_t *acc)
{
    const int8_t *w0 = weights, *w1 = w0 + depth, *w2 = w1 + depth, *w3 = w2 + depth;
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    uint32_t i = 0;
    for (; i + 4 <= depth; i += 4) {
        uint32_t x = load_word(in + i), a = load_word(w0 + i), b = load_word(w1 + i), c = load_word(w2 + i),
                 d = load_word(w3 + i);
        for (int k = 0; k < 4; k++) {
            int32_t value = byte_of(x, k) - zero_point;
            s0 += byte_of(a, k) * value;
            s1 += byte_of(b, k) * value;
            s2 += byte_of(c, k) * value;
            s3 += byte_of(d, k) * value;
        }
    }
    for (; i < depth; i++) {
        int32_t value = in[i] - zero_point;
        s0 += w0[i] * value;
        s1 += w1[i] * value;
        s2 += w2[i] * value;
        s3 += w3[i] * value;
    }
    acc[0] += s0;
    acc[1] += s1;
    acc[2] += s2;
    acc[3] += s3;
}

static int32_t dot(const int8_t *weights, const int8_t *in, uint32_t depth, int32_t zero_point)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < depth; i++)
        sum += (in[i] - zero_point) * weights[i];
    return sum;
}

void words_filters(const int8_t *weights, const int8_t *in, uint32_t depth, int32_t zero_point, uint32_t channels,
                   int32_t *acc)
{
    uint32_t c = 0;
    for (; c + FILTERS <= channels; c += FILTERS)
        dot_products(weights + c * depth, in, depth, zero_point, acc + c);
    for (; c < channels; c++)
        acc[c] += dot(weights + c * depth, in, depth, zero_point);
}

void words_fully_connected(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_fully_connected *fc = (const struct plan_fully_connected *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    uint32_t rows = plan_elements(out) / out->c, depth = plan_elements(in) / rows;
    const int8_t *input = activation(memory, in);
    const int8_t *weights = (const int8_t *)plan->model + fc->filter.weights;
    int8_t *output = activation(memory, out);
    int32_t *acc = memory.scratch;
    for (uint32_t row = 0; row < rows; row++, input += depth, output += out->c) {
        load_bias(plan, &fc->filter, out->c, acc);
        words_filters(weights, input, depth, in->zero_point, out->c, acc);
        requantize_channels(plan, op, &fc->filter, acc, out->c, output);
    }
}
