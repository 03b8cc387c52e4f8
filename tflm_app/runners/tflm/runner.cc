/* Upstream TensorFlow Lite Micro as the runner: a MicroInterpreter for each worker, over the model where it lies. TFLM
 * reads weights from the flatbuffer itself, so what perturbs and updates them there is what the kernels see. */
#include <new>

#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

extern "C" {
#include "runners/runner.h"
#include "zo/weights.h"
}

namespace
{

constexpr size_t kAlign = 64, kOps = 31;

/* Kernels that derive something from the weights when they prepare (CMSIS-NN's FULLY_CONNECTED, built for speed) have
 * to prepare again whenever these change. */
constexpr bool kCachesWeights = TFLM_CACHES_WEIGHTS;

using Resolver = tflite::MicroMutableOpResolver<kOps>;

constexpr size_t align_up(size_t size)
{
    return (size + kAlign - 1) / kAlign * kAlign;
}

/* What lies at the start of a worker's memory. The arena follows. */
struct Worker {
    Resolver resolver;
    tflite::MicroInterpreter interpreter;

    Worker(const tflite::Model *model, uint8_t *arena, size_t size) : interpreter(model, add_ops(resolver), arena, size)
    {
    }

    /* converters/tflite_model.py, SUPPORTED_OPS. */
    static const Resolver &add_ops(Resolver &r)
    {
        r.AddConv2D();
        r.AddDepthwiseConv2D();
        r.AddFullyConnected();
        r.AddAdd();
        r.AddMean();
        r.AddMaxPool2D();
        r.AddAveragePool2D();
        r.AddPad();
        r.AddPadV2();
        r.AddReshape();
        r.AddSoftmax();
        r.AddQuantize();
        r.AddRelu();
        r.AddRelu6();
        r.AddHardSwish();
        r.AddLogistic();
        r.AddTanh();
        r.AddLeakyRelu();
        r.AddSub();
        r.AddMul();
        r.AddConcatenation();
        r.AddResizeNearestNeighbor();
        r.AddTransposeConv();
        r.AddReduceMax();
        r.AddSqueeze();
        r.AddSlice();
        r.AddStridedSlice();
        r.AddSplit();
        r.AddMinimum();
        r.AddMaximum();
        r.AddPrelu();
        return r;
    }
};

constexpr size_t kHead = align_up(sizeof(Worker));

/* A worker with its tensors allocated, or NULL: then the memory is too small, or TFLM cannot run the model at all. */
Worker *start(const struct image *image, uint8_t *work, size_t size)
{
    if (size <= kHead)
        return nullptr;
    Worker *worker = new (work) Worker(tflite::GetModel(image->tflite), work + kHead, size - kHead);
    if (worker->interpreter.AllocateTensors() == kTfLiteOk)
        return worker;
    worker->~Worker();
    return nullptr;
}

Worker *worker_in(uint8_t *work)
{
    return std::launder(reinterpret_cast<Worker *>(work));
}

} // namespace

extern "C" {

enum image_runner runner_images(void)
{
    return IMAGE_RUNNER_INT8;
}

uint32_t runner_network(void)
{
    return 0;
}

const char *runner_name(const struct runner *)
{
    return "tflm";
}

/* TFLM learns what it needs by allocating, so it does that once in all the memory there is. What it then says it used
 * does not hold what it needed in between: the size is raised until it is enough. */
struct status runner_init(struct runner *runner, const struct image *image, uint8_t *work, size_t size, unsigned)
{
    *runner = {};
    runner->image = image;
    runner->block = 1;
    Worker *worker = start(image, work, size);
    if (!worker)
        return STATUS(STATUS_RUNNER, size, 0);
    bool runs = worker->interpreter.Invoke() == kTfLiteOk;
    size_t need = align_up(kHead + worker->interpreter.arena_used_bytes());
    worker->~Worker();
    if (!runs)
        return STATUS(STATUS_RUNNER, size, 1);
    for (;; need += kAlign) {
        if (need > size)
            return STATUS(STATUS_MEMORY, need, size);
        worker = start(image, work, need);
        if (worker)
            break;
    }
    worker->~Worker();
    runner->memory.activations = need;
    runner->stale = true; /* the workers have no interpreter yet */
    return STATUS(STATUS_OK, 0, 0);
}

void runner_set_probe(struct runner *runner, uint64_t seed, int step)
{
    zo_change_probe(&runner->image->weights, runner->probe_seed, runner->probe_step, seed, step);
    runner->probe_seed = seed;
    runner->probe_step = step;
    runner->stale = runner->stale || kCachesWeights;
}

void runner_weights_written(struct runner *runner)
{
    runner->stale = runner->stale || kCachesWeights;
}

bool runner_needs_prepare(const struct runner *runner)
{
    return runner->stale;
}

/* An interpreter cannot allocate twice: it is made anew. Nothing is freed, since all that it has lies in the arena. */
void runner_prepare(const struct runner *runner, uint8_t *work, unsigned, unsigned)
{
    start(runner->image, work, runner->memory.activations);
}

void runner_prepared(struct runner *runner)
{
    runner->stale = false;
}

int8_t *runner_input(const struct runner *, uint8_t *work, uint32_t)
{
    return worker_in(work)->interpreter.input(0)->data.int8;
}

void runner_invoke(const struct runner *, uint8_t *work, uint32_t)
{
    worker_in(work)->interpreter.Invoke(); /* which succeeded when the image was loaded */
}

const int8_t *runner_output(const struct runner *, uint8_t *work, uint32_t)
{
    return worker_in(work)->interpreter.output(0)->data.int8;
}

/* TFLM keeps intermediate tensors only where it gives each a place of its own: too much for a microcontroller. */
const int8_t *runner_trace(const struct runner *, uint8_t *, uint32_t)
{
    return nullptr;
}

bool runner_profile(const struct runner *, uint8_t *, uint32_t, uint32_t, uint32_t, uint64_t *)
{
    return false; /* an interpreter invokes all ops at once */
}
}
