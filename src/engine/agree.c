/* Communication between steps: checks that all workers agree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/parameters.h"

mgw_status engine_first_rank(mgw_engine *engine, bool so, unsigned *first, mgw_error *error)
{
    double behind = so ? (double)(engine->size - engine->rank) : 0;
    mgw_status status =
        mgw_transport_all_reduce(engine->transport, &behind, 1, MGW_F64, MGW_MAX, error);
    *first = engine->size - (unsigned)behind;
    return status;
}

mgw_status engine_same_hash(mgw_engine *engine, uint64_t hash, unsigned *differs, mgw_error *error)
{
    uint64_t told = hash;
    mgw_status status = mgw_transport_broadcast(engine->transport, &told, sizeof told, 0, error);
    if (!status)
        status = engine_first_rank(engine, hash != told, differs, error);
    if (!status && *differs == engine->size)
        *differs = 0;
    return status;
}

/* ---- The same tensors and options ---- */

static void describe(const mgw_engine *engine, mgw_text *text)
{
    for (size_t i = 0; i < engine->arena.count; i++) {
        mgw_text_plain(text, mgw_names_get(engine->arena.names, i));
        mgw_text_printf(text, " %s[%zu]\n", mgw_dtype_name(engine->arena.tensors[i].dtype),
                        engine->arena.tensors[i].count);
    }
    /* Options that determine which collectives are called must be the same, too. */
    const mgw_engine_options *o = &engine->options;
    char name[MGW_POLICY_NAME_MAX];
    mgw_policy policy = {0};
    if (mgw_policy_parse(o->policy, &policy, NULL)) /* impossible: it was parsed at open */
        return;
    mgw_text_printf(text, "wire %s op %d servers %d profile %d replan %d percent %d policy %s",
                    mgw_dtype_name(engine->wire), (int)o->op, o->servers, o->profile_steps,
                    o->replan_steps, o->replan_percent, mgw_policy_name(&policy, name));
    mgw_text_printf(text, " debug %d trials %d plan %s parameters %s updates %s cluster ",
                    o->debug > 0, o->trials, o->plan ? "given" : "none",
                    !o->keeps_parameters ? "none"
                    : o->parameters      ? o->parameters
                                         : "f32",
                    engine->parameters && engine->parameters->update ? "by callback" : "said");
    mgw_text_plain(text, o->cluster ? o->cluster : "measured");
    mgw_text_printf(text, "\n");
}

enum { LINE = 160 };

/* The first line in which two descriptions differ, and that line of each. */
static size_t first_difference(const char *a, const char *b, char a_line[LINE], char b_line[LINE])
{
    for (size_t line = 0;; line++) {
        size_t a_length = strcspn(a, "\n");
        size_t b_length = strcspn(b, "\n");
        snprintf(a_line, LINE, "%.*s", (int)a_length, a);
        snprintf(b_line, LINE, "%.*s", (int)b_length, b);
        if (a_length != b_length || memcmp(a, b, a_length) != 0 || !*a || !*b)
            return line;
        a += a_length + 1;
        b += b_length + 1;
    }
}

/* All workers get the descriptions of rank 0 and of the rank that differs, so that all report the
 * same error. */
static mgw_status tell_difference(mgw_engine *engine, unsigned differs, const mgw_text *own,
                                  mgw_error *error)
{
    const unsigned who[2] = {0, differs};
    char *text[2] = {NULL, NULL};
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < 2; i++) {
        uint64_t size = own->size;
        status = mgw_transport_broadcast(engine->transport, &size, sizeof size, who[i], error);
        if (!status && !(text[i] = calloc(1, size + 1)))
            status = mgw_fail_memory(error, "engine");
        if (!status && engine->rank == who[i])
            memcpy(text[i], own->data, size);
        if (!status)
            status = mgw_transport_broadcast(engine->transport, text[i], size, who[i], error);
    }
    if (!status) {
        char lines[2][LINE];
        size_t tensor = first_difference(text[0], text[1], lines[0], lines[1]);
        char what[48] = "the options are";
        if (strncmp(lines[0], "wire ", 5) != 0 || strncmp(lines[1], "wire ", 5) != 0)
            snprintf(what, sizeof what, "tensor %zu is", tensor);
        status = mgw_fail(error, MGW_ERR_ARGUMENT,
                          "workers disagree: %s '%s' on rank 0 and '%s' on rank %u", what, lines[0],
                          lines[1], differs);
    }
    free(text[0]);
    free(text[1]);
    return status;
}

mgw_status engine_agree(mgw_engine *engine, double *crowd, mgw_error *error)
{
    mgw_text own;
    mgw_text_init(&own);
    describe(engine, &own);
    unsigned differs = 0;
    mgw_status status = mgw_text_status(&own, error);
    if (!status)
        status = engine_same_hash(engine, mgw_hash(own.data, own.size), &differs, error);
    if (!status && differs)
        status = tell_difference(engine, differs, &own, error);
    mgw_text_fini(&own);
    const mgw_exchange exchange = mgw_transport_exchange(engine->transport);
    return status ? status : mgw_crowd(&exchange, crowd, error);
}
