/* Wire formats for f32 gradients: the time of a message by wire, and the minimum over several wires
 * as one curve. docs/explanation/model.md proves that planning on that curve is exact. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/cluster.h>

#include "base/dtype.h"
#include "base/near.h"
#include "base/status.h"
#include "cluster/fit.h"

/* ---- Formats ---- */

/* From the widest to the narrowest: the widest wins ties. */
static const mgw_dtype wires[] = {MGW_F32, MGW_BF16, MGW_F16, MGW_FP8, MGW_FP8_E5M2};

enum { WIRES = sizeof wires / sizeof *wires };

/* Formats with different times; of the 8-bit formats, e4m3 is more accurate. */
static const unsigned automatic = 1u << MGW_F32 | 1u << MGW_BF16 | 1u << MGW_FP8;

bool mgw_wire_is_known(mgw_dtype wire)
{
    for (size_t i = 0; i < WIRES; i++)
        if (wires[i] == wire)
            return true;
    return false;
}

/* Parses the name that begins at `at`. */
static bool read_wire(const char *at, size_t length, mgw_dtype *out)
{
    char name[16] = "";
    if (length < sizeof name)
        memcpy(name, at, length);
    return mgw_dtype_parse(name, out) && mgw_wire_is_known(*out);
}

static mgw_status fail_unknown(const char *text, size_t length, mgw_error *error)
{
    static const char *const names[] = {"auto", "f32", "bf16", "f16", "fp8", "fp8-e5m2"};
    char name[41];
    char hint[MGW_NEAR_HINT];
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    mgw_near near = mgw_near_to(name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        mgw_near_offer(&near, names[i]);
    mgw_near_hint(&near, hint);
    return mgw_fail(error, MGW_ERR_ARGUMENT, "unknown wire format '%s'%s", name,
                    *hint ? hint
                          : "; choose auto, or one or several of f32, bf16, f16, fp8 and "
                            "fp8-e5m2, separated by commas");
}

mgw_status mgw_wires_parse(const char *text, unsigned *out, mgw_error *error)
{
    unsigned found = 0;
    bool more = strcmp(text, "auto") != 0;
    for (const char *at = text; more;) {
        mgw_dtype wire = MGW_F32;
        size_t length = strcspn(at, ",");
        if (!read_wire(at, length, &wire))
            return fail_unknown(at, length, error);
        found |= 1u << wire;
        more = at[length] == ',';
        at += length + more;
    }
    *out = found ? found : automatic;
    return MGW_OK;
}

/* ---- One message ---- */

static bool has_scales(mgw_dtype wire)
{
    return mgw_dtype_bytes(wire) == 1;
}

uint64_t mgw_wire_bytes(mgw_dtype wire, uint64_t elements)
{
    uint64_t scales = has_scales(wire) ? (elements + MGW_FP8_BLOCK - 1) / MGW_FP8_BLOCK : 0;
    return elements * mgw_dtype_bytes(wire) + scales * sizeof(float);
}

/* Bytes sent per byte of f32. */
static double share_of(mgw_dtype wire)
{
    return (double)mgw_dtype_bytes(wire) / sizeof(float);
}

/* The time without rounding up to whole blocks, so that it is linear between corners. */
static double seconds_at(const mgw_cost *cost, mgw_collective kind, mgw_dtype wire, double bytes)
{
    double seconds = mgw_curve_at(&cost->of[kind], share_of(wire) * bytes);
    if (wire == MGW_F32)
        return seconds;
    if (has_scales(wire))
        seconds += mgw_curve_at(&cost->of[MGW_ALL_REDUCE], bytes / MGW_FP8_BLOCK);
    return seconds + cost->casts[wire].a_s + cost->casts[wire].c_s_per_byte * bytes;
}

double mgw_wire_seconds(const mgw_cost *cost, mgw_collective kind, mgw_dtype wire, uint64_t bytes)
{
    return seconds_at(cost, kind, wire, (double)bytes);
}

static mgw_dtype choose_at(const mgw_cost *cost, mgw_collective kind, double bytes, double *out_s)
{
    mgw_dtype best = MGW_F32;
    double least_s = INFINITY;
    for (size_t i = 0; i < WIRES; i++) {
        if (!(cost->wires >> wires[i] & 1))
            continue;
        double seconds = seconds_at(cost, kind, wires[i], bytes);
        if (seconds < least_s) {
            least_s = seconds;
            best = wires[i];
        }
    }
    *out_s = least_s;
    return best;
}

mgw_dtype mgw_wire_choose(const mgw_cost *cost, mgw_collective kind, uint64_t bytes)
{
    double seconds = 0;
    return cost->wires ? choose_at(cost, kind, (double)bytes, &seconds) : MGW_F32;
}

/* ---- The minimum over all wires, as a curve ---- */

typedef struct building {
    const mgw_cost *cost;
    mgw_collective kind;
    size_t count;
    size_t capacity;
    mgw_sample *samples;
    bool failed; /* out of memory */
    bool one;    /* the same wire has been best everywhere so far: */
    mgw_dtype best;
} building;

/* Larger than any message. */
static const double far_bytes = 0x1p62;

static void add_sample(building *b, double bytes)
{
    if (b->count == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 32;
        mgw_sample *grown = realloc(b->samples, capacity * sizeof *grown);
        b->failed |= !grown;
        if (!grown)
            return;
        b->samples = grown;
        b->capacity = capacity;
    }
    double seconds = 0;
    mgw_dtype best = choose_at(b->cost, b->kind, bytes, &seconds);
    if (b->count && b->samples[b->count - 1].bytes >= (uint64_t)bytes)
        return;
    b->one = !b->count || (b->one && best == b->best);
    b->best = best;
    b->samples[b->count++] = (mgw_sample){(uint64_t)bytes, seconds};
}

/*
 * All wires are lines between `left` and `right`. A line that is lowest at both ends is lowest in
 * between. If two different lines are, splits at their crossing and handles both sides recursively.
 * Each time one more line is known to be part of the minimum, so the recursion ends.
 */
static void add_between(building *b, double left, double right, int depth)
{
    double seconds = 0;
    const mgw_cost *cost = b->cost;
    mgw_dtype from = choose_at(cost, b->kind, left, &seconds);
    mgw_dtype to = choose_at(cost, b->kind, right, &seconds);
    if (from == to || depth == 2 * WIRES)
        return;
    double ahead_s = seconds_at(cost, b->kind, to, left) - seconds_at(cost, b->kind, from, left);
    double behind_s = seconds_at(cost, b->kind, from, right) - seconds_at(cost, b->kind, to, right);
    double at =
        ahead_s + behind_s > 0 ? left + (right - left) * (ahead_s / (ahead_s + behind_s)) : left;
    double below = floor(at); /* messages have whole bytes */
    if (below > left)
        add_between(b, left, below, depth + 1);
    if (below > left)
        add_sample(b, below);
    if (below + 1 < right) {
        add_sample(b, below + 1);
        add_between(b, below + 1, right, depth + 1);
    }
}

static int compare_bytes(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The corners of the wires' times: at samples of the bytes sent. */
static size_t find_corners(const mgw_cost *cost, mgw_collective kind, double *out)
{
    const mgw_curve *own = &cost->of[kind];
    const mgw_curve *scales = &cost->of[MGW_ALL_REDUCE];
    size_t count = 0;
    out[count++] = 0;
    out[count++] = far_bytes;
    for (size_t w = 0; w < WIRES; w++) {
        if (!(cost->wires >> wires[w] & 1))
            continue;
        for (size_t i = 0; i < own->sample_count; i++)
            out[count++] = (double)own->samples[i].bytes / share_of(wires[w]);
        for (size_t i = 0; has_scales(wires[w]) && i < scales->sample_count; i++)
            out[count++] = (double)scales->samples[i].bytes * MGW_FP8_BLOCK;
    }
    qsort(out, count, sizeof *out, compare_bytes);
    while (out[count - 1] > far_bytes)
        count--;
    return count;
}

mgw_status mgw_wire_curve(const mgw_cost *cost, mgw_collective kind, mgw_curve *out,
                          mgw_error *error)
{
    const mgw_curve *own = &cost->of[kind];
    const mgw_curve *scales = &cost->of[MGW_ALL_REDUCE];
    double *corners =
        malloc((2 + WIRES * (own->sample_count + scales->sample_count)) * sizeof *corners);
    building b = {.cost = cost, .kind = kind, .failed = !corners};
    size_t count = corners ? find_corners(cost, kind, corners) : 0;
    for (size_t i = 0; i < count; i++) {
        if (i)
            add_between(&b, corners[i - 1], corners[i], 0);
        add_sample(&b, corners[i]);
    }
    free(corners);
    if (b.failed || b.count < 2) { /* there are at least two corners */
        free(b.samples);
        return mgw_fail_memory(error, "wires");
    }
    const mgw_sample *last = &b.samples[b.count - 1];
    double start_s = b.samples[0].seconds;
    bool line = !own->sample_count && b.one && (!has_scales(b.best) || !scales->sample_count);
    *out = (mgw_curve){.a_s = line ? start_s : own->a_s,
                       .b_s_per_byte = (last->seconds - last[-1].seconds) /
                                       (double)(last->bytes - last[-1].bytes),
                       .sample_count = line ? 0 : b.count,
                       .samples = line ? NULL : b.samples};
    if (line)
        free(b.samples);
    return MGW_OK;
}

/* ---- The time of casts ---- */

/*
 * Typical of a GPU with a memory bandwidth of 1 TB/s: both casts move 6 bytes per 4 bytes of f32;
 * 8-bit casts move 5, after a pass that finds the largest magnitudes. A kernel takes 5 us to start.
 */
const mgw_cast mgw_casts_typical[MGW_DTYPE_COUNT] = {[MGW_F16] = {10e-6, 3e-12},
                                                     [MGW_BF16] = {10e-6, 3e-12},
                                                     [MGW_FP8] = {15e-6, 3.5e-12},
                                                     [MGW_FP8_E5M2] = {15e-6, 3.5e-12}};

mgw_status mgw_cluster_set_cast(mgw_cluster *cluster, mgw_dtype wire, const mgw_cast *cast,
                                mgw_error *error)
{
    if (wire == MGW_F32 || !mgw_wire_is_known(wire))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "casts: f32 gradients cannot be sent as %s",
                        (unsigned)wire < MGW_DTYPE_COUNT ? mgw_dtype_name(wire) : "?");
    if (!(isfinite(cast->a_s) && cast->a_s >= 0 && isfinite(cast->c_s_per_byte) &&
          cast->c_s_per_byte >= 0))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "casts: %s: a and c must be finite and >= 0",
                        mgw_dtype_name(wire));
    cluster->casts[wire] = *cast;
    cluster->casts_given |= 1u << wire;
    return MGW_OK;
}

void mgw_cluster_copy_workers(const mgw_cluster *from, mgw_cluster *to)
{
    memcpy(to->casts, from->casts, sizeof to->casts);
    to->casts_given = from->casts_given;
    to->beside = from->beside;
}
