/* The planner for browsers: numbers in, numbers out, and between them the library. */
#include "web/planner.h"

#include <stdlib.h>
#include <string.h>

#include "report/case.h"
#include "trace/trace.h"

static mgw_trace *trace;
static mgw_tensor *tensors; /* as given: the trace's own are scaled */
static double forward_s;
static mgw_cluster *cluster;
static mgw_case result;
static double *numbers; /* what was asked for last */
static mgw_error error;

/* The members of trace files that nobody knows are kept by their reader, which is not here. */
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

/* Names do not matter to planners, but must differ. */
static mgw_status name_tensors(size_t count, const mgw_tensor *made, double forward)
{
    char(*texts)[16] = malloc(count * sizeof *texts);
    const char **names = malloc(count * sizeof *names);
    mgw_status status = MGW_ERR_NO_MEMORY;
    if (texts && names) {
        for (size_t i = 0; i < count; i++) {
            size_t digits = 0;
            for (size_t left = i + 1; left; left /= 10)
                texts[i][digits++] = (char)('0' + left % 10);
            texts[i][digits] = '\0';
            names[i] = texts[i];
        }
        status = mgw_trace_create("model", MGW_F32, forward, count, names, made, &trace, &error);
    }
    free(names);
    free(texts);
    return status;
}

int planner_set_trace(size_t count, const double *counts, const double *backward_s, double forward)
{
    mgw_trace_destroy(trace);
    trace = NULL;
    free(tensors);
    tensors = malloc(count * sizeof *tensors);
    if (!tensors)
        return MGW_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        tensors[i] = (mgw_tensor){(uint64_t)counts[i], backward_s[i], MGW_TIME_UNKNOWN};
    forward_s = forward;
    return name_tensors(count, tensors, forward);
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

int planner_set_samples(unsigned workers, size_t count, const double *bytes, const double *seconds)
{
    drop_cluster();
    mgw_sample *samples = malloc(count * sizeof *samples);
    if (!samples)
        return MGW_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        samples[i] = (mgw_sample){(uint64_t)bytes[i], seconds[i]};
    int status = mgw_cluster_from_samples("cluster", workers, samples, count, &cluster, &error);
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

const double *planner_find_line(void)
{
    static double found[2];
    found[0] = cluster->cost.a_s;
    found[1] = cluster->cost.b_s_per_byte;
    return found;
}

int planner_plan(double factor, int dtype)
{
    mgw_case_fini(&result);
    trace->forward_s = forward_s;
    memcpy(trace->tensors, tensors, trace->tensor_count * sizeof *tensors);
    trace->gradient_dtype = trace->parameter_dtype = (mgw_dtype)dtype;
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

const double *planner_plan_numbers(size_t index)
{
    const mgw_plan *plan = result.plans[index];
    free(numbers);
    double *next = numbers = malloc((6 + 6 * plan->operation_count) * sizeof *numbers);
    if (!numbers)
        return NULL;
    *next++ = plan->forward_s;
    *next++ = plan->compute_s;
    *next++ = plan->iteration_s;
    *next++ = plan->exposed_s;
    *next++ = plan->lower_bound_s;
    *next++ = (double)plan->operation_count;
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *message = &plan->operations[m];
        *next++ = (double)message->first;
        *next++ = (double)message->count;
        *next++ = (double)message->bytes;
        *next++ = message->ready_s;
        *next++ = message->start_s;
        *next++ = message->end_s;
    }
    return numbers;
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
