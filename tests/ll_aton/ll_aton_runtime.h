/* Stand-in (README.md): the runtime. */
#ifndef LL_ATON_RUNTIME_H
#define LL_ATON_RUNTIME_H

#include "ll_aton_NN_interface.h"

typedef enum { LL_ATON_RT_NO_WFE, LL_ATON_RT_WFE, LL_ATON_RT_DONE } LL_ATON_RT_RetValues_t;

void LL_ATON_RT_RuntimeInit(void);
void LL_ATON_RT_Init_Network(NN_Instance_TypeDef *instance);
LL_ATON_RT_RetValues_t LL_ATON_RT_RunEpochBlock(NN_Instance_TypeDef *instance);
void LL_ATON_RT_Reset_Network(NN_Instance_TypeDef *instance);

#endif
