/* Faults: the registers go out in words that pipeline/targets/fault.py reads, then the board ends. */
#ifndef FAULT_H
#define FAULT_H

/* For every fault vector and the watchdog's. */
void fault_handler(void);

/* What the board provides: out with a text, polling, whatever state it is in; and the end. */
void board_print(const char *text);
_Noreturn void board_end_after_fault(void);

#endif
