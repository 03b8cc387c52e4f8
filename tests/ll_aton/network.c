/* Stand-in (README.md): the compiled network. Its file holds words: magic, id of the network, address and bytes of the
 * pool, whether the NPU caches it, bytes of input and output, words of the plan, bytes of the model, number of weights;
 * then the PLAN, for each weight its offset in the model and in the pool, the model without its weights, and the pool
 * as compiled. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arithmetic.h"
#include "ll_aton_NN_interface.h"
#include "runners/int8/kernels.h"
#include "stand_in.h"

enum { MAGIC = 0x5355504E, LINE = 32, SHIFT = 16 }; /* SHIFT: activations do not begin where lines do */

struct head {
    uint32_t magic, id, pool_address, pool_bytes, cacheable, input_bytes, output_bytes, plan_words, model_bytes,
        weights;
};

struct place {
    uint32_t model, pool;
};

static struct {
    struct stand_in_network network;
    struct head head;
    struct place *places;
    uint8_t *model, *pool; /* TFLT; the pool as compiled */
    bool *is_weight;       /* of the pool */
    struct plan plan;
    struct kernel_memory memory;
    int8_t *of_npu;           /* outputs of an op in the NPU's arithmetic */
    uint64_t compared, by[3]; /* outputs; those that differ by so many, the last: or more */
    LL_Buffer_InfoTypeDef input[2], output[2];
} stand_in;

static void *take(size_t size)
{
    void *memory = aligned_alloc(64, (size + 127) / 64 * 64);
    if (!memory)
        stand_in_fail("no memory for %u bytes", (uint32_t)size);
    return memset(memory, 0xA5, size);
}

static void *read_from(FILE *file, size_t size)
{
    void *memory = take(size);
    if (fread(memory, 1, size, file) != size)
        stand_in_fail("the file of the network is %u bytes too short", (uint32_t)size);
    return memory;
}

static struct stand_in_region region(uint8_t *cpu, uint32_t bytes, bool cached)
{
    uint32_t size = (bytes + LINE - 1) / LINE * LINE;
    uint8_t *ram = take(size);
    return (struct stand_in_region){cpu, ram, cached ? take(size) : ram, size};
}

static LL_Buffer_InfoTypeDef buffer(const char *name, uint8_t *base, uint32_t bytes)
{
    return (LL_Buffer_InfoTypeDef){
        .name = name,
        .addr_base = {.p = base},
        .offset_start = SHIFT,
        .offset_end = SHIFT + bytes,
        .offset_limit = SHIFT + bytes + 64,
        .type = DataType_INT8,
        .nbits = 8,
        .chpos = CHPos_Last,
    };
}

/* The kernels' memory, and a look at the plan. */
static void open_kernels(const uint32_t *plan)
{
    const struct kernel_set *kernels = &portable_kernels;
    if (plan_open(&stand_in.plan, plan, stand_in.head.plan_words, stand_in.model, stand_in.head.model_bytes).code)
        stand_in_fail("the plan of %u words is inconsistent", stand_in.head.plan_words);
    size_t scratch = 0;
    stand_in.of_npu = take(stand_in.plan.arena);
    const struct plan_op *op = (const struct plan_op *)stand_in.plan.ops;
    for (uint32_t i = 0; i < stand_in.plan.op_count; i++, op = plan_next(op)) {
        size_t need = kernels->ops[op->kind].scratch ? kernels->ops[op->kind].scratch(&stand_in.plan, op) : 0;
        scratch = need > scratch ? need : scratch;
    }
    stand_in.memory = (struct kernel_memory){
        .activations = take(stand_in.plan.arena), .scratch = take(scratch), .block = 1, .samples = 1};
}

