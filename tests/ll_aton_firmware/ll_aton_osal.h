/* Stand-in (README.md): this runtime polls, and says so by never asking to wait. */
#ifndef LL_ATON_OSAL_H
#define LL_ATON_OSAL_H

#define LL_ATON_OSAL_WFE() ((void)0)

#endif
