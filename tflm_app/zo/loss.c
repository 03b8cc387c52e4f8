#include "zo/loss.h"

enum { LOG2_BITS = 20 };
#define LN2_Q30 744261118u /* round(ln 2 * 2^30) */

/* log2(s / 2^24) in Q20, for s >= 2^24: repeated squaring of the mantissa. */
static uint32_t log2_q20(uint64_t s)
{
    uint32_t exponent = 0;
    while (s >> exponent > 1)
        exponent++;
    uint64_t m = exponent > 31 ? s >> (exponent - 31) : s << (31 - exponent); /* Q31 in [1, 2) */
    uint32_t fraction = 0;
    for (int i = 0; i < LOG2_BITS; i++) {
        m = (m * m) >> 31;
        uint32_t bit = (uint32_t)(m >> 32);
        m >>= bit;
        fraction = fraction << 1 | bit;
    }
    return (exponent - 24) << LOG2_BITS | fraction;
}

uint32_t zo_argmax(const int8_t *logits, uint32_t classes)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c < classes; c++)
        if (logits[c] > logits[best])
            best = c;
    return best;
}

uint32_t zo_sample_loss(const struct zo_loss_table *table, const int8_t *logits, uint32_t label)
{
    int32_t max = logits[zo_argmax(logits, table->classes)];
    uint64_t sum = 0;
    for (uint32_t c = 0; c < table->classes; c++)
        sum += table->exp[max - logits[c]];
    uint64_t log_sum = (uint64_t)log2_q20(sum) * LN2_Q30;                         /* Q50 */
    uint64_t margin = ((uint64_t)(max - logits[label]) * table->scale_q24) << 26; /* Q24 to Q50 */
    return (uint32_t)((log_sum + margin + (1ull << 33)) >> 34);
}
