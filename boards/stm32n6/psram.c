/* An APS256XXN-OBR on XSPI1: commands and addresses on eight lines, data on sixteen, on both edges of the clock. At 50
 * MHz: what is faster needs pins for 1.8 V, which a fuse allows, and fuses are never touched (docs/stm32n6.md,
 * "PSRAM"). */
#include "psram.h"

#include "clocks.h"
#include "registers.h"
#include "wait.h"

extern uint8_t psram_base[], psram_end[];

enum {
    MOST_HERTZ = 50000000,
    ONE_ROW = 11,       /* 2 KiB, as a power of two: a burst ends where a row does */
    MOST_SELECTED = 40, /* cycles that a burst may take: the memory refreshes itself between bursts */
    DESELECTED = 5,     /* cycles, at least */
    LATENCY = 7,        /* cycles, of reads and writes: enough for 200 MHz */
    DUMMY = LATENCY - 1,
    MPU_REGION = 7,
};

/* The memory's commands and mode registers. */
enum {
    READ = 0x20, /* linear bursts */
    WRITE = 0xA0,
    READ_REGISTER = 0x40,
    WRITE_REGISTER = 0xC0,
    MR0 = 0, /* read latency less 3, shifted; fixed; drive strength 0: full */
    MR0_VALUE = 1 << 5 | (LATENCY - 3) << 2,
    MR4 = 4, /* write latency 7, coded; refresh at its highest rate, of everything */
    MR4_VALUE = 1 << 5,
    MR8 = 8, /* sixteen data lines */
    MR8_VALUE = 1 << 6,
};

static bool there;

bool psram_is_there(void)
{
    return there;
}

/* Pins of ports O and P are supplied by VDDIO2, which counts as absent until software says otherwise. */
static void connect(void)
{
    RCC_AHB4ENSR = RCC_AHB4EN_PWR | RCC_AHB4EN_GPIOO | RCC_AHB4EN_GPIOP;
    (void)RCC_AHB4ENR;
    PWR_SVMCR3 |= PWR_SVMCR3_VDDIO2SV;
    GPIOO_AFRL = (GPIOO_AFRL & ~0x000FFF0Fu) | 0x00099909; /* AF9 of 0: NCS1, 2 and 3: DQS, 4: CLK */
    GPIOO_OSPEEDR |= 0x3F3;
    GPIOO_MODER = (GPIOO_MODER & ~0x3F3u) | 0x2A2;
    GPIOP_AFRL = 0x99999999; /* and of 0 to 15: data */
    GPIOP_AFRH = 0x99999999;
    GPIOP_OSPEEDR = 0xFFFFFFFF;
    GPIOP_MODER = 0xAAAAAAAA;
}

/* XSPIM connects XSPI1 with port 1, which are these pins, after its reset: the boot ROM leaves the ports exchanged, and
 * nothing changes that while XSPI1 or XSPI2 is on. */
static bool start_xspi(void)
{
    RCC_CCIPR6 &= ~RCC_CCIPR6_XSPI1SEL; /* AHB's clock */
    RCC_MISCENSR = RCC_MISCEN_XSPIPHYCOMP;
    RCC_AHB5ENSR = RCC_AHB5_XSPI1 | RCC_AHB5_XSPIM;
    (void)RCC_AHB5ENR;
    RCC_AHB5RSTSR = RCC_AHB5_XSPI1 | RCC_AHB5_XSPI2 | RCC_AHB5_XSPIM;
    RCC_AHB5RSTCR = RCC_AHB5_XSPI1 | RCC_AHB5_XSPI2 | RCC_AHB5_XSPIM;
    (void)RCC_AHB5ENR;

    XSPI1_DCR1 = XSPI_DCR1_APMEMORY_16 | 24 << XSPI_DCR1_DEVSIZE_SHIFT | (DESELECTED - 1) << XSPI_DCR1_CSHT_SHIFT;
    XSPI1_DCR3 = ONE_ROW << XSPI_DCR3_CSBOUND_SHIFT;
    XSPI1_DCR4 = MOST_SELECTED;
    XSPI1_DCR2 = (clocks_ahb_hertz() + MOST_HERTZ - 1) / MOST_HERTZ - 1; /* and calibrates its delays */
    if (!wait_for(&XSPI1_SR, XSPI_SR_BUSY, 0))
        return false;
    XSPI1_CR = XSPI_CR_EN;
    return true;
}

