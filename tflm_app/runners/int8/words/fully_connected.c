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

void words_filters(const int8_t *weights, const int8_t *in, uint32_t depth, int32_t zero_point, uint32_t channels,
                   int32_t *acc)
{
    uint32_t c = 0;
    for (; c + FILTERS <= channels; c += FILTERS)
        dot_products(weights + c * depth, in, depth, zero_point, acc + c);
    dot_filters(weights + c * depth, in, depth, zero_point, channels - c, acc + c);
}

void words_fully_connected(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    fully_connected_by(words_filters, plan, op, memory);
}
