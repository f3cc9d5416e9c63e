/* The planner for browsers: a numeric interface to the library. */
#include "web/planner.h"

#include <stdlib.h>
#include <string.h>

#include <mgwfbp/timeline.h>

#include "report/case.h"
#include "trace/trace.h"

static mgw_trace *trace;
static mgw_tensor *tensors; /* as given: the trace's own are scaled */
static double forward_s;
static mgw_cluster *cluster;
static mgw_case result;
static double *numbers; /* the last result */
static mgw_error error;

/* The reader of trace files keeps unknown members; it is not part of this build. */
void mgw_trace_extra_destroy(struct mgw_trace_extra *extra)
{
    (void)extra;
}

void *planner_allocate(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

void planner_release(void *memory)
{
    free(memory);
}

const char *planner_error_message(void)
{
    return error.message;
}

int planner_set_trace(size_t count, const double *counts, const double *backward_s,
                      const double *forward_start_s, const char *names, double forward)
{
    mgw_trace_destroy(trace);
    trace = NULL;
    free(tensors);
    tensors = malloc(count * sizeof *tensors);
    const char **each = malloc(count * sizeof *each);
    int status = MGW_ERR_NO_MEMORY;
    if (tensors && each) {
        for (size_t i = 0; i < count; i++) {
            tensors[i] = (mgw_tensor){(uint64_t)counts[i], backward_s[i], forward_start_s[i]};
            each[i] = names;
            names += strlen(names) + 1;
        }
        forward_s = forward;
        status = mgw_trace_create("model", MGW_F32, forward, count, each, tensors, &trace, &error);
    }
    free(each);
    return status;
}

static void drop_cluster(void)
{
    mgw_cluster_destroy(cluster);
    cluster = NULL;
}

int planner_set_cost(unsigned workers, double a_s, double b_s_per_byte)
{
    drop_cluster();
    return mgw_cluster_from_line("cluster", workers, &(mgw_line){a_s, b_s_per_byte}, &cluster,
                                 &error);
}

int planner_set_link(unsigned workers, double alpha_s, double beta_s_per_byte,
                     double gamma_s_per_byte, int algorithm, unsigned servers)
{
    drop_cluster();
    return mgw_cluster_from_link("cluster", workers,
                                 &(mgw_link){alpha_s, beta_s_per_byte, gamma_s_per_byte},
                                 (mgw_algorithm)algorithm, servers, &cluster, &error);
}

/* Null: out of memory. */
static mgw_sample *make_samples(size_t count, const double *bytes, const double *seconds)
{
    mgw_sample *samples = malloc(count * sizeof *samples + 1);
    for (size_t i = 0; samples && i < count; i++)
        samples[i] = (mgw_sample){(uint64_t)bytes[i], seconds[i]};
    return samples;
}

int planner_set_samples(unsigned workers, size_t count, const double *bytes, const double *seconds)
{
    drop_cluster();
    mgw_sample *samples = make_samples(count, bytes, seconds);
    if (!samples)
        return MGW_ERR_NO_MEMORY;
    int status = mgw_cluster_from_samples("cluster", workers, samples, count, &cluster, &error);
    free(samples);
    return status;
}

int planner_set_beside(double message, double compute)
{
    return mgw_cluster_set_beside(cluster, &(mgw_beside){message, compute}, &error);
}

int planner_set_collective(int kind, double a_s, double b_s_per_byte, size_t count,
                           const double *bytes, const double *seconds)
{
    if (count == 0)
        return mgw_cluster_set_line(cluster, (mgw_collective)kind, &(mgw_line){a_s, b_s_per_byte},
                                    &error);
    mgw_sample *samples = make_samples(count, bytes, seconds);
    if (!samples)
        return MGW_ERR_NO_MEMORY;
    int status = mgw_cluster_set_samples(cluster, (mgw_collective)kind, samples, count, &error);
    free(samples);
    return status;
}

const double *planner_find_link(int algorithm, double a_s, double b_s_per_byte, unsigned workers,
                                unsigned servers)
{
    static double found[2];
    mgw_link link;
    if (mgw_algorithm_link((mgw_algorithm)algorithm, &(mgw_line){a_s, b_s_per_byte}, workers,
                           servers, &link, &error))
        return NULL;
    found[0] = link.alpha_s;
    found[1] = link.beta_s_per_byte;
    return found;
}

const double *planner_find_lines(void)
{
    static double found[2 * MGW_COLLECTIVE_COUNT];
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        found[2 * k] = cluster->of[k].a_s;
        found[2 * k + 1] = cluster->of[k].b_s_per_byte;
    }
    return found;
}

