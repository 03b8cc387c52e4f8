#include "runners/int8/words/words.h"

static const struct kernel_set words_kernels = {
    .name = "int8 words",
    .ops =
        {
            [PLAN_CONV_2D] = {words_conv_2d, false, words_conv_2d_scratch},
            [PLAN_DEPTHWISE_CONV_2D] = {depthwise_conv_2d, false, depthwise_conv_2d_scratch},
            [PLAN_FULLY_CONNECTED] = {words_fully_connected, false, fully_connected_scratch},
            [PLAN_ADD] = {add, false, NULL},
            [PLAN_MEAN] = {mean, false, mean_scratch},
            [PLAN_MAX_POOL_2D] = {max_pool_2d, false, NULL},
            [PLAN_AVERAGE_POOL_2D] = {average_pool_2d, false, average_pool_2d_scratch},
            PLAIN_OPS,
        },
};

const struct kernel_set *kernel_set_choose(void)
{
    return &words_kernels;
}
