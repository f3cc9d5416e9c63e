/* Traces in memory: creating, checking, sums and scaling. */
#include "trace/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "base/status.h"

mgw_status mgw_trace_check(const mgw_trace *trace, const char *origin, mgw_error *error)
{
    if (trace->tensor_count == 0)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: tensors: must not be empty", origin);
    size_t gradient_bytes = mgw_dtype_bytes(trace->gradient_dtype);
    size_t parameter_bytes = mgw_dtype_bytes(trace->parameter_dtype);
    uint64_t room =
        (uint64_t)INT64_MAX / (gradient_bytes > parameter_bytes ? gradient_bytes : parameter_bytes);
    double end_s = trace->forward_s;
    for (size_t i = 0; i < trace->tensor_count; i++) {
        const mgw_tensor *tensor = &trace->tensors[i];
        if (tensor->count > room)
            return mgw_fail(error, MGW_ERR_INPUT,
                            "%s: tensors[%zu].count: the sum of all sizes exceeds 2^63 bytes",
                            origin, i);
        room -= tensor->count;
        end_s += tensor->backward_s;
    }
    if (!isfinite(end_s))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: tensors: the sum of all times is not finite",
                        origin);
    size_t first = 0;
    size_t second = 0;
    mgw_status status = mgw_names_distinct(trace->names, &first, &second, error);
    if (!status && first != second)
        status = mgw_fail(error, MGW_ERR_INPUT,
                          "%s: tensors[%zu].name: '%.80s' is also the name of tensors[%zu]", origin,
                          second, mgw_names_get(trace->names, second), first);
    return status;
}

static mgw_status check_tensor(const mgw_tensor *tensor, size_t index, mgw_error *error)
{
    double needed_s = tensor->forward_start_s;
    bool known = needed_s != MGW_TIME_UNKNOWN && needed_s != MGW_NEVER_NEEDED;
    if (isfinite(tensor->backward_s) && tensor->backward_s >= 0 &&
        (!known || (isfinite(needed_s) && needed_s >= 0)))
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "tensor %zu: a time is negative or not finite", index);
}

mgw_status mgw_trace_create(const char *model, mgw_dtype gradient_dtype, double forward_s,
                            size_t count, const char *const *names, const mgw_tensor *tensors,
                            mgw_trace **out, mgw_error *error)
{
    if (!isfinite(forward_s) || forward_s < 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: forward_s is negative or not finite", model);
    mgw_trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return mgw_fail_memory(error, model);
    trace->model = strdup(model);
    trace->device = strdup("unknown");
    trace->precision = strdup("unknown");
    trace->batch = 1;
    trace->gradient_dtype = gradient_dtype;
    trace->parameter_dtype = gradient_dtype;
    trace->forward_s = forward_s;
    trace->tensor_count = count;
    trace->tensors = malloc(count ? count * sizeof *tensors : 1);
    mgw_status status = mgw_names_create(&trace->names, error);
    if (!status && (!trace->model || !trace->device || !trace->precision || !trace->tensors))
        status = mgw_fail_memory(error, model);
    for (size_t i = 0; !status && i < count; i++) {
        trace->tensors[i] = tensors[i];
        status = check_tensor(&tensors[i], i, error);
        if (!status)
            status = mgw_names_add(trace->names, names[i], error);
    }
    if (!status)
        status = mgw_trace_check(trace, model, error);
    if (status)
        mgw_trace_destroy(trace);
    else
        *out = trace;
    return status;
}

void mgw_trace_destroy(mgw_trace *trace)
{
    if (!trace)
        return;
    mgw_trace_extra_destroy(trace->extra);
    mgw_names_release(trace->names);
    free(trace->tensors);
    free(trace->steps_s);
    free(trace->model);
    free(trace->device);
    free(trace->precision);
    free(trace);
}

const char *mgw_trace_tensor_name(const mgw_trace *trace, size_t index)
{
    return mgw_names_get(trace->names, index);
}

uint64_t mgw_trace_bytes(const mgw_trace *trace)
{
    uint64_t count = 0;
    for (size_t i = 0; i < trace->tensor_count; i++)
        count += trace->tensors[i].count;
    return count * mgw_dtype_bytes(trace->gradient_dtype);
}

double mgw_trace_backward_s(const mgw_trace *trace)
{
    double sum = 0;
    for (size_t i = 0; i < trace->tensor_count; i++)
        sum += trace->tensors[i].backward_s;
    return sum;
}

double mgw_trace_compute_s(const mgw_trace *trace)
{
    /* Sums in the order of the planner, so that both agree to the last digit. */
    double sum = trace->forward_s;
    for (size_t i = 0; i < trace->tensor_count; i++)
        sum += trace->tensors[i].backward_s;
    return sum;
}

mgw_status mgw_trace_set_steps(mgw_trace *trace, const double *steps_s, size_t count,
                               mgw_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(steps_s[i]) || steps_s[i] < 0)
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "%s: steps_s[%zu]: must be finite and not negative", trace->model, i);
    double *copy = malloc(count ? count * sizeof *copy : 1);
    if (!copy)
        return mgw_fail_memory(error, trace->model);
    if (count)
        memcpy(copy, steps_s, count * sizeof *copy);
    free(trace->steps_s);
    trace->steps_s = copy;
    trace->step_count = count;
    return MGW_OK;
}

mgw_status mgw_trace_scale_compute(mgw_trace *trace, double factor, mgw_error *error)
{
    if (!isfinite(factor) || factor < 0 || !isfinite(mgw_trace_compute_s(trace) * factor))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "the factor for compute times must be a finite number >= 0");
    trace->forward_s *= factor;
    for (size_t i = 0; i < trace->step_count; i++)
        trace->steps_s[i] *= factor;
    for (size_t i = 0; i < trace->tensor_count; i++) {
        trace->tensors[i].backward_s *= factor;
        if (trace->tensors[i].forward_start_s > 0)
            trace->tensors[i].forward_start_s *= factor;
    }
    return MGW_OK;
}
