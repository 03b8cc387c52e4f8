/* The machine itself: memory protection, system counter, words and an exit code for the emulator's host. */
#include "board.h"

#include "cortex_m.h"
#include "fault.h"
#include "semihosting.h"

enum { EXIT_FAULT = 70 };

extern uint8_t text_start[], text_end[], dtcm_start[], ddr_start[], ddr_end[];

enum { DATA_END = 0x40000000 }; /* DTCM, SRAM, QSPI and second addresses of all three */

/* Address 0 is memory on this machine, with the vector table. Made read-only, as all of ITCM is under both of its
 * addresses, a write through a null pointer is a fault; a read cannot be. Peripherals are not executable by default. */
void board_protect_memory(void)
{
    mpu_set_region(0, 0, (uintptr_t)text_start, MPU_READ_ONLY, false);
    mpu_set_region(1, (uintptr_t)text_start, (uintptr_t)text_end, MPU_READ_ONLY, true);
    mpu_set_region(2, (uintptr_t)text_end, (uintptr_t)dtcm_start, MPU_READ_ONLY, false);
    mpu_set_region(3, (uintptr_t)dtcm_start, DATA_END, MPU_READ_WRITE, false);
    mpu_set_region(4, (uintptr_t)ddr_start, (uintptr_t)ddr_end, MPU_READ_WRITE, false);
    mpu_enable();
}

void board_print(const char *text)
{
    semihosting_print(text);
}

void board_exit(int code)
{
    semihosting_exit(code);
}

void board_end_after_fault(void)
{
    semihosting_exit(EXIT_FAULT);
}

/* SSE-300 system counter (Arm 101773): control frame 0x58100000, status frame 0x58101000. */
void counter_start(void)
{
    REGISTER(0x58100000) = 1;
}

uint64_t counter_now(void)
{
    uint32_t upper, lower;
    do {
        upper = REGISTER(0x58101004);
        lower = REGISTER(0x58101000);
    } while (upper != REGISTER(0x58101004));
    return (uint64_t)upper << 32 | lower;
}
