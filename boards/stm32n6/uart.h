/* USART1, the virtual COM port of the board's ST-LINK: 8 bits, no parity, one stop bit, no flow control. */
#ifndef UART_H
#define UART_H

#include <stddef.h>
#include <stdint.h>

void uart_start(void);

/* What has arrived, at most max bytes; 0: nothing. */
size_t uart_read(uint8_t *to, size_t max);

/* Polled. A byte that the USART does not take within a while, because it has no clock, is given up with all that
 * follow. */
void uart_write(const uint8_t *from, size_t size);

/* Wait until the last byte is out. */
void uart_flush(void);

#endif
