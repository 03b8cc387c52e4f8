/* Cross-entropy of int8 logits in integers (docs/method.md, "Loss"). */
#ifndef ZO_LOSS_H
#define ZO_LOSS_H

#include <stdint.h>

/* The image's LOSS section. exp[k] = round(2^24 * exp(-k * s)); scale_q24 = s in Q24, below 16. */
struct zo_loss_table {
    uint32_t classes;
    uint32_t scale_q24;
    uint32_t reserved[2];
    uint32_t exp[256];
};

/* Loss of one sample in Q16 nats. */
uint32_t zo_sample_loss(const struct zo_loss_table *table, const int8_t *logits, uint32_t label);

/* Lowest index of the largest logit. */
uint32_t zo_argmax(const int8_t *logits, uint32_t classes);

#endif
