/* The board on an STM32N657: frames over USART1, weights where they are trained in AXISRAM3 to 6, or where the network
 * of the NPU was compiled to have them. */
#include <stdlib.h>

#include "app/app.h"
#include "board.h"
#include "clocks.h"
#include "psram.h"
#include "uart.h"
#include "watchdog.h"

static struct app app;

#ifdef BOARD_WEIGHTS_ADDRESS

enum { MEMORY_BYTES = 736 << 10 }; /* of AXISRAM1: the image's head, and a batch of 50 images of 64x64x3 */

_Static_assert(BOARD_WEIGHTS_ADDRESS >= 0x34100000u && BOARD_WEIGHTS_ADDRESS % 64 == 0, "AXISRAM1 is the firmware's");

static uint8_t memory[MEMORY_BYTES] __attribute__((section(".samples"), aligned(64)));

static struct port_region shared = {memory, sizeof memory, 0};
static struct port_region weights = {(uint8_t *)BOARD_WEIGHTS_ADDRESS, BOARD_WEIGHTS_BYTES, 0};

/* PSRAM that is not there holds no weights. */
struct port_region *port_region(enum port_purpose purpose)
{
#ifdef BOARD_VARIANT_DK
    if (BOARD_WEIGHTS_ADDRESS >= PSRAM_ADDRESS && !psram_is_there())
        weights.size = 0;
#endif
    return purpose == PORT_WEIGHTS ? &weights : &shared;
}

struct port_region *port_image_region(size_t size)
{
    (void)size;
    return &shared;
}

#else

enum {
    IMAGE_BYTES = 1792 << 10,  /* AXISRAM3 to 6 */
    WORK_BYTES = 1024 << 10,   /* AXISRAM2 */
    SAMPLES_BYTES = 864 << 10, /* of AXISRAM1: a batch of 64 images of 64x64x3 and more */
    PSRAM_BYTES = 32767 << 10, /* of 32 MiB: the last line of the cache must not be read (erratum ES0620 2.4.5) */
};

_Static_assert(BOARD_SMALL_IMAGE_BYTES <= IMAGE_BYTES, "small images fit");

static uint8_t image[IMAGE_BYTES] __attribute__((section(".image"), aligned(64)));
static uint8_t work[WORK_BYTES] __attribute__((section(".work"), aligned(64)));
static uint8_t samples[SAMPLES_BYTES] __attribute__((section(".samples"), aligned(64)));

static struct port_region regions[PORT_PURPOSES] = {
    [PORT_IMAGE] = {image, sizeof image, 0},
    [PORT_WORK] = {work, sizeof work, 0},
    [PORT_SAMPLES] = {samples, sizeof samples, 0},
};

#ifdef BOARD_VARIANT_DK

static uint8_t psram[PSRAM_BYTES] __attribute__((section(".psram"), aligned(64)));
static struct port_region large = {psram, sizeof psram, 0};

struct port_region *port_region(enum port_purpose purpose)
{
    bool in_psram = purpose == PORT_IMAGE || purpose == PORT_SAMPLES;
    return psram_is_there() && in_psram ? &large : &regions[purpose];
}

/* Weights are read in every forward pass: what fits lies in AXISRAM3 to 6. */
struct port_region *port_image_region(size_t size)
{
    return size <= BOARD_SMALL_IMAGE_BYTES ? &regions[PORT_IMAGE] : port_region(PORT_IMAGE);
}

#else

struct port_region *port_region(enum port_purpose purpose)
{
    return &regions[purpose];
}

struct port_region *port_image_region(size_t size)
{
    (void)size;
    return &regions[PORT_IMAGE];
}

#endif /* BOARD_VARIANT_DK */
#endif /* BOARD_WEIGHTS_ADDRESS */

/* No WFI: asleep, the clock would stand still, and so would what the boot ROM did not leave clocked for sleep. */
size_t port_read(uint8_t *to, size_t max)
{
    size_t got;
    do
        watchdog_feed();
    while ((got = uart_read(to, max)) == 0);
    return got;
}

void port_write(const uint8_t *from, size_t size)
{
    uart_write(from, size);
}

bool port_link_is_reliable(void)
{
    return false;
}

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
    return clock_now();
}

uint32_t port_ticks_per_second(void)
{
    return clocks_core_hertz();
}

void port_alive(void)
{
    watchdog_feed();
}

struct port_stack port_stack(void)
{
    return (struct port_stack){process_stack_used(), BOARD_STACK_BYTES};
}

int main(void)
{
    board_start();
    app_run(&app);
    return EXIT_SUCCESS;
}
