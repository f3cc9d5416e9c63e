/* The world of a simulation: random numbers, the order of events, creation and destruction. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "simulation/world.h"

/* ---- Chance, checks, memory ---- */

uint64_t sim_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t sim_chance(world *w)
{
    return sim_mix(w->random += 0x9e3779b97f4a7c15u);
}

int64_t sim_gradient(const world *w, unsigned rank, size_t tensor, uint64_t step)
{
    return (int64_t)(sim_mix(w->s->seed ^ sim_mix(rank + sim_mix(tensor + sim_mix(step)))) &
                     0xfffff);
}

double sim_wander(const scenario *s, uint64_t step)
{
    double age = (double)step;
    if (s->wander == 0)
        return 1;
    return exp(s->wander *
               (s->period > 0 ? sin(age / s->period * 2 * acos(-1)) : age / (age + 2000)));
}

void sim_broken(world *w, const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    w->result->failed = true;
    snprintf(w->result->what, sizeof w->result->what, "at %.9g s: %s", w->now_s, text);
    longjmp(w->broken, 1);
}

void sim_note(world *w, const char *format, ...)
{
    if (!w->verbose)
        return;
    va_list arguments;
    printf("%14.9f  ", w->now_s);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

void *sim_room(world *w, size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    CHECK(w, memory, "no memory");
    return memory;
}

/* ---- Events ---- */

static bool before(const event *a, const event *b)
{
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->tie < b->tie);
}

