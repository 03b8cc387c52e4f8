/* CONV_2D and FULLY_CONNECTED on AMX: signed 8-bit products, 16 x 16 accumulators a tile. */
#include <immintrin.h>

#include "runners/int8/x86/requantize_avx512.h"

#define FLIP          0
#define LEAST_COLUMNS AMX_COLUMNS
#include "runners/int8/x86/product.h"

/* Tiles 0 to 3 accumulate 2 x 16 pixels x 2 x 16 channels, 4 and 5 hold inputs, 6 and 7 weights: all 16 rows of 64
 * bytes. */
static void configure_tiles(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes_per_row[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

static void multiply_tiles(const struct tile tiles[2], uint32_t count, struct pitch pitch, struct product_shape shape,
                           const uint8_t *panel, uint32_t panels, int32_t *acc)
{
    enum { ACC = TILE * LANES };
    const uint8_t *second = panels == 2 ? panel + panel_bytes(shape) : panel;
    const uint8_t *b0 = panel + sizeof(struct channel_constants), *b1 = second + sizeof(struct channel_constants);
    size_t stride = pitch.pixel;
    /* a stride of 0 loads the same 16 start values for all pixels */
    _tile_loadd(0, ((const struct channel_constants *)panel)->start, 0);
    _tile_loadd(1, ((const struct channel_constants *)panel)->start, 0);
    _tile_loadd(2, ((const struct channel_constants *)second)->start, 0);
    _tile_loadd(3, ((const struct channel_constants *)second)->start, 0);
    for (uint32_t s = 0; s < shape.segments; s++) {
        const uint8_t *a0 = tiles[0].a + s * pitch.segment, *a1 = tiles[1].a + s * pitch.segment;
        const uint8_t *end = b0 + (size_t)shape.segment_steps * DEPTH_STEP * LANES;
        if (count == 2 && panels == 2) {
            for (; b0 < end; a0 += 64, a1 += 64, b0 += 64 * LANES, b1 += 64 * LANES) {
                _tile_loadd(6, b0, 64);
                _tile_loadd(4, a0, stride);
                _tile_dpbssd(0, 4, 6);
                _tile_loadd(7, b1, 64);
                _tile_dpbssd(2, 4, 7);
                _tile_loadd(5, a1, stride);
                _tile_dpbssd(1, 5, 6);
                _tile_dpbssd(3, 5, 7);
            }
        } else if (count == 2) {
            for (; b0 < end; a0 += 64, a1 += 64, b0 += 64 * LANES) {
                _tile_loadd(6, b0, 64);
                _tile_loadd(4, a0, stride);
                _tile_dpbssd(0, 4, 6);
                _tile_loadd(5, a1, stride);
                _tile_dpbssd(1, 5, 6);
            }
        } else {
            for (; b0 < end; a0 += 64, b0 += 64 * LANES, b1 += 64 * LANES) {
                _tile_loadd(4, a0, stride);
                _tile_loadd(6, b0, 64);
                _tile_dpbssd(0, 4, 6);
                if (panels == 2) {
                    _tile_loadd(7, b1, 64);
                    _tile_dpbssd(2, 4, 7);
                }
            }
        }
    }
    _tile_stored(0, acc, 64);
    if (count == 2)
        _tile_stored(1, acc + ACC, 64);
    if (panels == 2)
        _tile_stored(2, acc + 2 * ACC, 64);
    if (count == 2 && panels == 2)
        _tile_stored(3, acc + 3 * ACC, 64);
}

void conv_2d_amx(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    configure_tiles();
    product(plan, op, &conv->filter, &conv->window, memory);
}

void fully_connected_amx(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    configure_tiles();
    product(plan, op, &((const struct plan_fully_connected *)op)->filter, NULL, memory);
}

size_t product_amx_scratch(const struct plan *plan, const struct plan_op *op)
{
    return product_scratch(plan, op);
}
