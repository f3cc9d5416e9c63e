/* Finds the steps in a profile's rows, on the host's clock or on the device's. */
#include "trace/profile_steps.h"

#include <math.h>
#include <stdlib.h>

/* ---- The device's clock ---- */

/* Work of the device, in launch order. */
typedef struct work {
    int64_t number;
    double launch_us;
    double start_us;
    double end_us; /* end of all work launched up to this one */
} work;

typedef struct device {
    work *list;
    size_t count;
} device;

static int compare_numbers(const void *left, const void *right)
{
    const work *a = left;
    const work *b = right;
    return (a->number > b->number) - (a->number < b->number);
}

static int compare_launches(const void *left, const void *right)
{
    const work *a = left;
    const work *b = right;
    if (a->launch_us != b->launch_us)
        return a->launch_us < b->launch_us ? -1 : 1;
    return (a->start_us > b->start_us) - (a->start_us < b->start_us);
}

static size_t count_kind(const mgw_rows *rows, mgw_row_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < rows->count; i++)
        count += rows->list[i].kind == kind;
    return count;
}

static void collect(const mgw_rows *rows, mgw_row_kind kind, work *out)
{
    size_t made = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const mgw_row *row = &rows->list[i];
        if (row->kind == kind)
            out[made++] = (work){row->number, row->start_us, row->start_us, row->end_us};
    }
    qsort(out, made, sizeof *out, compare_numbers);
}

/* Kernels get the launch time of the call with their correlation number; those without one are
 * ignored. */
static mgw_status find_device(const char *origin, const mgw_rows *rows, device *out,
                              mgw_error *error)
{
    size_t kernels = count_kind(rows, MGW_ROW_KERNEL);
    size_t launches = count_kind(rows, MGW_ROW_LAUNCH);
    *out = (device){0};
    if (kernels == 0 || launches == 0)
        return MGW_OK;
    out->list = malloc(kernels * sizeof *out->list);
    work *given = malloc(launches * sizeof *given);
    if (!out->list || !given) {
        free(given);
        return mgw_fail_memory(error, origin);
    }
    collect(rows, MGW_ROW_KERNEL, out->list);
    collect(rows, MGW_ROW_LAUNCH, given);
    for (size_t k = 0, l = 0; k < kernels; k++) {
        while (l < launches && given[l].number < out->list[k].number)
            l++;
        if (l == launches || given[l].number != out->list[k].number)
            continue;
        work one = out->list[k];
        one.launch_us = given[l].start_us;
        out->list[out->count++] = one;
    }
    free(given);
    if (out->count)
        qsort(out->list, out->count, sizeof *out->list, compare_launches);
    for (size_t i = 1; i < out->count; i++)
        out->list[i].end_us = fmax(out->list[i].end_us, out->list[i - 1].end_us);
    return MGW_OK;
}

/* The number of launches before `at_us`. */
static size_t given_before(const device *d, double at_us, bool inclusive)
{
    size_t low = 0;
    size_t high = d->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        double launch_us = d->list[middle].launch_us;
        if (launch_us < at_us || (inclusive && launch_us == at_us))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* When all work launched by then is done; without a device, that time itself. */
static double done_us(const device *d, double at_us)
{
    size_t count = given_before(d, at_us, true);
    return count ? d->list[count - 1].end_us : at_us;
}

/* When the first work launched from then on begins. */
static double begun_us(const device *d, double at_us)
{
    size_t count = given_before(d, at_us, false);
    return count < d->count ? d->list[count].start_us : at_us;
}

/* ---- Splitting into steps ---- */

static mgw_status push(mgw_steps *steps, const mgw_step *step, const char *origin, mgw_error *error)
{
    if (step->count == 0)
        return MGW_OK;
    if ((steps->count & (steps->count - 1)) == 0) {
        mgw_step *list = realloc(steps->list, 2 * (steps->count + 1) * sizeof *list);
        if (!list)
            return mgw_fail_memory(error, origin);
        steps->list = list;
    }
    steps->list[steps->count++] = *step;
    return MGW_OK;
}

/*
 * A step ends at a mark of the profiler, when the optimizer begins, or at an operation that is not
 * part of the backward pass.
 */
static mgw_status split(const char *origin, const mgw_rows *rows, mgw_steps *out, mgw_error *error)
{
    mgw_step step = {0};
    double busy_us = -INFINITY;
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < rows->count; i++) {
        const mgw_row *row = &rows->list[i];
        bool outside =
            row->kind == MGW_ROW_OPERATION && row->number >= 0 && row->start_us > busy_us;
        if (row->kind == MGW_ROW_STEP ||
            (step.count && (row->kind == MGW_ROW_OPTIMIZER || outside))) {
            step.stop = i;
            status = push(out, &step, origin, error);
            step = (mgw_step){.first = i};
        }
        step.count += row->kind == MGW_ROW_GRADIENT;
        if (row->kind == MGW_ROW_GRADIENT || row->kind == MGW_ROW_NODE)
            busy_us = fmax(busy_us, row->end_us);
    }
    step.stop = rows->count;
    return status ? status : push(out, &step, origin, error);
}

/* ---- One step ---- */

/* An operation of the forward pass, with its sequence number. */
typedef struct use {
    int64_t number;
    const mgw_row *row;
} use;

