/* CONV_2D and FULLY_CONNECTED on AMX: signed 8-bit products, 16 x 16 accumulators a tile. */
#include <immintrin.h>

#include "runners/int8/x86/requantize_avx512.h"
#include "runners/int8/x86/tiles.h"

/* Tiles start from zero: to load start values into them takes longer than to add these in the end. */
static inline void requantize_rows(const struct plan *plan, const struct plan_op *op,
                                   const struct channel_constants *constants, const int32_t *acc, uint32_t rows,
                                   uint32_t first, uint32_t channels, int8_t *out, size_t stride)
{
    requantize_panel(plan, op, constants, acc, rows, first, channels, out, stride, true);
}

#define FLIP    0
#define READING AMX_READING
#include "runners/int8/x86/product.h"

/* GCC's intrinsics do not say that they read memory: all stores before, none that follow. */
static inline void settle(const void *memory)
{
    __asm__ volatile("" ::"r"(memory) : "memory");
}

/* Tiles 0 to 3 accumulate 16 pixels x 16 channels each, 4 to 7 hold inputs and weights. */
enum { ACC = TILE * LANES /* of one tile */ };

static inline const uint8_t *weights_of(const uint8_t *panel)
{
    return panel + sizeof(struct channel_constants);
}

static inline void two_by_two(const struct tile tiles[4], struct pitch pitch, struct product_shape shape,
                              const uint8_t *panel, const uint8_t *second, int32_t *acc)
{
    const uint8_t *b0 = weights_of(panel), *b1 = weights_of(second);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t s = 0; s < shape.segments; s++) {
        const uint8_t *a0 = tiles[0].a + s * pitch.segment, *a1 = tiles[1].a + s * pitch.segment;
        for (uint32_t k = 0; k < shape.segment_steps; k++, a0 += 64, a1 += 64, b0 += 1024, b1 += 1024) {
            _tile_loadd(4, a0, pitch.pixel);
            _tile_loadd(6, b0, 64);
            _tile_loadd(5, a1, pitch.pixel);
            _tile_loadd(7, b1, 64);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 5, 6);
            _tile_dpbssd(2, 4, 7);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, acc, 64);
    _tile_stored(1, acc + ACC, 64);
    _tile_stored(2, acc + 2 * ACC, 64);
    _tile_stored(3, acc + 3 * ACC, 64);
}

static inline void four_by_one(const struct tile tiles[4], struct pitch pitch, struct product_shape shape,
                               const uint8_t *panel, int32_t *acc)
{
    const uint8_t *b = weights_of(panel);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t s = 0; s < shape.segments; s++) {
        size_t at = s * pitch.segment;
        for (uint32_t k = 0; k < shape.segment_steps; k++, at += 64, b += 1024) {
            _tile_loadd(7, b, 64);
            _tile_loadd(4, tiles[0].a + at, pitch.pixel);
            _tile_loadd(5, tiles[1].a + at, pitch.pixel);
            _tile_loadd(6, tiles[2].a + at, pitch.pixel);
            _tile_dpbssd(0, 4, 7);
            _tile_dpbssd(1, 5, 7);
            _tile_loadd(4, tiles[3].a + at, pitch.pixel);
            _tile_dpbssd(2, 6, 7);
            _tile_dpbssd(3, 4, 7);
        }
    }
    _tile_stored(0, acc, 64);
    _tile_stored(1, acc + ACC, 64);
    _tile_stored(2, acc + 2 * ACC, 64);
    _tile_stored(3, acc + 3 * ACC, 64);
}

/* What remains at the end: one tile with one or two panels. */
static inline void one_tile(const uint8_t *a, struct pitch pitch, struct product_shape shape, const uint8_t *panel,
                            const uint8_t *second, int32_t *acc)
{
    const uint8_t *b0 = weights_of(panel), *b1 = weights_of(second);
    _tile_zero(0);
    _tile_zero(2);
    for (uint32_t s = 0; s < shape.segments; s++, a += pitch.segment)
        for (uint32_t k = 0; k < shape.segment_steps; k++, b0 += 1024, b1 += 1024) {
            _tile_loadd(4, a + 64 * k, pitch.pixel);
            _tile_loadd(6, b0, 64);
            _tile_dpbssd(0, 4, 6);
            if (second != panel) {
                _tile_loadd(7, b1, 64);
                _tile_dpbssd(2, 4, 7);
            }
        }
    _tile_stored(0, acc, 64);
    if (second != panel)
        _tile_stored(2, acc + 2 * ACC, 64);
}

static void multiply_tiles(const struct tile tiles[4], uint32_t count, struct pitch pitch, struct product_shape shape,
                           const uint8_t *panel, uint32_t panels, int32_t *acc)
{
    const uint8_t *second = panels == 2 ? panel + panel_bytes(shape) : panel;
    settle(tiles);
    if (count == 2 && panels == 2)
        two_by_two(tiles, pitch, shape, panel, second, acc);
    else if (count == 4)
        four_by_one(tiles, pitch, shape, panel, acc);
    else
        for (uint32_t t = 0; t < count; t++)
            one_tile(tiles[t].a, pitch, shape, panel, second, acc + t * ACC);
    settle(acc);
}

void product_amx(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    configure_tiles();
    product(plan, op, memory);
}

size_t product_amx_scratch(const struct plan *plan, const struct plan_op *op)
{
    return product_scratch(plan, op);
}
