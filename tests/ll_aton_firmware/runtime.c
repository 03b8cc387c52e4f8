/* Stand-in (README.md): one epoch, on registers of tests/stm32n6_npu.py. */
#include "ll_aton_runtime.h"

#include <stdbool.h>

#include "ll_aton_caches_interface.h"
#include "mcu_cache.h"
#include "npu_cache.h"

#define NPU(number) (*(volatile uint32_t *)(0x580E0000u + 4u * (number)))

enum { INPUT_ADDRESS, INPUT_BYTES, OUTPUT_ADDRESS, OUTPUT_BYTES, RUN };

static LL_Buffer_InfoTypeDef input[2], output[2];
static bool done;

static LL_Buffer_InfoTypeDef buffer(const char *name, uint32_t address, uint32_t bytes)
{
    return (LL_Buffer_InfoTypeDef){
        .name = name, .addr_base = {.i = address}, .offset_end = bytes, .type = DataType_INT8, .nbits = 8};
}

void LL_ATON_RT_RuntimeInit(void)
{
    input[0] = buffer("Input_0_out_0", NPU(INPUT_ADDRESS), NPU(INPUT_BYTES));
    output[0] = buffer("Output_out_0", NPU(OUTPUT_ADDRESS), NPU(OUTPUT_BYTES));
}

void LL_ATON_RT_Init_Network(NN_Instance_TypeDef *instance)
{
    (void)instance;
}

LL_ATON_RT_RetValues_t LL_ATON_RT_RunEpochBlock(NN_Instance_TypeDef *instance)
{
    (void)instance;
    if (done)
        return LL_ATON_RT_DONE;
    NPU(RUN) = 1;
    while (NPU(RUN))
        continue;
    done = true;
    return LL_ATON_RT_NO_WFE;
}

void LL_ATON_RT_Reset_Network(NN_Instance_TypeDef *instance)
{
    (void)instance;
    done = false;
}

#define JOIN(a, b)       a##b
#define NAMED(stem, n)   JOIN(stem, n)
#define OF_NETWORK(stem) NAMED(stem, NEURAL_ART_NAME)

const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Input_Buffers_Info_)(void);
const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Output_Buffers_Info_)(void);

const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Input_Buffers_Info_)(void)
{
    return input;
}

const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Output_Buffers_Info_)(void)
{
    return output;
}

void LL_ATON_Cache_MCU_Clean_Range(uintptr_t address, uint32_t size)
{
    mcu_cache_clean_range(address, address + size);
}

void LL_ATON_Cache_MCU_Invalidate_Range(uintptr_t address, uint32_t size)
{
    mcu_cache_invalidate_range(address, address + size);
}

void LL_ATON_Cache_NPU_Clean_Invalidate_Range(uintptr_t address, uint32_t size)
{
    npu_cache_clean_invalidate_range(address, address + size);
}
