#include "uart.h"

#include <stdbool.h>

#include "registers.h"
#include "ring.h"

enum {
    TX_PIN = 5,
    RX_PIN = 6, /* PE5 and PE6 on both boards */
    PATIENCE = 1 << 20,
};

static struct ring ring;

static void set_field(volatile uint32_t *at, unsigned pin, unsigned width, uint32_t value)
{
    uint32_t mask = ((1u << width) - 1) << pin * width;
    *at = (*at & ~mask) | value << pin * width;
}

/* The alternate function first: a pin in that mode would follow whatever function was chosen before. */
static void connect(unsigned pin)
{
    set_field(&GPIOE_AFRL, pin, 4, GPIO_AF_USART1);
    set_field(&GPIOE_PUPDR, pin, 2, GPIO_PULL_UP);
    set_field(&GPIOE_MODER, pin, 2, GPIO_MODE_ALTERNATE);
}

/* Reading the register back makes sure that a clock runs before it is needed. */
void uart_start(void)
{
    RCC_CCIPR13 = (RCC_CCIPR13 & ~RCC_CCIPR13_USART1SEL) | RCC_USART1SEL_HSI;
    RCC_APB2ENSR = RCC_APB2EN_USART1;
    RCC_AHB4ENSR = RCC_AHB4EN_GPIOE;
    (void)RCC_APB2ENR;
    (void)RCC_AHB4ENR;
    connect(TX_PIN);
    connect(RX_PIN);

    USART1_CR1 = 0; /* the rest may only be written to a USART that is off */
    USART1_CR2 = 0;
    USART1_CR3 = 0;
    USART1_PRESC = 0;
    USART1_BRR = (BOARD_HSI_HZ + BOARD_BAUD / 2) / BOARD_BAUD; /* 16 samples a bit */
    USART1_CR1 = USART_CR1_FIFOEN | USART_CR1_RE | USART_CR1_TE;
    USART1_CR1 |= USART_CR1_UE;
    while ((USART1_ISR & (USART_ISR_TEACK | USART_ISR_REACK)) != (USART_ISR_TEACK | USART_ISR_REACK))
        continue;
    USART1_ICR = USART_ISR_ERRORS;
    USART1_CR1 |= USART_CR1_RXFNEIE;
    NVIC_ISER(BOARD_UART_IRQ) = 1u << BOARD_UART_IRQ % 32;
}

/* Bytes that arrived with errors are taken as well: the frame is damaged then, and sent again. */
void board_uart_interrupt(void)
{
    uint32_t state;
    while ((state = USART1_ISR) & USART_ISR_RXFNE) {
        ring_put(&ring, (uint8_t)USART1_RDR);
    }
    USART1_ICR = state & USART_ISR_ERRORS;
}

size_t uart_read(uint8_t *to, size_t max)
{
    return ring_take(&ring, to, max);
}

/* What did not answer once is asked once from then on, until it does. */
static bool wait_for(uint32_t flag)
{
    static bool answers = true;
    uint32_t reads = answers ? PATIENCE : 1;
    answers = false;
    for (uint32_t i = 0; i < reads && !answers; i++)
        answers = USART1_ISR & flag;
    return answers;
}

void uart_write(const uint8_t *from, size_t size)
{
    for (size_t i = 0; i < size && wait_for(USART_ISR_TXFNF); i++)
        USART1_TDR = from[i];
}

void uart_flush(void)
{
    wait_for(USART_ISR_TC);
}
