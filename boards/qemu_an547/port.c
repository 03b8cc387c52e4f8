/* The board on QEMU's mps3-an547. QEMU's command line for the firmware chooses the link and the memory:
 *
 *   pipe MIB [counted]    frames through standard input and output of QEMU, by semihosting: fast, and nothing is lost
 *   uart MIB              frames through UART0, which holds one byte; interrupt and ring, as on hardware
 *
 * MIB: of DDR that image and samples may take. counted: the clock counts instructions (-icount), 31 million a second.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "app/app.h"
#include "board.h"
#include "cortex_m.h"
#include "ring.h"
#include "semihosting.h"
#include "watchdog.h"

enum {
    WORK_BYTES = 4 << 20,     /* SRAM */
    LARGE_BYTES = 1024 << 20, /* DDR */
    COUNTED_SLOWDOWN = 20,
};

#ifndef BOARD_WATCHDOG_SECONDS
#define BOARD_WATCHDOG_SECONDS 300 /* for one sample's forward pass, or one update */
#endif

static struct app app;
static uint8_t work[WORK_BYTES] __attribute__((section(".sram"), aligned(64)));
static uint8_t large[LARGE_BYTES] __attribute__((section(".ddr"), aligned(64)));

static struct {
    struct port_region work, large;
    bool uart;
    uint32_t watchdog_seconds;
    int32_t in, out; /* handles of the pipe */
} board = {.work = {work, sizeof work, 0}, .large = {large, sizeof large, 0}};

struct port_region *port_region(enum port_purpose purpose)
{
    return purpose == PORT_WORK ? &board.work : &board.large;
}

struct port_region *port_image_region(size_t size)
{
    (void)size;
    return port_region(PORT_IMAGE);
}

/* -- UART0 (CMSDK APB UART, Arm DDI 0479) ----------------------------------------------------------------------- */

#define UART_DATA       REGISTER(0x59303000)
#define UART_STATE      REGISTER(0x59303004)
#define UART_CONTROL    REGISTER(0x59303008)
#define UART_INTERRUPTS REGISTER(0x5930300C)
#define UART_DIVIDER    REGISTER(0x59303010)
#define NVIC_ENABLE(n)  REGISTER(0xE000E100u + 4 * ((n) / 32))

enum {
    UART_TX_FULL = 1 << 0,
    UART_RX_FULL = 1 << 1,
    UART_TX_ENABLE = 1 << 0,
    UART_RX_ENABLE = 1 << 1,
    UART_RX_INTERRUPT_ENABLE = 1 << 3,
    UART_RX_INTERRUPT = 1 << 1,
    UART_DIVIDER_LEAST = 16, /* what the machine takes; the emulation does not pace bytes */
};

static struct ring ring;

static void uart_start(void)
{
    UART_DIVIDER = UART_DIVIDER_LEAST;
    UART_CONTROL = UART_TX_ENABLE | UART_RX_ENABLE | UART_RX_INTERRUPT_ENABLE;
    NVIC_ENABLE(BOARD_UART_IRQ) = 1u << BOARD_UART_IRQ % 32;
}

void board_uart_interrupt(void)
{
    UART_INTERRUPTS = UART_RX_INTERRUPT;
    while (UART_STATE & UART_RX_FULL) {
        ring_put(&ring, (uint8_t)UART_DATA);
    }
}

/* The check and the wait are one step: with interrupts masked, WFI still wakes for what is pending. */
static void uart_wait(void)
{
    __asm volatile("cpsid i" ::: "memory");
    while (ring.head == ring.tail) {
        __asm volatile("dsb\n wfi\n cpsie i\n isb\n cpsid i" ::: "memory");
    }
    __asm volatile("cpsie i" ::: "memory");
}

static size_t uart_read(uint8_t *to, size_t max)
{
    uart_wait();
    return ring_take(&ring, to, max);
}

static void uart_write(const uint8_t *from, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        while (UART_STATE & UART_TX_FULL)
            continue;
        UART_DATA = from[i];
    }
}

/* -- Link ------------------------------------------------------------------------------------------------------- */

/* The watchdog watches commands, not the host: while the board waits it stands still. */
size_t port_read(uint8_t *to, size_t max)
{
    watchdog_stop();
    size_t got = board.uart ? uart_read(to, max) : semihosting_read(board.in, to, (uint32_t)max);
    watchdog_start(board.watchdog_seconds);
    return got;
}

void port_write(const uint8_t *from, size_t size)
{
    if (board.uart)
        uart_write(from, size);
    else if (semihosting_write(board.out, from, (uint32_t)size) != 0)
        board_exit(EXIT_SUCCESS); /* the host has gone: so does the board */
}

bool port_link_is_reliable(void)
{
    return !board.uart;
}

/* -- The rest --------------------------------------------------------------------------------------------------- */

unsigned port_workers(void)
{
    return 1;
}

void port_parallel(void (*fn)(void *context, unsigned worker), void *context)
{
    fn(context, 0);
}

uint64_t port_now(void)
{
    return counter_now();
}

uint32_t port_ticks_per_second(void)
{
    return BOARD_TICKS_PER_SECOND;
}

void port_alive(void)
{
    watchdog_feed();
}

struct port_stack port_stack(void)
{
    return (struct port_stack){process_stack_used(), BOARD_STACK_BYTES};
}

_Noreturn static void fail(const char *words)
{
    semihosting_print(words);
    board_exit(EXIT_FAILURE);
}

static void read_command_line(void)
{
    char line[64];
    if (!semihosting_command_line(line, sizeof line))
        fail("zo_board: no command line\n");
    board.uart = strstr(line, "uart") != NULL;
    /* A second of the counted clock is as many instructions as the emulator executes in a fraction of one. */
    board.watchdog_seconds = BOARD_WATCHDOG_SECONDS * (strstr(line, "counted") ? COUNTED_SLOWDOWN : 1);
    uint32_t mib = 0;
    for (const char *p = line + strcspn(line, "0123456789"); *p >= '0' && *p <= '9'; p++)
        mib = 10 * mib + (uint32_t)(*p - '0');
    if (mib < 1 || mib > LARGE_BYTES >> 20)
        fail("zo_board: between 1 and 1024 MiB of memory\n");
    board.large.size = (size_t)mib << 20;
}

static void open_link(void)
{
    if (board.uart) {
        uart_start();
        return;
    }
    board.in = semihosting_open("/dev/fd/0", SEMIHOSTING_READ);
    board.out = semihosting_open("/dev/fd/1", SEMIHOSTING_WRITE);
    if (board.in < 0 || board.out < 0)
        fail("zo_board: standard input and output cannot be opened\n");
}

int main(void)
{
    counter_start();
    read_command_line();
    open_link();
    app_run(&app);
    return EXIT_SUCCESS;
}
