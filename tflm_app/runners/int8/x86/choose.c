/* Which kernels this machine runs: decided once, at start. ZO_KERNELS=amx|vnni|avx2|portable in the environment asks
 * for less than the best (for tests and comparisons). */
#include <stdlib.h>
#include <string.h>

#include "runners/int8/x86/packed.h"
#include "runners/int8/x86/tiles.h"

enum { BLOCK_BYTES = 4 << 20 };

#define AVX512_OPS                                                                                                     \
    [PLAN_DEPTHWISE_CONV_2D] = {depthwise_conv_2d_vnni, true, depthwise_conv_2d_vnni_scratch},                         \
    [PLAN_ADD] = {add_avx512, true, NULL}, [PLAN_MEAN] = {mean_avx512, true, mean_scratch},                            \
    [PLAN_MAX_POOL_2D] = {max_pool_2d_avx512, true, max_pool_2d_avx512_scratch}

static const struct kernel_set avx2_kernels = {
    .name = "int8 avx2",
    .ops =
        {
            [PLAN_CONV_2D] = {product_avx2, true, product_avx2_scratch},
            [PLAN_FULLY_CONNECTED] = {product_avx2, true, product_avx2_scratch},
            [PLAN_DEPTHWISE_CONV_2D] = {depthwise_conv_2d, false, depthwise_conv_2d_scratch},
            [PLAN_ADD] = {add, false, NULL},
            [PLAN_MEAN] = {mean, false, mean_scratch},
            [PLAN_MAX_POOL_2D] = {max_pool_2d, false, NULL},
            [PLAN_AVERAGE_POOL_2D] = {average_pool_2d, false, average_pool_2d_scratch},
            PLAIN_OPS,
        },
    .block_bytes = BLOCK_BYTES,
    .packed_bytes = packed_bytes_avx2,
    .pack = pack_avx2,
};

static const struct kernel_set vnni_kernels = {
    .name = "int8 vnni",
    .ops =
        {
            [PLAN_CONV_2D] = {product_vnni, true, product_vnni_scratch},
            [PLAN_FULLY_CONNECTED] = {product_vnni, true, product_vnni_scratch},
            AVX512_OPS,
            [PLAN_AVERAGE_POOL_2D] = {average_pool_2d, false, average_pool_2d_scratch},
            PLAIN_OPS,
        },
    .block_bytes = BLOCK_BYTES,
    .packed_bytes = packed_bytes_vnni,
    .pack = pack_vnni,
};

static const struct kernel_set amx_kernels = {
    .name = "int8 amx",
    .ops =
        {
            [PLAN_CONV_2D] = {product_amx, true, product_amx_scratch},
            [PLAN_FULLY_CONNECTED] = {product_amx, true, product_amx_scratch},
            AVX512_OPS,
            [PLAN_AVERAGE_POOL_2D] = {average_pool_2d, false, average_pool_2d_scratch},
            PLAIN_OPS,
        },
    .block_bytes = BLOCK_BYTES,
    .packed_bytes = packed_bytes_amx,
    .pack = pack_amx,
};

static bool have_vnni(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

static bool have_amx(void)
{
    return have_vnni() && tiles_permitted();
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static const struct {
    const struct kernel_set *set;
    bool (*have)(void);
} sets[] = {{&amx_kernels, have_amx}, {&vnni_kernels, have_vnni}, {&avx2_kernels, have_avx2}};

const struct kernel_set *kernel_set_choose(void)
{
    enum { COUNT = sizeof sets / sizeof sets[0] };
    const char *most = getenv("ZO_KERNELS");
    bool allowed = most == NULL;
    for (int i = 0; i < COUNT; i++) {
        allowed = allowed || strcmp(most, sets[i].set->name + strlen("int8 ")) == 0;
        if (allowed && sets[i].have())
            return sets[i].set;
    }
    return &portable_kernels;
}
