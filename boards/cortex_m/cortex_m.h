/* What boards with a Cortex-M share: stacks, memory protection, faults. */
#ifndef CORTEX_M_H
#define CORTEX_M_H

#include <stddef.h>
#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

/* Bytes of the process stack that were in use at some time since reset. */
size_t process_stack_used(void);

/* The board's regions, by mpu_set_region and mpu_enable; called once, before main. */
void board_protect_memory(void);

enum mpu_access { MPU_READ_ONLY, MPU_READ_WRITE };

/* Region number covers [base, end), both multiples of 32. Code runs only in executable regions. */
void mpu_set_region(uint32_t number, uintptr_t base, uintptr_t end, enum mpu_access access, int executable);

/* Where something before this program may have set regions of its own. */
void mpu_disable(void);

/* From now on; what no region covers is as the architecture's default map has it. */
void mpu_enable(void);

#endif
