#include "fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "board_config.h"
#include "cortex_m.h"

#define SCB_CFSR  REGISTER(0xE000ED28u)
#define SCB_HFSR  REGISTER(0xE000ED2Cu)
#define SCB_MMFAR REGISTER(0xE000ED34u)
#define SCB_BFAR  REGISTER(0xE000ED38u)

enum { MAX_CALLERS = 12 };

/* What the core pushes when it takes an exception. */
struct exception_frame {
    uint32_t r0, r1, r2, r3, r12, lr, pc, xpsr;
};

enum {
    FRAME_BYTES = 0x20,
    FRAME_BYTES_FLOAT = 0x68, /* with s0 to s15 */
    EXC_RETURN_NO_FLOAT = 0x10,
    XPSR_PADDED = 1 << 9,
    CFSR_STACK_OVERFLOW = 1 << 20,
};

extern uint32_t process_stack[];
extern const uint8_t text_start[], text_end[];

static void print_word(const char *name, uint32_t value)
{
    char text[] = "=00000000";
    for (int i = 8; i >= 1; i--, value >>= 4)
        text[i] = "0123456789abcdef"[value & 15];
    board_print(" ");
    board_print(name);
    board_print(text);
}

static void print_words(const char *const names[], const uint32_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        print_word(names[i], values[i]);
}

/* Whether an address, lowest bit set as for Thumb code, is one that a call would leave: BL or BLX Rm stands before it.
 */
static bool is_return_address(uint32_t address)
{
    if (!(address & 1) || address < (uintptr_t)text_start + 4 || address >= (uintptr_t)text_end)
        return false;
    const uint16_t *next = (const uint16_t *)(uintptr_t)(address - 1);
    return (next[-1] & 0xFF87) == 0x4780 || ((next[-2] & 0xF800) == 0xF000 && (next[-1] & 0xD000) == 0xD000);
}

/* Return addresses on the stack. Most are those of the callers, the innermost first; some may be left over. */
static void print_callers(const uint32_t *at)
{
    const uint32_t *end = process_stack + BOARD_STACK_BYTES / 4;
    board_print("\n@CALLERS");
    for (int count = 0; at >= process_stack && at < end && count < MAX_CALLERS; at++)
        if (is_return_address(*at)) {
            print_word("at", *at);
            count++;
        }
}

__attribute__((used)) static void report(const struct exception_frame *frame, const uint32_t r4_to_r11[8],
                                         uint32_t exc_return)
{
    static const char *const pushed[] = {"r0", "r1", "r2", "r3", "r12", "lr", "pc", "xpsr"};
    static const char *const kept[] = {"r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11"};
    uint32_t exception;
    __asm("mrs %0, ipsr" : "=r"(exception));
    uintptr_t sp = (uintptr_t)frame;
    /* Where the frame did not fit above the limit, the core set sp to the limit and pushed nothing. */
    bool has_frame = !(SCB_CFSR & CFSR_STACK_OVERFLOW && sp <= (uintptr_t)process_stack);
    if (has_frame)
        sp +=
            (exc_return & EXC_RETURN_NO_FLOAT ? FRAME_BYTES : FRAME_BYTES_FLOAT) + (frame->xpsr & XPSR_PADDED ? 4 : 0);
    board_print("\n@FAULT");
    print_word("exception", exception);
    print_word("cfsr", SCB_CFSR);
    print_word("hfsr", SCB_HFSR);
    print_word("mmfar", SCB_MMFAR);
    print_word("bfar", SCB_BFAR);
    if (has_frame)
        print_words(pushed, (const uint32_t *)frame, sizeof pushed / sizeof pushed[0]);
    print_words(kept, r4_to_r11, sizeof kept / sizeof kept[0]);
    print_word("sp", (uint32_t)sp);
    print_callers((const uint32_t *)((uintptr_t)frame & ~(uintptr_t)3));
    board_print("\n@END\n");
    board_end_after_fault();
}

__attribute__((naked)) void fault_handler(void)
{
    __asm("tst lr, #4\n ite eq\n mrseq r0, msp\n mrsne r0, psp\n"
          "push {r4-r11}\n mov r1, sp\n mov r2, lr\n b report");
}
