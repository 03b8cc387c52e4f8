/* The kernels in plain C, one sample at a time, weights where they are: for any machine. */
#include "runners/int8/kernels.h"

const struct kernel_set portable_kernels = {
    .name = "int8 portable",
    .ops =
        {
            [PLAN_CONV_2D] = {conv_2d, false, conv_2d_scratch},
            [PLAN_DEPTHWISE_CONV_2D] = {depthwise_conv_2d, false, depthwise_conv_2d_scratch},
            [PLAN_FULLY_CONNECTED] = {fully_connected, false, fully_connected_scratch},
            [PLAN_ADD] = {add, false, NULL},
            [PLAN_MEAN] = {mean, false, mean_scratch},
            [PLAN_MAX_POOL_2D] = {max_pool_2d, false, NULL},
            [PLAN_AVERAGE_POOL_2D] = {average_pool_2d, false, average_pool_2d_scratch},
            PLAIN_OPS,
        },
};
