/* Stand-in (README.md): waiting for the NPU. */
#ifndef LL_ATON_OSAL_H
#define LL_ATON_OSAL_H

void stand_in_wait(void);
#define LL_ATON_OSAL_WFE() stand_in_wait()

#endif
