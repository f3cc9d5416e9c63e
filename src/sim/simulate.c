/* A plan's times laid out as a timeline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/sim.h>

#include "base/names.h"
#include "base/status.h"

static char *make_title(const mgw_plan *plan)
{
    mgw_text title;
    mgw_text_init(&title);
    mgw_text_printf(&title, "%s on %s, %u workers, %s", plan->model, plan->cluster, plan->workers,
                    plan->policy);
    if (title.failed)
        mgw_text_fini(&title);
    return title.data;
}

static void add_span(mgw_timeline *timeline, mgw_span span)
{
    timeline->spans[timeline->span_count++] = span;
}

static void add_backward(mgw_timeline *timeline, const mgw_plan *plan, const mgw_trace *trace,
                         double now)
{
    size_t count = trace ? trace->tensor_count : 0;
    if (count == 0)
        add_span(timeline, (mgw_span){.kind = MGW_SPAN_BACKWARD,
                                      .start_s = now,
                                      .end_s = plan->compute_s,
                                      .count = mgw_plan_tensor_count(plan)});
    for (size_t i = 0; i < count; i++) {
        double end = now + trace->tensors[i].backward_s;
        add_span(
            timeline,
            (mgw_span){
                .kind = MGW_SPAN_BACKWARD, .start_s = now, .end_s = end, .first = i, .count = 1});
        now = end;
    }
}

mgw_status mgw_simulate(const mgw_plan *plan, const mgw_trace *trace, mgw_timeline **out,
                        mgw_error *error)
{
    if (trace && trace->tensor_count != mgw_plan_tensor_count(plan))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "the plan has %zu tensors, the trace %s %zu",
                        mgw_plan_tensor_count(plan), trace->model, trace->tensor_count);
    size_t room = 1 + (trace ? trace->tensor_count : 1) + plan->operation_count;
    mgw_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline || !(timeline->spans = malloc(room * sizeof *timeline->spans)) ||
        !(timeline->title = make_title(plan))) {
        mgw_timeline_destroy(timeline);
        return mgw_fail_memory(error, "timeline");
    }
    timeline->names = mgw_names_share(plan->names);
    double forward_s = plan->forward_s == MGW_TIME_UNKNOWN ? 0 : plan->forward_s;
    if (forward_s > 0)
        add_span(timeline, (mgw_span){.kind = MGW_SPAN_FORWARD, .end_s = forward_s});
    add_backward(timeline, plan, trace, forward_s);
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *message = &plan->operations[m];
        add_span(timeline, (mgw_span){.kind = MGW_SPAN_MESSAGE,
                                      .start_s = message->start_s,
                                      .end_s = message->end_s,
                                      .ready_s = message->ready_s,
                                      .first = message->first,
                                      .count = message->count,
                                      .bytes = message->bytes});
    }
    *out = timeline;
    return MGW_OK;
}

double mgw_efficiency(const mgw_plan *plan)
{
    return plan->iteration_s > 0 ? plan->compute_s / plan->iteration_s : 1;
}

double mgw_speedup(const mgw_plan *plan)
{
    return plan->workers * mgw_efficiency(plan);
}