static void push_event(world *w, const event *e)
{
    if (w->heap_count == w->heap_max) {
        w->heap_max = 2 * w->heap_max + 64;
        event *larger = realloc(w->heap, w->heap_max * sizeof *w->heap);
        CHECK(w, larger, "no memory");
        w->heap = larger;
    }
    size_t i = w->heap_count++;
    for (; i && before(e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = *e;
}

void sim_push(world *w, double at_s, event_kind kind, unsigned rank, size_t what)
{
    push_event(w, &(event){at_s, sim_chance(w), kind, rank, what});
}

static bool pop(world *w, event *out)
{
    if (!w->heap_count)
        return false;
    *out = w->heap[0];
    const event last = w->heap[--w->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->heap_count; i = child) {
        child += child + 1 < w->heap_count && before(&w->heap[child + 1], &w->heap[child]);
        if (!before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return true;
}

/* ---- Life ---- */

static void stall(world *w, worker *me, double length_s)
{
    sim_note(w, "worker %u stops for %.9g s", rank_of(w, me), length_s);
    me->paused_s = fmax(me->paused_s, w->now_s + length_s);
    me->gone |= isinf(length_s) && me->phase != OVER;
}

static void happen(world *w, const event *e)
{
    if (e->kind == CHANNEL) {
        sim_finish(w, e->what);
        return;
    }
    worker *me = &w->workers[e->worker];
    if (e->kind == STALL) {
        stall(w, me, w->s->stalls[e->what].length_s);
        return;
    }
    if (me->gone)
        return;
    if (w->now_s < me->paused_s) { /* it comes when the worker goes on, in the same order */
        uint64_t tie = e->tie < w->delayed ? e->tie : w->delayed++;
        push_event(w, &(event){me->paused_s, tie, e->kind, e->worker, e->what});
        return;
    }
    if (e->kind == COMPUTE)
        sim_compute(w, me);
    else if (e->kind == DELIVER)
        sim_deliver(w, me, e->what);
    else if (e->kind == UPDATE)
        sim_take_update(w, me, e->what);
    else
        sim_look_at_wait(w, me);
}

static void make_worker(world *w, unsigned rank, const char *const *names)
{
    const scenario *s = w->s;
    worker *me = &w->workers[rank];
    me->turn_step = 1;
    me->took_s = sim_room(w, 4 * s->tensors, sizeof(double));
    me->timed_s = sim_room(w, s->tensors, sizeof(double));
    me->need_s = sim_room(w, s->tensors, sizeof(double));
    me->gradient = sim_room(w, s->tensors, sizeof(int64_t));
    me->parameter = sim_room(w, s->tensors, sizeof(int64_t));
    me->ready_in = sim_room(w, s->tensors, sizeof(uint64_t));
    me->averaged_in = sim_room(w, s->tensors, sizeof(uint64_t));
    me->updated_in = sim_room(w, s->tensors, sizeof(uint64_t));
    fail_checked(w, me, mgw_flow_create(s->tensors, &me->flow, &w->error));
    if (!s->plan_count) {
        mgw_cluster *cluster = NULL;
        const mgw_line true_line = {s->cost.of[MGW_ALL_REDUCE].a_s,
                                    s->cost.of[MGW_ALL_REDUCE].b_s_per_byte};
        const mgw_line line = s->believed.a_s > 0 ? s->believed : true_line;
        fail_checked(w, me, mgw_cluster_from_line("sim", s->workers, &line, &cluster, &w->error));
        mgw_status status = mgw_tuner_create(&s->options, s->tensors, names, s->bytes, cluster,
                                             &me->tuner, &w->error);
        if (status)
            mgw_cluster_destroy(cluster);
        fail_checked(w, me, status);
        size_t count = 0;
        const mgw_operation *operations = mgw_tuner_operations(me->tuner, &count);
        sim_adopt(w, me, operations, count);
    }
    sim_push(w, rank == s->joiner ? s->joins_s : 0, COMPUTE, rank, 0);
}

static void make_world(world *w)
{
    const scenario *s = w->s;
    char(*text)[24] = sim_room(w, s->tensors, sizeof *text);
    const char **names = sim_room(w, s->tensors, sizeof *names);
    for (size_t i = 0; i < s->tensors; i++) {
        snprintf(text[i], sizeof text[i], "t%zu", i);
        names[i] = text[i];
    }
    w->workers = sim_room(w, s->workers, sizeof *w->workers);
    w->sums = sim_room(w, (s->steps + 2) * s->tensors, sizeof *w->sums);
    w->known = sim_room(w, (s->steps + 2) * s->tensors, sizeof *w->known);
    for (uint64_t step = 1; step <= s->steps; step++)
        for (size_t i = 0; i < s->tensors; i++) {
            size_t at = step * s->tensors + i;
            for (unsigned r = 0; r < s->workers; r++)
                w->sums[at] += sim_gradient(w, r, i, step);
            w->known[at + s->tensors] = w->known[at] + w->sums[at];
        }
    for (unsigned r = 0; r < s->workers; r++)
        make_worker(w, r, names);
    for (size_t i = 0; i < s->stall_count; i++)
        sim_push(w, s->stalls[i].at_s, STALL, s->stalls[i].worker, i);
    free((void *)names);
    free(text);
}

static void free_world(world *w)
{
    for (size_t k = 0; k < w->collective_count; k++) {
        free(w->collectives[k].has);
        free(w->collectives[k].values);
        free(w->collectives[k].row);
        free(w->collectives[k].word);
    }
    for (unsigned r = 0; w->workers && r < w->s->workers; r++) {
        worker *me = &w->workers[r];
        mgw_flow_destroy(me->flow);
        mgw_tuner_destroy(me->tuner);
        free(me->posted_s);
        free(me->took_s);
        free(me->timed_s);
        free(me->need_s);
        free(me->gradient);
        free(me->parameter);
        free(me->ready_in);
        free(me->averaged_in);
        free(me->updated_in);
    }
    free(w->collectives);
    free(w->workers);
    free(w->heap);
    free(w->sums);
    free(w->known);
    free(w);
}

/* All have run all steps; or one has stopped for too long, and all the others have given up. */
static void check_end(world *w)
{
    unsigned over = 0;
    for (unsigned r = 0; r < w->s->workers; r++) {
        worker *me = &w->workers[r];
        over += me->phase == OVER;
        CHECK(w, me->phase == OVER || me->gone, "worker %u waits for ever in step %llu", r,
              (unsigned long long)mgw_flow_step(me->flow));
    }
    CHECK(w, !w->result->failures || over == 0, "%u workers are done, %u have given up", over,
          w->result->failures);
    CHECK(w, w->s->victim != SIM_NOBODY || over == w->s->workers, "not all have ended");
}

void simulation_run(const scenario *s, bool verbose, sim_watch *watch, void *context,
                    sim_result *out)
{
    *out = (sim_result){.digest = 0xcbf29ce484222325u};
    world *w = calloc(1, sizeof *w);
    if (!w)
        abort();
    w->s = s;
    w->result = out;
    w->watch = watch;
    w->context = context;
    w->verbose = verbose;
    w->random = sim_mix(s->seed + 1);
    event e;
    if (!setjmp(w->broken)) {
        make_world(w);
        while (pop(w, &e)) {
            CHECK(w, e.at_s >= w->now_s, "time runs backward");
            w->now_s = e.at_s;
            out->events++;
            out->digest = (out->digest ^ sim_mix(e.worker + sim_mix(e.what + sim_mix(e.kind)))) *
                          0x100000001b3u;
            happen(w, &e);
        }
        check_end(w);
    }
    free_world(w);
}
