/* Runs a network on inputs from files and counts its instructions; pipeline/bench_m55.py is the other side.
 *
 * Reads image.zimg, inputs.bin (int8, sample after sample) and probes.bin (struct probe, one after the other); under
 * each probe all inputs are run, their outputs go to outputs.bin. report.bin: struct report, then the ticks of each op
 * for the first input, then those of a whole pass. */
#include <stdbool.h>
#include <stdint.h>

#include "board.h"
#include "image/image.h"
#include "port/port.h"
#include "runners/runner.h"
#include "semihosting.h"

enum { MAX_IMAGE = 64 << 20, MAX_WORK = 64 << 20, MAX_OPS = 1024 };

struct probe {
    uint64_t seed;
    int32_t step, reserved;
};

struct report {
    uint32_t ops, activations, scratch, packed;
};

static uint8_t image_bytes[MAX_IMAGE] __attribute__((section(".ddr"), aligned(64)));
static uint8_t work[MAX_WORK] __attribute__((section(".ddr"), aligned(64)));
static struct image image;
static struct runner runner;

_Noreturn static void fail(const char *words)
{
    semihosting_print(words);
    semihosting_exit(1);
}

static int32_t open_file(const char *path, enum semihosting_mode mode)
{
    int32_t handle = semihosting_open(path, mode);
    if (handle < 0)
        fail("a file cannot be opened\n");
    return handle;
}

static void open_image(void)
{
    int32_t file = open_file("image.zimg", SEMIHOSTING_READ);
    uint32_t size = semihosting_read(file, image_bytes, sizeof image_bytes);
    semihosting_close(file);
    if (image_open(&image, (struct image_file){image_bytes, NULL, size, size}, IMAGE_RUNNER_INT8).code)
        fail("the image is refused\n");
    runner_init(&runner, &image, work, sizeof work, 1);
    if (runner_bytes(&runner.memory, 1) > sizeof work || image.plan.op_count > MAX_OPS)
        fail("the network is too large\n");
}

static void read_input(int32_t file)
{
    uint32_t size = plan_elements(&image.plan.tensors[image.plan.input]);
    if (semihosting_read(file, runner_input(&runner, work, 0), size) != size)
        fail("inputs.bin is too short\n");
}

/* The ops of one pass, each by itself. */
static void count_ops(int32_t report)
{
    static uint64_t ticks[MAX_OPS];
    runner_profile(&runner, work, 1, 0, image.plan.op_count, ticks);
    semihosting_write(report, ticks, image.plan.op_count * sizeof ticks[0]);
}

static void write_report(int32_t inputs)
{
    const struct report head = {image.plan.op_count, runner.memory.activations, runner.memory.scratch,
                                runner.memory.packed};
    int32_t file = open_file("report.bin", SEMIHOSTING_WRITE);
    semihosting_write(file, &head, sizeof head);
    read_input(inputs);
    count_ops(file);
    semihosting_close(inputs);

    inputs = open_file("inputs.bin", SEMIHOSTING_READ);
    read_input(inputs);
    uint64_t start = counter_now();
    runner_invoke(&runner, work, 1);
    uint64_t pass = counter_now() - start;
    semihosting_write(file, &pass, sizeof pass);
    semihosting_close(file);
    semihosting_close(inputs);
}

/* Under this probe, all inputs. */
static void run_inputs(const struct probe *probe, uint32_t count, int32_t outputs)
{
    int32_t inputs = open_file("inputs.bin", SEMIHOSTING_READ);
    runner_set_probe(&runner, probe->seed, probe->step);
    for (uint32_t i = 0; i < count; i++) {
        read_input(inputs);
        runner_invoke(&runner, work, 1);
        semihosting_write(outputs, runner_output(&runner, work, 0),
                          plan_elements(&image.plan.tensors[image.plan.output]));
    }
    semihosting_close(inputs);
}

/* What runners ask of a port; there is no watchdog. */
void port_alive(void)
{
}

uint64_t port_now(void)
{
    return counter_now();
}

int main(void)
{
    struct probe probe;
    uint32_t count;
    counter_start();
    open_image();
    write_report(open_file("inputs.bin", SEMIHOSTING_READ));
    int32_t probes = open_file("probes.bin", SEMIHOSTING_READ), outputs = open_file("outputs.bin", SEMIHOSTING_WRITE);
    if (semihosting_read(probes, &count, sizeof count) != sizeof count)
        fail("probes.bin is too short\n");
    while (semihosting_read(probes, &probe, sizeof probe) == sizeof probe)
        run_inputs(&probe, count, outputs);
    semihosting_close(probes);
    semihosting_close(outputs);
    return 0;
}