static int compare_uses(const void *left, const void *right)
{
    const use *a = left;
    const use *b = right;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row); /* the outermost first, since rows are sorted */
}

static const mgw_row *find_use(const use *uses, size_t count, int64_t number)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (uses[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && uses[low].number == number && number >= 0 ? uses[low].row : NULL;
}

/* The first operation that the backward pass refers to; without sequence numbers, the first one
 * after the optimizer and the messages of buffers. */
static const mgw_row *find_forward(const mgw_rows *rows, const mgw_step *step, const use *uses,
                                   size_t use_count, size_t backward)
{
    const mgw_row *first = NULL;
    double from_us = -INFINITY;
    for (size_t i = backward; rows->numbered && i < step->stop; i++) {
        const mgw_row *row = &rows->list[i];
        const mgw_row *found =
            row->kind == MGW_ROW_NODE ? find_use(uses, use_count, row->number) : NULL;
        if (found && (!first || found->start_us < first->start_us))
            first = found;
    }
    for (size_t i = step->first; i < backward; i++)
        if (rows->list[i].kind == MGW_ROW_OPTIMIZER || rows->list[i].kind == MGW_ROW_SETUP)
            from_us = fmax(from_us, rows->list[i].end_us);
    for (size_t i = step->first; !first && i < backward; i++)
        if (rows->list[i].kind == MGW_ROW_OPERATION && rows->list[i].start_us >= from_us)
            first = &rows->list[i];
    return first;
}

/* Where its backward pass begins. */
static size_t find_backward(const mgw_rows *rows, const mgw_step *step)
{
    size_t i = step->first;
    while (rows->list[i].kind != MGW_ROW_NODE && rows->list[i].kind != MGW_ROW_GRADIENT)
        i++;
    return i;
}

static void time_gradients(const mgw_rows *rows, const device *d, const use *uses, size_t use_count,
                           double begin_us, double backward_us, mgw_step *step)
{
    const mgw_row *node = NULL;
    double before_s = 0;
    size_t made = 0;
    for (size_t i = step->first; i < step->stop; i++) {
        const mgw_row *row = &rows->list[i];
        if (row->kind == MGW_ROW_NODE)
            node = row;
        if (row->kind != MGW_ROW_GRADIENT)
            continue;
        const mgw_row *used = node ? find_use(uses, use_count, node->number) : NULL;
        mgw_step_gradient *gradient = &step->gradients[made++];
        before_s = fmax(before_s, (done_us(d, row->end_us) - backward_us) * 1e-6);
        *gradient = (mgw_step_gradient){row, node, before_s, MGW_TIME_UNKNOWN};
        if (used)
            gradient->needed_s =
                fmin(step->forward_s, fmax(0, (begun_us(d, used->start_us) - begin_us) * 1e-6));
    }
    step->compute_s = step->forward_s + before_s;
}

static mgw_status time_step(const char *origin, const mgw_rows *rows, const device *d,
                            mgw_step *step, mgw_error *error)
{
    size_t backward = find_backward(rows, step);
    use *uses = malloc((backward - step->first + 1) * sizeof *uses);
    step->gradients = calloc(step->count, sizeof *step->gradients);
    if (!uses || !step->gradients) {
        free(uses);
        return mgw_fail_memory(error, origin);
    }
    size_t use_count = 0;
    for (size_t i = step->first; i < backward; i++)
        if (rows->list[i].kind == MGW_ROW_OPERATION && rows->list[i].number >= 0)
            uses[use_count++] = (use){rows->list[i].number, &rows->list[i]};
    qsort(uses, use_count, sizeof *uses, compare_uses);
    const mgw_row *forward = find_forward(rows, step, uses, use_count, backward);
    double host_us = rows->list[backward].start_us;
    double begin_us = begun_us(d, forward ? forward->start_us : host_us);
    double backward_us = fmax(begin_us, done_us(d, host_us));
    step->has_forward = forward != NULL;
    step->samples = forward ? forward->count : 0;
    step->begin_us = begin_us;
    step->forward_s = (backward_us - begin_us) * 1e-6;
    time_gradients(rows, d, uses, use_count, begin_us, backward_us, step);
    free(uses);
    return MGW_OK;
}

mgw_status mgw_steps_find(const char *origin, const mgw_rows *rows, mgw_steps *out,
                          mgw_error *error)
{
    device d;
    *out = (mgw_steps){0};
    mgw_status status = find_device(origin, rows, &d, error);
    if (!status)
        status = split(origin, rows, out, error);
    for (size_t i = 0; !status && i < out->count; i++)
        status = time_step(origin, rows, &d, &out->list[i], error);
    out->on_device = d.count > 0;
    free(d.list);
    if (!status && out->count == 0)
        status = mgw_fail(
            error, MGW_ERR_INPUT,
            "%s: no gradients found (no rows 'torch::autograd::AccumulateGrad'): profile a whole "
            "step, with its backward pass, and with ProfilerActivity.CPU among the activities",
            origin);
    return status;
}

void mgw_steps_fini(mgw_steps *steps)
{
    for (size_t i = 0; i < steps->count; i++)
        free(steps->list[i].gradients);
    free(steps->list);
    *steps = (mgw_steps){0};
}
