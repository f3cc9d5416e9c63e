/* Reads cluster files: "mgwfbp-cluster-1". */
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>

#include <mgwfbp/cluster.h>

#include "base/dtype.h"
#include "base/json.h"
#include "cluster/import.h"
#include "data/source.h"

static mgw_status read_line(json_t *object, const mgw_json_place *place, mgw_line *out,
                            mgw_error *error)
{
    mgw_status status = mgw_json_check_object(object, place, error);
    if (!status)
        status = mgw_json_get_number(object, "a_s", place, &out->a_s, error);
    if (!status)
        status = mgw_json_get_number(object, "b_s_per_byte", place, &out->b_s_per_byte, error);
    return status;
}

/* {"a_s", "b_s_per_byte"}, or a parameter server's {"push": {…}, "pull": {…}}. */
static mgw_status read_cost(const mgw_json_document *document, const char *name, unsigned workers,
                            mgw_cluster **out, mgw_error *error)
{
    json_t *cost = json_object_get(document->root, "cost");
    mgw_json_place place = mgw_json_inside(document, "cost");
    json_t *push = json_object_get(cost, "push");
    if (!push) {
        mgw_line line;
        mgw_status status = read_line(cost, &place, &line, error);
        return status ? status : mgw_cluster_from_line(name, workers, &line, out, error);
    }
    json_t *pull = json_object_get(cost, "pull");
    if (!pull)
        return mgw_json_fail(&place, "pull", error, "missing; push needs a pull");
    mgw_line push_line;
    mgw_line pull_line;
    mgw_json_place inside = place;
    mgw_json_enter(&inside, "push");
    mgw_status status = read_line(push, &inside, &push_line, error);
    inside = place;
    mgw_json_enter(&inside, "pull");
    if (!status)
        status = read_line(pull, &inside, &pull_line, error);
    if (status)
        return status;
    mgw_error inner;
    if (mgw_cluster_from_push_pull(name, workers, &push_line, &pull_line, out, &inner))
        return mgw_json_fail(&place, NULL, error, "%s", inner.message);
    return MGW_OK;
}

/* The message of a failed parse, with the place in front. */
static mgw_status fail_at(const mgw_json_place *place, const char *member, const mgw_error *inner,
                          mgw_error *error)
{
    return mgw_json_fail(place, member, error, "%s", inner->message);
}

/* The members "link" and "algorithm" of an object at `place`. */
static mgw_status read_constants(json_t *object, const mgw_json_place *place, mgw_link *link,
                                 mgw_algorithm *algorithm, mgw_error *error)
{
    json_t *constants = json_object_get(object, "link");
    mgw_json_place inside = *place;
    mgw_json_enter(&inside, "link");
    const char *name = NULL;
    mgw_error inner;
    mgw_status status = mgw_json_check_object(constants, &inside, error);
    if (!status)
        status = mgw_json_get_number(constants, "alpha_s", &inside, &link->alpha_s, error);
    if (!status)
        status = mgw_json_get_number(constants, "beta_s_per_byte", &inside, &link->beta_s_per_byte,
                                     error);
    if (!status)
        status = mgw_json_get_number(constants, "gamma_s_per_byte", &inside,
                                     &link->gamma_s_per_byte, error);
    if (!status)
        status = mgw_json_get_string(object, "algorithm", place, &name, error);
    if (!status && mgw_algorithm_parse(name, algorithm, &inner))
        status = fail_at(place, "algorithm", &inner, error);
    return status;
}

static mgw_status read_link(const mgw_json_document *document, const char *name, unsigned workers,
                            mgw_cluster **out, mgw_error *error)
{
    mgw_json_place place = mgw_json_top(document, "link");
    mgw_link link;
    mgw_algorithm algorithm = MGW_RING;
    mgw_error inner;
    mgw_status status = read_constants(document->root, &place, &link, &algorithm, error);
    uint64_t servers = 1;
    if (!status && json_object_get(document->root, "servers"))
        status = mgw_json_member_count(document, "servers", 1, INT_MAX, &servers, error);
    if (status)
        return status;
    place = mgw_json_inside(document, "link");
    if (mgw_cluster_from_link(name, workers, &link, algorithm, (unsigned)servers, out, &inner))
        return fail_at(&place, NULL, &inner, error);
    return MGW_OK;
}

/* Samples, with their uncertainty if all have one. */
typedef struct sampled {
    size_t count;
    mgw_sample *samples;
    double *within; /* null: not all have one */
} sampled;

static void forget_samples(sampled *s)
{
    free(s->samples);
    free(s->within);
}

/* A sample of a file, for sorting by size. */
typedef struct entry {
    mgw_sample sample;
    double within; /* below 0: not given */
} entry;

