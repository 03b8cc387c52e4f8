/* The in-tree runner: executes the PLAN section with a set of kernels. */
#include "runners/runner.h"

#include "port/port.h"
#include "runners/int8/kernels.h"
#include "zo/weights.h"

enum { ALIGN = 64, MAX_BLOCK = 32 };

enum image_runner runner_images(void)
{
    return IMAGE_RUNNER_INT8;
}

uint32_t runner_network(void)
{
    return 0;
}

const char *runner_name(const struct runner *runner)
{
    return (runner ? runner->kernels : kernel_set_choose())->name;
}

static size_t align_up(size_t size)
{
    return (size + ALIGN - 1) / ALIGN * ALIGN;
}

/* What the kernels need, with the largest block that they like and that fits. */
static void plan_memory(struct runner *runner, size_t size, unsigned workers)
{
    const struct kernel_set *kernels = runner->kernels;
    const struct plan *plan = &runner->image->plan;
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    struct runner_memory *memory = &runner->memory;
    *memory = (struct runner_memory){0};
    for (uint32_t i = 0; i < plan->op_count; i++, op = plan_next(op)) {
        size_t need = kernels->ops[op->kind].scratch ? align_up(kernels->ops[op->kind].scratch(plan, op)) : 0;
        memory->scratch = need > memory->scratch ? need : memory->scratch;
        memory->packed += kernels->pack ? kernels->packed_bytes(plan, op) : 0;
    }
    runner->block = kernels->block_bytes ? MAX_BLOCK : 1;
    do {
        size_t arena = (size_t)plan->arena * runner->block;
        memory->activations = align_up(arena + (kernels->block_bytes ? ALIGN : 0));
        if (arena <= kernels->block_bytes && runner_bytes(memory, workers) <= size)
            return;
    } while (--runner->block);
    runner->block = 1;
}

/* Packed weights and blocks are for boards with memory to spare: at most half of what is free. */
struct status runner_init(struct runner *runner, const struct image *image, uint8_t *work, size_t size,
                          unsigned workers)
{
    (void)work;
    *runner = (struct runner){.image = image, .kernels = kernel_set_choose()};
    plan_memory(runner, size / 2, workers);
    if (runner->kernels->pack && runner_bytes(&runner->memory, workers) > size / 2) {
        runner->kernels = &portable_kernels;
        plan_memory(runner, size, workers);
    }
    runner->stale = runner->kernels->pack != NULL;
    return STATUS(STATUS_OK, 0, 0);
}

void runner_set_probe(struct runner *runner, uint64_t seed, int step)
{
    if (runner->kernels->pack)
        runner->stale = true;
    else
        zo_change_probe(&runner->image->weights, runner->probe_seed, runner->probe_step, seed, step);
    runner->probe_seed = seed;
    runner->probe_step = step;
}

void runner_weights_written(struct runner *runner)
{
    runner->stale = runner->kernels->pack != NULL; /* kernels without packed weights keep nothing */
}

bool runner_needs_prepare(const struct runner *runner)
{
    return runner->stale;
}

void runner_prepare(const struct runner *runner, uint8_t *work, unsigned worker, unsigned workers)
{
    (void)work;
    const struct plan *plan = &runner->image->plan;
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    uint8_t *packed = runner->packed;
    struct packing packing = {runner->probe_seed, runner->probe_step, !runner->packed_before, worker, workers};
    for (uint32_t i = 0; i < plan->op_count; i++, op = plan_next(op)) {
        runner->kernels->pack(runner->image, op, &packing, packed);
        packed += runner->kernels->packed_bytes(plan, op);
    }
}

void runner_prepared(struct runner *runner)
{
    runner->stale = false;
    runner->packed_before = true;
}

static int8_t *sample_of(const struct runner *runner, uint8_t *work, uint32_t tensor, uint32_t sample)
{
    struct kernel_memory memory = {.activations = (int8_t *)work, .block = runner->block, .sample = sample};
    return activation(memory, &runner->image->plan.tensors[tensor]);
}

int8_t *runner_input(const struct runner *runner, uint8_t *work, uint32_t sample)
{
    return sample_of(runner, work, runner->image->plan.input, sample);
}

const int8_t *runner_output(const struct runner *runner, uint8_t *work, uint32_t sample)
{
    return sample_of(runner, work, runner->image->plan.output, sample);
}

/* Where the ticks of the ops from `first` on go. */
struct op_clock {
    uint32_t first;
    uint64_t *ticks;
};

/* The first ops of the plan; clock: NULL where nobody asks. */
static void invoke(const struct runner *runner, uint8_t *work, uint32_t samples, uint32_t ops,
                   const struct op_clock *clock)
{
    const struct plan *plan = &runner->image->plan;
    const struct kernel_set *kernels = runner->kernels;
    struct kernel_memory memory = {
        .activations = (int8_t *)work,
        .scratch = work + runner->memory.activations,
        .packed = kernels->pack ? runner->packed : NULL,
        .block = runner->block,
        .samples = samples,
    };
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    for (uint32_t i = 0; i < ops; i++, op = plan_next(op)) {
        uint32_t calls = kernels->ops[op->kind].whole_block ? 1 : samples;
        uint64_t start = clock ? port_now() : 0;
        for (memory.sample = 0; memory.sample < calls; memory.sample++)
            kernels->ops[op->kind].run(plan, op, memory);
        port_alive();
        if (clock && i >= clock->first)
            clock->ticks[i - clock->first] = port_now() - start;
        memory.packed += kernels->pack ? kernels->packed_bytes(plan, op) : 0;
    }
}

void runner_invoke(const struct runner *runner, uint8_t *work, uint32_t samples)
{
    invoke(runner, work, samples, runner->image->plan.op_count, NULL);
}

const int8_t *runner_trace(const struct runner *runner, uint8_t *work, uint32_t op)
{
    invoke(runner, work, 1, op + 1, NULL);
    return sample_of(runner, work, plan_op_at(&runner->image->plan, op)->out, 0);
}

bool runner_profile(const struct runner *runner, uint8_t *work, uint32_t samples, uint32_t first, uint32_t count,
                    uint64_t *ticks)
{
    const struct op_clock clock = {first, ticks};
    invoke(runner, work, samples, first + count, &clock);
    return true;
}
