#include "zo/layout.h"

/* Weights that follow each other in index order and lie equally far apart. */
struct strip {
    uint32_t at, stride, count;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Bytes of a frame of the deep layout with the zeros behind it, and of a row of frames: 64 bits for what was not
 * checked yet. */
static uint64_t frame_size(const struct zo_entry *e, uint32_t outputs, uint32_t inputs)
{
    uint64_t live = (uint64_t)outputs * inputs, multiple = e->p[3];
    return (live + multiple - 1) / multiple * multiple;
}

static uint64_t row_size(const struct zo_entry *e, uint32_t outputs)
{
    uint32_t all = e->box[ZO_I].count, inputs = e->p[1];
    return all / inputs * frame_size(e, outputs, inputs) + frame_size(e, outputs, all % inputs);
}

uint64_t zo_entry_size(const struct zo_entry *e)
{
    uint32_t outputs = e->box[ZO_O].count;
    if (e->family == ZO_DEEP)
        return outputs / e->p[0] * row_size(e, e->p[0]) + row_size(e, outputs % e->p[0]);
    uint64_t live = (uint64_t)outputs * e->box[ZO_H].count * e->box[ZO_W].count * e->box[ZO_I].count;
    return e->family == ZO_INFLATED ? live * e->p[0] : live;
}

/* What follows is within a buffer that was checked: 32 bits do. */
static uint32_t padded(const struct zo_entry *e, uint32_t live)
{
    return (live + e->p[3] - 1) / e->p[3] * e->p[3];
}

static struct strip blocked(const struct zo_entry *e, uint32_t o, uint32_t h, uint32_t w, uint32_t i)
{
    uint32_t rows = e->box[ZO_H].count, columns = e->box[ZO_W].count, inputs = e->box[ZO_I].count;
    uint32_t in_o = o % e->p[0], in_i = i % e->p[1];
    uint32_t n = least(e->p[0], e->box[ZO_O].count - (o - in_o)), d = least(e->p[1], inputs - (i - in_i));
    uint32_t block = ((o - in_o) * inputs + n * (i - in_i)) * rows * columns;
    return (struct strip){block + ((in_o * rows + h) * columns + w) * d + in_i, 1, d - in_i};
}

static struct strip deep(const struct zo_entry *e, uint32_t o, uint32_t i)
{
    uint32_t inputs = e->box[ZO_I].count, frames = inputs / e->p[1], in_o = o % e->p[0], in_i = i % e->p[1];
    uint32_t n = least(e->p[0], e->box[ZO_O].count - (o - in_o)), d = least(e->p[1], inputs - (i - in_i));
    uint32_t in_g = in_o % e->p[2], g = least(e->p[2], n - (in_o - in_g));
    uint32_t row = frames * padded(e, e->p[0] * e->p[1]) + padded(e, e->p[0] * (inputs - frames * e->p[1]));
    uint32_t frame = o / e->p[0] * row + i / e->p[1] * padded(e, n * e->p[1]);
    return (struct strip){frame + (in_o - in_g) * d + in_i * g + in_g, g, d - in_i};
}

static struct strip inflated(const struct zo_entry *e, uint32_t h, uint32_t w, uint32_t i)
{
    uint32_t rows = e->box[ZO_H].count, columns = e->box[ZO_W].count, inputs = e->box[ZO_I].count, depth = e->p[0];
    uint32_t in_i = i % depth, at = ((i * rows + h) * columns + w) * depth + in_i, left = inputs - i;
    if (depth == 1)
        return (struct strip){at, rows * columns, left};
    return (struct strip){at, rows * columns * depth + 1, least(depth - in_i, left)};
}

/* From a weight of the box on, along the input channels; nowhere beyond the box. */
static struct strip strip_at(const struct zo_entry *e, uint32_t o, uint32_t h, uint32_t w, uint32_t i)
{
    uint32_t rows = e->box[ZO_H].count, columns = e->box[ZO_W].count, inputs = e->box[ZO_I].count;
    switch (e->family) {
    case ZO_BLOCKED:
        return blocked(e, o, h, w, i);
    case ZO_DEEP:
        return deep(e, o, i);
    case ZO_INFLATED:
        return inflated(e, h, w, i);
    default:
        return (struct strip){((o * rows + h) * columns + w) * inputs + i, 1, inputs - i};
    }
}

static bool holds(const struct zo_entry *e, const uint32_t at[ZO_AXES])
{
    bool inside = true;
    for (int axis = 0; axis < ZO_AXES; axis++)
        inside = inside && at[axis] - e->box[axis].first < e->box[axis].count;
    return inside;
}

/* Where a walk through a filter is: a weight, and the weights from it on that are one strip. */
struct walk {
    uint32_t at[ZO_AXES];
    struct strip strip; /* from the base */
};

static void start(struct walk *walk, const uint32_t filter[ZO_AXES], uint32_t position)
{
    for (int axis = ZO_I; axis >= ZO_O; axis--) {
        walk->at[axis] = position % filter[axis];
        position /= filter[axis];
    }
}

static void find_strip(struct walk *walk, const struct zo_entry *e, uint32_t most)
{
    while (!holds(e, walk->at))
        e++;
    walk->strip = strip_at(e, walk->at[ZO_O] - e->box[ZO_O].first, walk->at[ZO_H] - e->box[ZO_H].first,
                           walk->at[ZO_W] - e->box[ZO_W].first, walk->at[ZO_I] - e->box[ZO_I].first);
    walk->strip.at += e->offset;
    walk->strip.count = least(walk->strip.count, most);
}

static void pass_strip(struct walk *walk, const uint32_t filter[ZO_AXES])
{
    walk->at[ZO_I] += walk->strip.count;
    for (int axis = ZO_I; axis > ZO_O && walk->at[axis] == filter[axis]; axis--) {
        walk->at[axis] = 0;
        walk->at[axis - 1]++;
    }
}

void zo_layout_gather(const struct zo_entry *entries, const int8_t *base, uint32_t position, uint32_t count,
                      int8_t *row)
{
    struct walk walk;
    start(&walk, entries->filter, position);
    for (; count; count -= walk.strip.count, row += walk.strip.count, pass_strip(&walk, entries->filter)) {
        find_strip(&walk, entries, count);
        const int8_t *from = base + walk.strip.at;
        for (uint32_t k = 0; k < walk.strip.count; k++)
            row[k] = from[k * walk.strip.stride];
    }
}

void zo_layout_scatter(const struct zo_entry *entries, int8_t *base, uint32_t position, uint32_t count,
                       const int8_t *row)
{
    struct walk walk;
    start(&walk, entries->filter, position);
    for (; count; count -= walk.strip.count, row += walk.strip.count, pass_strip(&walk, entries->filter)) {
        find_strip(&walk, entries, count);
        int8_t *to = base + walk.strip.at;
        for (uint32_t k = 0; k < walk.strip.count; k++)
            to[k * walk.strip.stride] = row[k];
    }
}