static int compare_entries(const void *left, const void *right)
{
    const mgw_sample *a = &((const entry *)left)->sample;
    const mgw_sample *b = &((const entry *)right)->sample;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

static mgw_status take_apart(entry *entries, size_t count, const char *origin, sampled *out,
                             mgw_error *error)
{
    bool all = count > 0;
    qsort(entries, count, sizeof *entries, compare_entries);
    out->count = count;
    out->samples = malloc((count + 1) * sizeof *out->samples);
    out->within = malloc((count + 1) * sizeof *out->within);
    if (!out->samples || !out->within)
        return mgw_fail_memory(error, origin);
    for (size_t i = 0; i < count; i++) {
        out->samples[i] = entries[i].sample;
        out->within[i] = entries[i].within;
        all = all && entries[i].within >= 0;
    }
    if (!all) {
        free(out->within);
        out->within = NULL;
    }
    return MGW_OK;
}

static mgw_status read_sample(json_t *element, const mgw_json_place *at, entry *out,
                              mgw_error *error)
{
    out->within = -1;
    mgw_status status = mgw_json_check_object(element, at, error);
    if (!status)
        status = mgw_json_get_count(element, "bytes", at, &out->sample.bytes, error);
    if (!status)
        status = mgw_json_get_number(element, "seconds", at, &out->sample.seconds, error);
    if (!status && out->sample.seconds == 0)
        status = mgw_json_fail(at, "seconds", error, "must be above 0");
    if (!status && json_object_get(element, "within"))
        status = mgw_json_get_number(element, "within", at, &out->within, error);
    return status;
}

/* The member "samples" of an object at `place`. Ownership: the caller frees *out, also after a
 * failure. */
static mgw_status read_sample_array(json_t *object, const mgw_json_place *place, sampled *out,
                                    mgw_error *error)
{
    json_t *array = NULL;
    mgw_status status = mgw_json_get_array(object, "samples", place, &array, error);
    if (status)
        return status;
    size_t count = json_array_size(array);
    entry *entries = calloc(count + 1, sizeof *entries);
    if (!entries)
        return mgw_fail_memory(error, place->origin);
    mgw_json_place inside = *place;
    mgw_json_enter(&inside, "samples");
    for (size_t i = 0; !status && i < count; i++) {
        mgw_json_place at = mgw_json_index(&inside, i);
        status = read_sample(json_array_get(array, i), &at, &entries[i], error);
    }
    if (!status)
        status = take_apart(entries, count, place->origin, out, error);
    free(entries);
    return status;
}

static mgw_status read_samples(const mgw_json_document *document, const char *name,
                               unsigned workers, mgw_cluster **out, mgw_error *error)
{
    mgw_json_place place = mgw_json_top(document, "samples");
    sampled s = {0};
    mgw_error inner;
    mgw_status status = read_sample_array(document->root, &place, &s, error);
    if (!status && mgw_cluster_from_samples(name, workers, s.samples, s.count, out, &inner))
        status = fail_at(&place, "samples", &inner, error);
    if (!status && s.within)
        status = mgw_cluster_set_within(*out, MGW_ALL_REDUCE, s.within, error);
    forget_samples(&s);
    return status;
}

/* One of "levels": {"name", "workers", "ports", "link", "algorithm"}. */
static mgw_status read_level(json_t *object, const mgw_json_place *place, mgw_level *out,
                             mgw_error *error)
{
    const char *name = NULL;
    uint64_t workers = 0;
    uint64_t ports = 1;
    mgw_status status = mgw_json_check_object(object, place, error);
    if (!status)
        status = mgw_json_get_string(object, "name", place, &name, error);
    if (!status)
        status = mgw_json_get_count(object, "workers", place, &workers, error);
    if (!status && json_object_get(object, "ports"))
        status = mgw_json_get_count(object, "ports", place, &ports, error);
    if (!status && (workers > INT_MAX || ports > INT_MAX))
        status = mgw_json_fail(place, workers > INT_MAX ? "workers" : "ports", error, "too many");
    if (!status)
        status = read_constants(object, place, &out->link, &out->algorithm, error);
    out->name = (char *)name; /* owned by the document */
    out->workers = (unsigned)workers;
    out->ports = (unsigned)ports;
    return status;
}

static mgw_status read_levels(const mgw_json_document *document, const char *name, unsigned workers,
                              mgw_cluster **out, mgw_error *error)
{
    json_t *array = NULL;
    mgw_json_place place = mgw_json_top(document, "levels");
    mgw_status status = mgw_json_get_array(document->root, "levels", &place, &array, error);
    if (status)
        return status;
    size_t count = json_array_size(array);
    mgw_level *levels = calloc(count ? count : 1, sizeof *levels);
    if (!levels)
        return mgw_fail_memory(error, place.origin);
    mgw_json_place inside = mgw_json_inside(document, "levels");
    for (size_t i = 0; !status && i < count; i++) {
        mgw_json_place at = mgw_json_index(&inside, i);
        status = read_level(json_array_get(array, i), &at, &levels[i], error);
    }
    mgw_error inner;
    mgw_cluster *made = NULL;
    if (!status && mgw_cluster_from_levels(name, levels, count, &made, &inner))
        status = fail_at(&place, "levels", &inner, error);
    else if (!status && made->workers != workers)
        status = mgw_json_fail(&place, "workers", error, "%u, but the levels have %u", workers,
                               made->workers);
    if (status)
        mgw_cluster_destroy(made);
    else
        *out = made;
    free(levels);
    return status;
}

/* One kind other than the all-reduce: {"cost": {…}} or {"samples": […]}. */
static mgw_status read_kind(json_t *object, const mgw_json_place *place, mgw_collective kind,
                            mgw_cluster *cluster, mgw_error *error)
{
    mgw_status status = mgw_json_check_object(object, place, error);
    if (status)
        return status;
    json_t *cost = json_object_get(object, "cost");
    bool measured = json_object_get(object, "samples") != NULL;
    if ((cost != NULL) == measured)
        return mgw_json_fail(place, NULL, error, "exactly one of cost and samples is required");
    mgw_line line;
    sampled s = {0};
    mgw_json_place inside = *place;
    mgw_json_enter(&inside, "cost");
    status = measured ? read_sample_array(object, place, &s, error)
                      : read_line(cost, &inside, &line, error);
    mgw_error inner;
    if (!status && (measured ? mgw_cluster_set_samples(cluster, kind, s.samples, s.count, &inner)
                             : mgw_cluster_set_line(cluster, kind, &line, &inner)))
        status = fail_at(place, NULL, &inner, error);
    if (!status && s.within)
        status = mgw_cluster_set_within(cluster, kind, s.within, error);
    forget_samples(&s);
    return status;
}

/* "collectives": the cost of kinds other than the all-reduce, by name. */
static mgw_status read_kinds(const mgw_json_document *document, mgw_cluster *cluster,
                             mgw_error *error)
{
    json_t *kinds = json_object_get(document->root, "collectives");
    if (!kinds)
        return MGW_OK;
    mgw_json_place place = mgw_json_inside(document, "collectives");
    mgw_status status = mgw_json_check_object(kinds, &place, error);
    const char *name;
    json_t *object;
    json_object_foreach(kinds, name, object)
    {
        mgw_collective kind = MGW_ALL_REDUCE;
        mgw_error inner;
        if (!status && mgw_collective_parse(name, &kind, &inner))
            status = fail_at(&place, NULL, &inner, error);
        mgw_json_place inside = place;
        mgw_json_enter(&inside, mgw_collective_name(kind));
        if (!status)
            status = read_kind(object, &inside, kind, cluster, error);
    }
    return status;
}

/* "casts": the time to cast f32 to a narrower type and back, by type. */
static mgw_status read_casts(const mgw_json_document *document, mgw_cluster *cluster,
                             mgw_error *error)
{
    json_t *casts = json_object_get(document->root, "casts");
    if (!casts)
        return MGW_OK;
    const char *name = NULL;
    json_t *value = NULL;
    mgw_json_place place = mgw_json_inside(document, "casts");
    mgw_status status = mgw_json_check_object(casts, &place, error);
    json_object_foreach(casts, name, value)
    {
        mgw_cast cast = {0};
        mgw_dtype wire = MGW_F32;
        mgw_error inner;
        mgw_json_place inside = place;
        if (!status && !mgw_dtype_parse(name, &wire))
            status = mgw_json_fail(&place, NULL, error, "unknown number type '%.40s'", name);
        mgw_json_enter(&inside, name);
        if (!status)
            status = mgw_json_check_object(value, &inside, error);
        if (!status)
            status = mgw_json_get_number(value, "a_s", &inside, &cast.a_s, error);
        if (!status)
            status = mgw_json_get_number(value, "c_s_per_byte", &inside, &cast.c_s_per_byte, error);
        if (!status && mgw_cluster_set_cast(cluster, wire, &cast, &inner))
            status = fail_at(&place, NULL, &inner, error);
    }
    return status;
}

/* "beside": how computation and messages slow each other down. */
static mgw_status read_beside(const mgw_json_document *document, mgw_cluster *cluster,
                              mgw_error *error)
{
    json_t *object = json_object_get(document->root, "beside");
    if (!object)
        return MGW_OK;
    mgw_beside beside = {0};
    mgw_json_place place = mgw_json_inside(document, "beside");
    mgw_status status = mgw_json_check_object(object, &place, error);
    const struct {
        const char *member;
        double *factor;
    } factors[] = {{"message", &beside.message}, {"compute", &beside.compute}};
    for (size_t i = 0; !status && i < sizeof factors / sizeof *factors; i++) {
        status = mgw_json_get_number(object, factors[i].member, &place, factors[i].factor, error);
        if (!status && *factors[i].factor < 1)
            status = mgw_json_fail(&place, factors[i].member, error, "must be at least 1, not %g",
                                   *factors[i].factor);
    }
    return status ? status : mgw_cluster_set_beside(cluster, &beside, error);
}

mgw_status mgw_cluster_parse(const char *origin, const char *text, size_t size, mgw_cluster **out,
                             mgw_error *error)
{
    static const struct {
        const char *member;
        mgw_status (*read)(const mgw_json_document *, const char *, unsigned, mgw_cluster **,
                           mgw_error *);
    } forms[] = {{"cost", read_cost},
                 {"link", read_link},
                 {"samples", read_samples},
                 {"levels", read_levels}};
    mgw_json_document document;
    mgw_cluster *cluster = NULL;
    char *name = NULL;
    uint64_t workers = 0;
    mgw_status status =
        mgw_json_read(origin, text, size, "mgwfbp-cluster-1", NULL, NULL, NULL, &document, error);
    if (!status)
        status = mgw_json_member_string(&document, "name", &name, error);
    if (!status)
        status = mgw_json_member_count(&document, "workers", 2, INT_MAX, &workers, error);
    int form = -1;
    for (int i = 0; !status && i < (int)(sizeof forms / sizeof *forms); i++) {
        if (!json_object_get(document.root, forms[i].member))
            continue;
        if (form >= 0)
            status = mgw_fail(error, MGW_ERR_INPUT, "%s: %s: only one of it and %s is allowed",
                              origin, forms[i].member, forms[form].member);
        form = i;
    }
    if (!status && form < 0)
        status =
            mgw_fail(error, MGW_ERR_INPUT,
                     "%s: cost: missing; one of cost, link, samples and levels is needed", origin);
    if (!status)
        status = forms[form].read(&document, name, (unsigned)workers, &cluster, error);
    if (!status)
        status = read_kinds(&document, cluster, error);
    if (!status)
        status = read_casts(&document, cluster, error);
    if (!status)
        status = read_beside(&document, cluster, error);
    free(name);
    mgw_json_document_fini(&document);
    if (status)
        mgw_cluster_destroy(cluster);
    else
        *out = cluster;
    return status;
}

/* The name is neither a file nor a cluster nor a network. `error` already says so, without
 * considering networks. */
static mgw_status fail_unknown(const char *name, mgw_error *error)
{
    mgw_near near = mgw_near_to(name);
    size_t count = 0;
    const mgw_network *networks = mgw_network_list(&count);
    for (size_t i = 0; i < count; i++)
        mgw_near_offer(&near, networks[i].name);
    mgw_source_offer(MGW_DATA_CLUSTER, &near);
    if (!near.count && (strchr(name, ',') || strstr(name, "bit") || strstr(name, "bps")))
        return mgw_fail(error, MGW_ERR_NOT_FOUND,
                        "'%.80s' is not a network; write the latency and bandwidth of a link, such "
                        "as 30us,10Gbit/s",
                        name);
    return near.count ? mgw_source_unknown(&near, error) : MGW_ERR_NOT_FOUND;
}

mgw_status mgw_cluster_load(const char *path_or_name, mgw_cluster **out, mgw_error *error)
{
    mgw_source source;
    mgw_link link;
    mgw_import about;
    mgw_status status = mgw_source_open(path_or_name, &source, error);
    if (status == MGW_ERR_NOT_FOUND && !mgw_network_parse(path_or_name, &link, NULL)) {
        status = mgw_cluster_from_link(path_or_name, 2, &link, MGW_RING, 1, out, error);
        if (!status)
            (*out)->assumes_workers = true;
    } else if (!status && mgw_is_foreign(source.text, source.size))
        status = mgw_cluster_import(path_or_name, source.text, source.size, 0, &about, out, error);
    else if (!status)
        status = mgw_cluster_parse(path_or_name, source.text, source.size, out, error);
    else if (status == MGW_ERR_NOT_FOUND)
        status = fail_unknown(path_or_name, error);
    mgw_source_close(&source);
    return status;
}
