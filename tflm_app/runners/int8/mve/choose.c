/* The kernels for a Cortex-M55 (or -M85, -M52): Helium for the ops that take time. */
#include "runners/int8/mve/mve.h"

static const struct kernel_set mve_kernels = {
    .name = "int8 mve",
    .ops =
        {
            [PLAN_CONV_2D] = {mve_conv_2d, false, mve_conv_2d_scratch},
            [PLAN_DEPTHWISE_CONV_2D] = {mve_depthwise_conv_2d, false, mve_depthwise_conv_2d_scratch},
            [PLAN_FULLY_CONNECTED] = {mve_fully_connected, false, mve_fully_connected_scratch},
            [PLAN_ADD] = {mve_add, false, NULL},
            [PLAN_MEAN] = {mve_mean, false, mve_mean_scratch},
            [PLAN_MAX_POOL_2D] = {mve_max_pool_2d, false, NULL},
            [PLAN_AVERAGE_POOL_2D] = {mve_average_pool_2d, false, average_pool_2d_scratch},
            PLAIN_OPS,
        },
};

const struct kernel_set *kernel_set_choose(void)
{
    return &mve_kernels;
}
