/* One channel for all workers: the k-th collective of each worker is the same, and takes its cost
 * in time. */
#include <math.h>
#include <stdlib.h>

#include "simulation/world.h"

/* The k-th collective: what the first worker starts is what all the others must. */
collective *sim_meet(world *w, worker *me, int index, uint64_t step, const mgw_operation *operation)
{
    size_t k = me->posted;
    unsigned rank = rank_of(w, me);
    if (k == w->collective_count) {
        if (k == w->collective_max) {
            w->collective_max = 2 * k + 32;
            collective *larger =
                realloc(w->collectives, w->collective_max * sizeof *w->collectives);
            CHECK(w, larger, "no memory");
            w->collectives = larger;
        }
        w->collectives[w->collective_count++] =
            (collective){.index = index, .step = step, .operation = *operation};
        w->collectives[k].has = sim_room(w, w->s->workers, sizeof(bool));
        w->collectives[k].values = sim_room(w, operation->count, sizeof(int64_t));
    }
    collective *c = &w->collectives[k];
    const mgw_operation *o = &c->operation;
    CHECK(w, c->index == index && c->step == step && is_same(o, operation),
          "collective %zu: worker %u starts operation %d of step %llu (tensors %zu+%zu), another "
          "%d of step %llu (%zu+%zu)",
          k, rank, index, (unsigned long long)step, operation->first, operation->count, c->index,
          (unsigned long long)c->step, o->first, o->count);
    CHECK(w, !c->has[rank], "worker %u: collective %zu twice", rank, k);
    if (k >= me->posted_max) {
        me->posted_max = 2 * k + 32;
        double *larger = realloc(me->posted_s, me->posted_max * sizeof *larger);
        CHECK(w, larger, "no memory");
        me->posted_s = larger;
    }
    c->has[rank] = true;
    me->posted_s[k] = w->now_s;
    me->posted++;
    return c;
}

/* A wait is looked at every look_s, from its begin on. */
static void watch_from(world *w, worker *me, double since_s)
{
    const scenario *s = w->s;
    me->watches = true;
    sim_push(w, since_s + ceil(s->timeout_s / s->look_s) * s->look_s, WATCH, rank_of(w, me), 0);
}

/* It is complete on one worker more; on all, the channel takes it in its turn. */
void sim_post(world *w, worker *me, collective *c, uint64_t bytes)
{
    const scenario *s = w->s;
    if (!me->watches)
        watch_from(w, me, w->now_s);
    if (++c->posted < s->workers)
        return;
    double drift = s->drift_step && c->step >= s->drift_step ? s->network_drift : 1;
    drift *= sim_wander(s, c->step);
    bool shared = c->operation.bytes >= 2 * (uint64_t)MGW_LANE_BYTES; /* others have one anyway */
    if (c->operation.lanes && shared && s->one_lane > 0)
        drift *= s->one_lane;
    c->start_s = fmax(w->now_s, w->free_s);
    c->end_s = c->start_s + drift * mgw_cost_seconds(&s->cost, c->operation.kind, bytes);
    w->free_s = c->end_s;
    sim_push(w, c->end_s, CHANNEL, SIM_NOBODY, (size_t)(c - w->collectives));
}

/* What is sent is there, and is this step's. */
void sim_contribute(world *w, worker *me, collective *c)
{
    const mgw_operation *o = &c->operation;
    unsigned rank = rank_of(w, me);
    for (size_t i = o->first; i < o->first + o->count; i++) {
        CHECK(w, me->ready_in[i] == c->step,
              "worker %u: operation %d of step %llu starts without tensor %zu", rank, c->index,
              (unsigned long long)c->step, i);
        if (is_gather(o)) {
            CHECK(w, me->updated_in[i] == c->step,
                  "worker %u: tensor %zu is gathered before its update", rank, i);
            if (owner_of(w, i) == rank)
                c->values[i - o->first] = me->parameter[i];
        } else {
            CHECK(w, me->averaged_in[i] < c->step, "worker %u: tensor %zu is averaged twice", rank,
                  i);
            c->values[i - o->first] += me->gradient[i];
        }
    }
    for (size_t i = 0; o->release != MGW_WHEN_READY && i < w->s->tensors; i++)
        CHECK(w, me->ready_in[i] >= c->step,
              "worker %u: operation %d starts before the backward pass is over", rank, c->index);
}

/* All ranks propose; rank 0's message is sent to all. */
static void decide(world *w, collective *c)
{
    for (unsigned r = w->s->workers; r-- > 0;) {
        worker *me = &w->workers[r];
        bool may_stay = w->s->policy_step != c->step;
        free(c->word);
        c->word = sim_room(w, mgw_tuner_word_size(me->tuner), sizeof *c->word);
        fail_checked(w, me, mgw_tuner_propose(me->tuner, c->row, may_stay, c->word, &w->error));
    }
}

/* The channel has done it, unless one of the workers is gone. */
void sim_finish(world *w, size_t k)
{
    collective *c = &w->collectives[k];
    for (unsigned r = 0; r < w->s->workers; r++)
        if (w->workers[r].gone)
            return;
    c->over = true;
    if (c->index == LOOK)
        decide(w, c);
    for (unsigned r = 0; r < w->s->workers; r++)
        sim_push(w, w->now_s, DELIVER, r, k);
}

/* One that waits for longer than the timeout gives up, and names the first that is not there. */
void sim_look_at_wait(world *w, worker *me)
{
    const scenario *s = w->s;
    size_t k = me->delivered;
    me->watches = false;
    while (k < me->posted && w->collectives[k].over)
        k++;
    if (k == me->posted)
        return;
    double waited_s = w->now_s - me->posted_s[k];
    if (waited_s < s->timeout_s * (1 - 1e-9)) {
        watch_from(w, me, me->posted_s[k]);
        return;
    }
    me->blames = SIM_NOBODY;
    for (unsigned r = 0; r < s->workers && me->blames == SIM_NOBODY; r++)
        if (!w->collectives[k].has[r])
            me->blames = r;
    for (unsigned r = 0; r < s->workers && me->blames == SIM_NOBODY; r++)
        if (w->workers[r].gone) /* one that gave up passes on whom it blames */
            me->blames = w->workers[r].gave_up ? w->workers[r].blames : r;
    sim_note(w, "worker %u gives up on worker %u", rank_of(w, me), me->blames);
    CHECK(w, s->victim != SIM_NOBODY, "worker %u waits in vain for worker %u", rank_of(w, me),
          me->blames);
    CHECK(w, me->blames == s->victim || rank_of(w, me) == s->victim,
          "worker %u blames worker %u, but it was worker %u", rank_of(w, me), me->blames,
          s->victim);
    CHECK(w, waited_s <= s->timeout_s + s->look_s * 1.001 || rank_of(w, me) == s->victim,
          "worker %u has waited %.9g s", rank_of(w, me), waited_s);
    me->gone = me->gave_up = true;
    w->result->failures++;
}