int planner_plan(double factor, int gradients, int parameters)
{
    mgw_case_fini(&result);
    trace->forward_s = forward_s;
    memcpy(trace->tensors, tensors, trace->tensor_count * sizeof *tensors);
    trace->gradient_dtype = (mgw_dtype)gradients;
    trace->parameter_dtype = (mgw_dtype)parameters;
    int status = mgw_trace_check(trace, "trace", &error);
    if (!status)
        status = mgw_trace_scale_compute(trace, factor, &error);
    return status ? status : mgw_case_init(&result, trace, cluster, &error);
}

size_t planner_plan_count(void)
{
    return result.plan_count;
}

const char *planner_plan_policy(size_t index)
{
    return result.plans[index]->policy;
}

static double *put_operation(double *next, const mgw_operation *operation)
{
    *next++ = MGW_SPAN_MESSAGE + (double)operation->kind;
    *next++ = (double)operation->first;
    *next++ = (double)operation->count;
    *next++ = (double)operation->bytes;
    *next++ = operation->ready_s;
    *next++ = operation->start_s;
    *next++ = operation->end_s;
    return next;
}

const double *planner_plan_numbers(size_t index)
{
    const mgw_plan *plan = result.plans[index];
    free(numbers);
    double *next = numbers =
        malloc((8 + 7 * plan->operation_count + 3 * plan->stall_count) * sizeof *numbers);
    if (!numbers)
        return NULL;
    *next++ = plan->forward_s;
    *next++ = plan->compute_s;
    *next++ = plan->iteration_s;
    *next++ = plan->exposed_s;
    *next++ = plan->lower_bound_s;
    *next++ = plan->overlaps_forward;
    *next++ = (double)plan->operation_count;
    *next++ = (double)plan->stall_count;
    for (size_t m = 0; m < plan->operation_count; m++)
        next = put_operation(next, &plan->operations[m]);
    for (size_t i = 0; i < plan->stall_count; i++) {
        *next++ = (double)plan->stalls[i].tensor;
        *next++ = plan->stalls[i].start_s;
        *next++ = plan->stalls[i].end_s;
    }
    return numbers;
}

int planner_scale(void)
{
    return result.rows ? MGW_OK : mgw_case_scale(&result, trace, cluster, &error);
}

size_t planner_scaling_count(void)
{
    return result.row_count;
}

const char *planner_scaling_algorithm(void)
{
    return result.scaled_as;
}

const char *planner_scaling_policy(size_t index)
{
    static char name[MGW_POLICY_NAME_MAX];
    return mgw_policy_name(&result.rows[index].policy, name);
}

const double *planner_scaling_numbers(void)
{
    free(numbers);
    double *next = numbers = malloc(6 * result.row_count * sizeof *numbers + 1);
    if (!numbers)
        return NULL;
    for (size_t i = 0; i < result.row_count; i++) {
        const mgw_scaling_row *row = &result.rows[i];
        *next++ = row->workers;
        *next++ = (double)row->messages;
        *next++ = row->iteration_s;
        *next++ = row->exposed_s;
        *next++ = row->speedup;
        *next++ = row->efficiency;
    }
    return numbers;
}