const struct stand_in_network *stand_in_network(void)
{
    if (stand_in.model)
        return &stand_in.network;
    const char *path = getenv("LL_ATON_STAND_IN");
    FILE *file = path ? fopen(path, "rb") : NULL;
    struct head *head = &stand_in.head;
    if (!file || fread(head, sizeof *head, 1, file) != 1 || head->magic != MAGIC)
        stand_in_fail("LL_ATON_STAND_IN names no network", 0);
    uint32_t *plan = read_from(file, 4 * (size_t)head->plan_words);
    stand_in.places = read_from(file, head->weights * sizeof *stand_in.places);
    stand_in.model = read_from(file, head->model_bytes);
    stand_in.pool = read_from(file, head->pool_bytes);
    fclose(file);
    stand_in.is_weight = memset(take(head->pool_bytes), 0, head->pool_bytes);
    for (uint32_t i = 0; i < head->weights; i++)
        stand_in.is_weight[stand_in.places[i].pool] = true;
    open_kernels(plan);

    uint8_t *input = take(SHIFT + head->input_bytes), *output = take(SHIFT + head->output_bytes);
    struct stand_in_region *regions = stand_in.network.regions;
    regions[STAND_IN_POOL] = region((uint8_t *)(uintptr_t)head->pool_address, head->pool_bytes, head->cacheable != 0);
    regions[STAND_IN_INPUT] = region(input, SHIFT + head->input_bytes, false);
    regions[STAND_IN_OUTPUT] = region(output, SHIFT + head->output_bytes, false);
    stand_in.input[0] = buffer("Input_0_out_0", input, head->input_bytes);
    stand_in.output[0] = buffer("Output_out_0", output, head->output_bytes);
    return &stand_in.network;
}

uint32_t stand_in_network_id(void)
{
    stand_in_network();
    return stand_in.head.id;
}

#define JOIN(a, b)       a##b
#define NAMED(stem, n)   JOIN(stem, n)
#define OF_NETWORK(stem) NAMED(stem, NEURAL_ART_NAME)

const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Input_Buffers_Info_)(void);
const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Output_Buffers_Info_)(void);

const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Input_Buffers_Info_)(void)
{
    stand_in_network();
    return stand_in.input;
}

const LL_Buffer_InfoTypeDef *OF_NETWORK(LL_ATON_Output_Buffers_Info_)(void)
{
    stand_in_network();
    return stand_in.output;
}

/* The weights as the NPU finds them, and a look at what has to be as it was. */
static void read_weights(void)
{
    const uint8_t *pool = stand_in.network.regions[STAND_IN_POOL].npu;
    for (uint32_t i = 0; i < stand_in.head.pool_bytes; i++)
        if (!stand_in.is_weight[i] && pool[i] != stand_in.pool[i])
            stand_in_fail("byte %u of the pool holds no weight and has changed", i);
    for (uint32_t i = 0; i < stand_in.head.weights; i++)
        stand_in.model[stand_in.places[i].model] = pool[stand_in.places[i].pool];
}

/* One op in the arithmetic that was asked for: TFLite's, unless LL_ATON_STAND_IN_ARITHMETIC is "npu", or "both": then
 * TFLite's goes on, and how far the NPU's is from it, op by op, is written to the file LL_ATON_STAND_IN_DIFFERENCES. */
static void run_op(const struct plan_op *op, const char *arithmetic)
{
    const struct plan *plan = &stand_in.plan;
    portable_kernels.ops[op->kind].run(plan, op, stand_in.memory);
    if (!arithmetic || !npu_has(op))
        return;
    int8_t *out = activation(stand_in.memory, tensor_out(plan, op));
    uint32_t size = plan_elements(tensor_out(plan, op));
    npu_run(plan, op, stand_in.memory, stand_in.of_npu);
    stand_in.compared += size;
    for (uint32_t i = 0; i < size; i++) {
        int by = abs(out[i] - stand_in.of_npu[i]);
        stand_in.by[by < 2 ? by : 2]++;
    }
    if (strcmp(arithmetic, "npu") == 0)
        memcpy(out, stand_in.of_npu, size);
}

static void tell_differences(void)
{
    const char *path = getenv("LL_ATON_STAND_IN_DIFFERENCES");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%llu %llu %llu\n", (unsigned long long)stand_in.compared, (unsigned long long)stand_in.by[1],
            (unsigned long long)stand_in.by[2]);
    fclose(file);
}

void stand_in_infer(void)
{
    const struct plan *plan = &stand_in.plan;
    const struct stand_in_region *input = &stand_in.network.regions[STAND_IN_INPUT];
    const struct stand_in_region *output = &stand_in.network.regions[STAND_IN_OUTPUT];
    read_weights();
    memcpy(activation(stand_in.memory, &plan->tensors[plan->input]), input->npu + SHIFT, stand_in.head.input_bytes);
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    for (uint32_t i = 0; i < plan->op_count; i++, op = plan_next(op))
        run_op(op, getenv("LL_ATON_STAND_IN_ARITHMETIC"));
    tell_differences();
    memcpy(output->npu + SHIFT, activation(stand_in.memory, &plan->tensors[plan->output]), stand_in.head.output_bytes);
    stand_in_written(output);
    stand_in.network.inferences++;
}
