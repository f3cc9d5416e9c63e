/* Predicts the step time of a plan from all measured steps, with this plan and with others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tune/tuner.h"

/* Whether this model applies: whole steps are timed, and no parameters are gathered. */
static bool applies(const mgw_tuner *tuner)
{
    return tuner->options.whole_steps && !tune_gathers(tuner);
}

mgw_status tune_model_init(mgw_tuner *tuner, mgw_error *error)
{
    tune_model *m = &tuner->model;
    m->beside = (mgw_beside){1, 1};
    m->alone_s = calloc(3 * tuner->tensor_count, sizeof *m->alone_s);
    m->room_s = m->alone_s ? m->alone_s + tuner->tensor_count : NULL;
    return m->alone_s ? MGW_OK : mgw_fail_memory(error, "tuner");
}

static void forget_note(tune_note *note)
{
    free(note->messages.operations);
    free(note->messages.alone_s);
    *note = (tune_note){0};
}

static void forget_notes(tune_model *m)
{
    for (size_t i = 0; i < m->note_count; i++)
        forget_note(&m->notes[i]);
    m->note_count = 0;
}

void tune_model_fini(mgw_tuner *tuner)
{
    forget_notes(&tuner->model);
    free(tuner->model.alone_s);
}

/* ---- Measurements ---- */

static mgw_status make_note(const mgw_tuner *tuner, const mgw_operation *operations, size_t count,
                            tune_note *out, mgw_error *error)
{
    mgw_cost cost;
    mgw_operation *copy = malloc((count + 1) * sizeof *copy);
    double *alone_s = malloc((count + 1) * sizeof *alone_s);
    if (!copy || !alone_s) {
        free(copy);
        free(alone_s);
        return mgw_fail_memory(error, "tuner");
    }
    tune_alone(tuner, &cost);
    memcpy(copy, operations, count * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        alone_s[i] = mgw_operation_seconds(&cost, &operations[i]);
    out->messages = (mgw_messages){count, copy, alone_s};
    return MGW_OK;
}

/* The index of the note of that plan, or note_count. */
static size_t find_note(const tune_model *m, uint64_t hash)
{
    size_t i = 0;
    while (i < m->note_count &&
           mgw_plan_hash(m->notes[i].messages.operations, m->notes[i].messages.count) != hash)
        i++;
    return i;
}

static void drop_note(tune_model *m, size_t at)
{
    forget_note(&m->notes[at]);
    m->note_count--;
    memmove(&m->notes[at], &m->notes[at + 1], (m->note_count - at) * sizeof *m->notes);
}

/* If the step time of the same plan changes by more than this share, older notes of other plans are
 * no longer valid. */
static const double drift = 0.1;

mgw_status tune_note_plan(mgw_tuner *tuner, const mgw_operation *operations, size_t count,
                          const mgw_step_times *took, double within, mgw_error *error)
{
    tune_model *m = &tuner->model;
    tune_note note = {
        .compute_s = took->compute_s, .iteration_s = took->iteration_s, .within = within};
    if (!applies(tuner) || !(took->iteration_s > 0) || tune_is_limited(tuner, operations, count))
        return MGW_OK;
    mgw_status status = make_note(tuner, operations, count, &note, error);
    if (status)
        return status;
    size_t before = find_note(m, mgw_plan_hash(operations, count));
    if (before < m->note_count) {
        double ratio = took->iteration_s / m->notes[before].iteration_s;
        if (note.compute_s == 0) /* use the known one of the same plan */
            note.compute_s = m->notes[before].compute_s;
        if (fabs(ratio - 1) > drift)
            forget_notes(m);
        else
            drop_note(m, before);
    }
    if (m->note_count == TUNE_NOTES)
        drop_note(m, 0);
    m->notes[m->note_count++] = note;
    return MGW_OK;
}

mgw_status tune_model_learn(mgw_tuner *tuner, double iteration_s, double within, mgw_error *error)
{
    tune_model *m = &tuner->model;
    size_t n = tuner->tensor_count;
    const double *ready_s = tuner->learned.ready_s;
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    const mgw_step_times took = {ready_s[n - 1], iteration_s};
    if (!applies(tuner) || !(iteration_s > 0) || !(took.compute_s > 0) ||
        tune_is_limited(tuner, operations, count))
        return MGW_OK;
    mgw_status status = tune_note_plan(tuner, operations, count, &took, within, error);
    if (status)
        return status;
    const mgw_messages *now = &m->notes[m->note_count - 1].messages;
    m->known = true;
    tune_model_follow(tuner, tune_fit_beside(n, ready_s, now, m->notes, m->note_count, m->room_s));
    return MGW_OK;
}

void tune_model_follow(mgw_tuner *tuner, mgw_beside beside)
{
    tune_model *m = &tuner->model;
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    size_t now = find_note(m, mgw_plan_hash(operations, count));
    m->beside = beside;
    m->known = m->known && now < m->note_count;
    if (m->known)
        mgw_beside_undo(tuner->tensor_count, tuner->learned.ready_s, &m->notes[now].messages,
                        beside, m->alone_s);
}

/* ---- Predictions ---- */

mgw_status tune_correct(const mgw_tuner *tuner, mgw_plan *plan, mgw_error *error)
{
    const tune_model *m = &tuner->model;
    size_t n = tuner->tensor_count;
    tune_note note = {0};
    if (!m->known)
        return MGW_OK;
    mgw_status status = make_note(tuner, plan->operations, plan->operation_count, &note, error);
    if (status)
        return status;
    mgw_step_times took = mgw_beside_run(n, m->alone_s, &note.messages, m->beside, m->room_s);
    for (size_t i = 0; i < plan->operation_count; i++) {
        const mgw_operation *o = &note.messages.operations[i];
        plan->operations[i].ready_s = m->room_s[o->first + o->count - 1];
        plan->operations[i].start_s = o->start_s;
        plan->operations[i].end_s = o->end_s;
    }
    plan->compute_s = took.compute_s;
    plan->iteration_s = took.iteration_s;
    plan->exposed_s = fmax(took.iteration_s - took.compute_s, 0);
    plan->lower_bound_s = fmin(plan->lower_bound_s, took.iteration_s);
    forget_note(&note);
    return MGW_OK;
}
