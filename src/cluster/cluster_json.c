/* Cluster files: "mgwfbp-cluster-1". */
#include <limits.h>
#include <stdlib.h>

#include <mgwfbp/cluster.h>

#include "base/json.h"
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
    snprintf(inside.path, sizeof inside.path, "cost.push");
    mgw_status status = read_line(push, &inside, &push_line, error);
    snprintf(inside.path, sizeof inside.path, "cost.pull");
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

static mgw_status read_link(const mgw_json_document *document, const char *name, unsigned workers,
                            mgw_cluster **out, mgw_error *error)
{
    json_t *object = json_object_get(document->root, "link");
    mgw_json_place place = mgw_json_inside(document, "link");
    mgw_link link;
    mgw_status status = mgw_json_check_object(object, &place, error);
    if (!status)
        status = mgw_json_get_number(object, "alpha_s", &place, &link.alpha_s, error);
    if (!status)
        status =
            mgw_json_get_number(object, "beta_s_per_byte", &place, &link.beta_s_per_byte, error);
    if (!status)
        status =
            mgw_json_get_number(object, "gamma_s_per_byte", &place, &link.gamma_s_per_byte, error);
    place = mgw_json_top(document, "algorithm");
    const char *algorithm_name = NULL;
    if (!status)
        status = mgw_json_get_string(document->root, "algorithm", &place, &algorithm_name, error);
    mgw_algorithm algorithm = MGW_RING;
    mgw_error inner;
    if (!status && mgw_algorithm_parse(algorithm_name, &algorithm, &inner))
        status = fail_at(&place, "algorithm", &inner, error);
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

static mgw_status read_samples(const mgw_json_document *document, const char *name,
                               unsigned workers, mgw_cluster **out, mgw_error *error)
{
    json_t *array = NULL;
    mgw_json_place place = mgw_json_top(document, "samples");
    mgw_status status = mgw_json_get_array(document->root, "samples", &place, &array, error);
    if (status)
        return status;
    size_t count = json_array_size(array);
    mgw_sample *samples = calloc(count ? count : 1, sizeof *samples);
    if (!samples)
        return mgw_fail_memory(error, document->origin);
    mgw_json_place inside = mgw_json_inside(document, "samples");
    for (size_t i = 0; !status && i < count; i++) {
        json_t *element = json_array_get(array, i);
        mgw_json_place at = mgw_json_index(&inside, i);
        status = mgw_json_check_object(element, &at, error);
        if (!status)
            status = mgw_json_get_count(element, "bytes", &at, &samples[i].bytes, error);
        if (!status)
            status = mgw_json_get_number(element, "seconds", &at, &samples[i].seconds, error);
        if (!status && samples[i].seconds == 0)
            status = mgw_json_fail(&at, "seconds", error, "must be above 0");
    }
    mgw_error inner;
    if (!status && mgw_cluster_from_samples(name, workers, samples, count, out, &inner))
        status = fail_at(&place, "samples", &inner, error);
    free(samples);
    return status;
}

mgw_status mgw_cluster_parse(const char *origin, const char *text, size_t size, mgw_cluster **out,
                             mgw_error *error)
{
    static const struct {
        const char *member;
        mgw_status (*read)(const mgw_json_document *, const char *, unsigned, mgw_cluster **,
                           mgw_error *);
    } forms[] = {{"cost", read_cost}, {"link", read_link}, {"samples", read_samples}};
    mgw_json_document document;
    char *name = NULL;
    uint64_t workers = 0;
    mgw_status status =
        mgw_json_read(origin, text, size, "mgwfbp-cluster-1", NULL, NULL, NULL, &document, error);
    if (!status)
        status = mgw_json_member_string(&document, "name", &name, error);
    if (!status)
        status = mgw_json_member_count(&document, "workers", 2, INT_MAX, &workers, error);
    int form = -1;
    for (int i = 0; !status && i < 3; i++) {
        if (!json_object_get(document.root, forms[i].member))
            continue;
        if (form >= 0)
            status = mgw_fail(error, MGW_ERR_INPUT, "%s: %s: given besides %s; one is allowed",
                              origin, forms[i].member, forms[form].member);
        form = i;
    }
    if (!status && form < 0)
        status = mgw_fail(error, MGW_ERR_INPUT,
                          "%s: cost: missing; one of cost, link and samples must be there", origin);
    if (!status)
        status = forms[form].read(&document, name, (unsigned)workers, out, error);
    free(name);
    mgw_json_document_fini(&document);
    return status;
}

mgw_status mgw_cluster_load(const char *path_or_name, mgw_cluster **out, mgw_error *error)
{
    mgw_source source;
    mgw_status status = mgw_source_open(path_or_name, &source, error);
    if (!status)
        status = mgw_cluster_parse(path_or_name, source.text, source.size, out, error);
    mgw_source_close(&source);
    return status;
}

static void write_line(mgw_text *text, const mgw_line *line)
{
    mgw_text_printf(text, "{\"a_s\": ");
    mgw_text_json_number(text, line->a_s);
    mgw_text_printf(text, ", \"b_s_per_byte\": ");
    mgw_text_json_number(text, line->b_s_per_byte);
    mgw_text_printf(text, "}");
}

static void write_link(mgw_text *text, const mgw_cluster *cluster)
{
    mgw_text_printf(text, "  \"link\": {\"alpha_s\": ");
    mgw_text_json_number(text, cluster->link.alpha_s);
    mgw_text_printf(text, ", \"beta_s_per_byte\": ");
    mgw_text_json_number(text, cluster->link.beta_s_per_byte);
    mgw_text_printf(text, ", \"gamma_s_per_byte\": ");
    mgw_text_json_number(text, cluster->link.gamma_s_per_byte);
    mgw_text_printf(text, "},\n");
    if (cluster->algorithm == MGW_PARAMETER_SERVER)
        mgw_text_printf(text, "  \"servers\": %u,\n", cluster->servers);
    mgw_text_printf(text, "  \"algorithm\": \"%s\"\n", mgw_algorithm_name(cluster->algorithm));
}

static void write_samples(mgw_text *text, const mgw_cluster *cluster)
{
    mgw_text_printf(text, "  \"samples\": [\n");
    for (size_t i = 0; i < cluster->sample_count; i++) {
        mgw_text_printf(text, "    {\"bytes\": %llu, \"seconds\": ",
                        (unsigned long long)cluster->samples[i].bytes);
        mgw_text_json_number(text, cluster->samples[i].seconds);
        mgw_text_printf(text, i + 1 < cluster->sample_count ? "},\n" : "}\n");
    }
    mgw_text_printf(text, "  ]\n");
}

void mgw_cluster_write(const mgw_cluster *cluster, mgw_text *text)
{
    mgw_text_printf(text, "{\n  \"format\": \"mgwfbp-cluster-1\",\n  \"name\": ");
    mgw_text_json_string(text, cluster->name);
    mgw_text_printf(text, ",\n  \"workers\": %u,\n", cluster->workers);
    switch (cluster->kind) {
    case MGW_CLUSTER_COST:
        mgw_text_printf(text, "  \"cost\": ");
        write_line(text, &cluster->cost);
        mgw_text_printf(text, "\n");
        break;
    case MGW_CLUSTER_PUSH_PULL:
        mgw_text_printf(text, "  \"cost\": {\"push\": ");
        write_line(text, &cluster->push);
        mgw_text_printf(text, ", \"pull\": ");
        write_line(text, &cluster->pull);
        mgw_text_printf(text, "}\n");
        break;
    case MGW_CLUSTER_LINK:
        write_link(text, cluster);
        break;
    case MGW_CLUSTER_SAMPLES:
        write_samples(text, cluster);
        break;
    }
    mgw_text_printf(text, "}\n");
}
