/* Stand-in (README.md): the runtime, which ends the process where it is called out of order. */
#include <stddef.h>

#include "ll_aton_osal.h"
#include "ll_aton_runtime.h"
#include "stand_in.h"

static enum { OFF, STARTED, READY, WAITING, WOKEN, RUN, DONE } state;

static void expect(int condition, const char *words)
{
    if (!condition)
        stand_in_fail(words, (uint32_t)state);
}

void LL_ATON_RT_RuntimeInit(void)
{
    expect(state == OFF, "RuntimeInit in state %u");
    stand_in_network();
    state = STARTED;
}

void LL_ATON_RT_Init_Network(NN_Instance_TypeDef *instance)
{
    expect(state == STARTED && instance->network->network_name != NULL, "Init_Network in state %u");
    state = READY;
}

void stand_in_wait(void)
{
    expect(state == WAITING, "WFE in state %u, where nothing would wake the CPU");
    state = WOKEN;
}

/* Two blocks of epochs: the first has to be waited for, the second is done by the CPU itself. */
LL_ATON_RT_RetValues_t LL_ATON_RT_RunEpochBlock(NN_Instance_TypeDef *instance)
{
    (void)instance;
    expect(state == READY || state == WOKEN || state == RUN, "RunEpochBlock in state %u");
    if (state == READY) {
        state = WAITING;
        return LL_ATON_RT_WFE;
    }
    if (state == WOKEN) {
        stand_in_infer();
        state = RUN;
        return LL_ATON_RT_NO_WFE;
    }
    state = DONE;
    return LL_ATON_RT_DONE;
}

void LL_ATON_RT_Reset_Network(NN_Instance_TypeDef *instance)
{
    (void)instance;
    expect(state == DONE || state == RUN, "Reset_Network in state %u");
    state = READY;
}