/* A transfer of two bytes, which AR or the data start. */
static void begin(uint32_t mode, uint32_t format, uint32_t dummy, uint32_t command, uint32_t address)
{
    XSPI1_CR = XSPI_CR_EN | mode;
    XSPI1_CCR = XSPI_CCR_COMMAND | XSPI_CCR_DATA_8 | format;
    XSPI1_TCR = XSPI_TCR_DHQC | dummy;
    XSPI1_DLR = 2 - 1;
    XSPI1_IR = command;
    XSPI1_AR = address;
}

/* XSPI1 is busy until the last byte was taken from its buffer. */
static bool has_ended(void)
{
    bool complete = wait_for(&XSPI1_SR, XSPI_SR_TCF, XSPI_SR_TCF);
    XSPI1_FCR = XSPI_SR_TCF;
    if (!complete)
        XSPI1_CR |= XSPI_CR_ABORT;
    return wait_for(&XSPI1_SR, XSPI_SR_BUSY, 0) && complete;
}

/* With the data strobe: where no memory drives it nothing arrives, and a limit ends the wait. A memory that is mapped
 * would stop the bus instead. */
static bool read_register(uint32_t address, uint8_t *value)
{
    begin(XSPI_CR_READ, XSPI_CCR_DQSE, DUMMY, READ_REGISTER, address);
    if (wait_for(&XSPI1_SR, XSPI_SR_FTF, XSPI_SR_FTF))
        *value = XSPI1_DR;
    if (wait_for(&XSPI1_SR, XSPI_SR_FTF, XSPI_SR_FTF))
        (void)XSPI1_DR; /* the next register's */
    return has_ended();
}

static bool set_register(uint32_t address, uint8_t value)
{
    begin(XSPI_CR_WRITE, 0, 0, WRITE_REGISTER, address);
    XSPI1_DR = value;
    XSPI1_DR = 0; /* ignored */
    uint8_t got = 0;
    return has_ended() && read_register(address, &got) && got == value;
}

/* Without prefetch, which would run ahead into the last bytes of the memory. */
static void map_memory(void)
{
    XSPI1_WCCR = XSPI_CCR_COMMAND | XSPI_CCR_DATA_16 | XSPI_CCR_DQSE;
    XSPI1_WTCR = DUMMY;
    XSPI1_WIR = WRITE;
    XSPI1_CR = XSPI_CR_EN;
    XSPI1_CCR = XSPI_CCR_COMMAND | XSPI_CCR_DATA_16 | XSPI_CCR_DQSE;
    XSPI1_TCR = XSPI_TCR_DHQC | DUMMY;
    XSPI1_IR = READ;
    XSPI1_CR = XSPI_CR_EN | XSPI_CR_NOPREF | XSPI_CR_MAPPED;
    __asm volatile("dsb" ::: "memory");
}

static volatile uint32_t *word_at(uint32_t offset)
{
    return (volatile uint32_t *)(psram_base + offset);
}

/* The line of a word leaves the cache, to the memory if it was written: what is compared has been there. */
static void forget_line(uint32_t offset)
{
    __asm volatile("dsb" ::: "memory");
    SCB_DCCIMVAC = (uint32_t)(psram_base + offset);
    __asm volatile("dsb" ::: "memory");
}

static void write_word(uint32_t offset, uint32_t value)
{
    *word_at(offset) = value;
    forget_line(offset);
}

static uint32_t read_word(uint32_t offset)
{
    forget_line(offset);
    return *word_at(offset);
}

static uint32_t pattern(uint32_t offset, uint32_t flip)
{
    return (offset + 1) * 0x9E3779B1u ^ flip; /* 2^32 over the golden ratio: far apart for every offset */
}

/* Words at all powers of two and at the end: an address line that is stuck or tied to another makes two of them one,
 * and every data line is seen at 0 and at 1. */
static bool keeps_words(uint32_t flip)
{
    uint32_t last = (uint32_t)(psram_end - psram_base) - 4;
    write_word(0, pattern(0, flip));
    for (uint32_t at = 4; at < last; at *= 2)
        write_word(at, pattern(at, flip));
    write_word(last, pattern(last, flip));
    bool right = read_word(0) == pattern(0, flip) && read_word(last) == pattern(last, flip);
    for (uint32_t at = 4; at < last; at *= 2)
        right = right && read_word(at) == pattern(at, flip);
    return right;
}

void psram_start(void)
{
    connect();
    if (!start_xspi() || !set_register(MR0, MR0_VALUE) || !set_register(MR4, MR4_VALUE) ||
        !set_register(MR8, MR8_VALUE))
        return;
    map_memory();
    mpu_set_region(MPU_REGION, (uintptr_t)psram_base, (uintptr_t)psram_end, MPU_READ_WRITE, false);
    mpu_enable();
    there = keeps_words(0) && keeps_words(0xFFFFFFFF);
}
