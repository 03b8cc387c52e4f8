/* The kernels in plain C, one sample at a time, weights where they are: for any machine. */
#include "runners/int8/kernels.h"

const struct kernel_set portable_kernels = {
    .name = "portable",
    .ops =
        {
            [PLAN_CONV_2D] = {conv_2d, false, conv_2d_scratch},
            [PLAN_DEPTHWISE_CONV_2D] = {depthwise_conv_2d, false, depthwise_conv_2d_scratch},
            [PLAN_FULLY_CONNECTED] = {fully_connected, false, fully_connected_scratch},
            [PLAN_ADD] = {add, false, NULL},
            [PLAN_MEAN] = {mean, false, mean_scratch},
            [PLAN_MAX_POOL_2D] = {max_pool_2d, false, NULL},
            [PLAN_AVERAGE_POOL_2D] = {average_pool_2d, false, NULL},
            [PLAN_PAD] = {pad, false, NULL},
            [PLAN_SOFTMAX] = {softmax, false, NULL},
            [PLAN_QUANTIZE] = {quantize, false, NULL},
            [PLAN_RELU6] = {relu6, false, NULL},
            [PLAN_TABLE] = {table, false, NULL},
            [PLAN_BROADCAST_ADD] = {broadcast_add, false, NULL},
            [PLAN_SUB] = {sub, false, NULL},
            [PLAN_MUL] = {mul, false, NULL},
            [PLAN_PLACE] = {place, false, NULL},
            [PLAN_PICK] = {pick, false, NULL},
            [PLAN_TRANSPOSE_CONV] = {transpose_conv, false, transpose_conv_scratch},
            [PLAN_MINIMUM] = {minimum, false, NULL},
            [PLAN_MAXIMUM] = {maximum, false, NULL},
            [PLAN_PRELU] = {prelu, false, NULL},
        },
};
