/* Writes cluster files: "mgwfbp-cluster-1". */
#include <mgwfbp/cluster.h>

#include "base/dtype.h"

static void write_line(mgw_text *text, const mgw_line *line)
{
    mgw_text_printf(text, "{\"a_s\": ");
    mgw_text_json_number(text, line->a_s);
    mgw_text_printf(text, ", \"b_s_per_byte\": ");
    mgw_text_json_number(text, line->b_s_per_byte);
    mgw_text_printf(text, "}");
}

static void write_constants(mgw_text *text, const mgw_link *link)
{
    mgw_text_printf(text, "\"link\": {\"alpha_s\": ");
    mgw_text_json_number(text, link->alpha_s);
    mgw_text_printf(text, ", \"beta_s_per_byte\": ");
    mgw_text_json_number(text, link->beta_s_per_byte);
    mgw_text_printf(text, ", \"gamma_s_per_byte\": ");
    mgw_text_json_number(text, link->gamma_s_per_byte);
    mgw_text_printf(text, "},");
}

static void write_levels(mgw_text *text, const mgw_cluster *cluster)
{
    mgw_text_printf(text, "\"levels\": [\n");
    for (size_t i = 0; i < cluster->level_count; i++) {
        const mgw_level *level = &cluster->levels[i];
        mgw_text_printf(text, "    {\"name\": ");
        mgw_text_json_string(text, level->name);
        mgw_text_printf(text, ", \"workers\": %u, \"ports\": %u, ", level->workers, level->ports);
        write_constants(text, &level->link);
        mgw_text_printf(text, " \"algorithm\": \"%s\"}%s\n", mgw_algorithm_name(level->algorithm),
                        i + 1 < cluster->level_count ? "," : "");
    }
    mgw_text_printf(text, "  ]");
}

static void write_link(mgw_text *text, const mgw_cluster *cluster)
{
    write_constants(text, &cluster->link);
    mgw_text_printf(text, "\n");
    if (cluster->algorithm == MGW_PARAMETER_SERVER)
        mgw_text_printf(text, "  \"servers\": %u,\n", cluster->servers);
    mgw_text_printf(text, "  \"algorithm\": \"%s\"", mgw_algorithm_name(cluster->algorithm));
}

static void write_samples(mgw_text *text, const mgw_sample *samples, const double *within,
                          size_t count, int indent)
{
    mgw_text_printf(text, "\"samples\": [\n");
    for (size_t i = 0; i < count; i++) {
        mgw_text_printf(text, "%*s{\"bytes\": %llu, \"seconds\": ", indent + 2, "",
                        (unsigned long long)samples[i].bytes);
        mgw_text_json_number(text, samples[i].seconds);
        if (within) {
            mgw_text_printf(text, ", \"within\": ");
            mgw_text_json_number(text, within[i]);
        }
        mgw_text_printf(text, i + 1 < count ? "},\n" : "}\n");
    }
    mgw_text_printf(text, "%*s]", indent, "");
}

static void write_kinds(mgw_text *text, const mgw_cluster *cluster)
{
    bool any = false;
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        const mgw_measured *given = &cluster->given[k];
        if (!given->given)
            continue;
        mgw_text_printf(text, any ? ",\n    " : ",\n  \"collectives\": {\n    ");
        mgw_text_printf(text, "\"%s\": {", mgw_collective_name((mgw_collective)k));
        any = true;
        if (given->sample_count) {
            write_samples(text, given->samples, given->within, given->sample_count, 4);
        } else {
            mgw_text_printf(text, "\"cost\": ");
            write_line(text, &given->line);
        }
        mgw_text_printf(text, "}");
    }
    mgw_text_printf(text, any ? "\n  }" : "");
}

static void write_casts(mgw_text *text, const mgw_cluster *cluster)
{
    bool any = false;
    for (unsigned wire = 0; wire < MGW_DTYPE_COUNT; wire++) {
        if (!(cluster->casts_given >> wire & 1))
            continue;
        mgw_text_printf(text, any ? ",\n    " : ",\n  \"casts\": {\n    ");
        mgw_text_printf(text, "\"%s\": {\"a_s\": ", mgw_dtype_name((mgw_dtype)wire));
        mgw_text_json_number(text, cluster->casts[wire].a_s);
        mgw_text_printf(text, ", \"c_s_per_byte\": ");
        mgw_text_json_number(text, cluster->casts[wire].c_s_per_byte);
        mgw_text_printf(text, "}");
        any = true;
    }
    mgw_text_printf(text, any ? "\n  }" : "");
}

static void write_beside(mgw_text *text, const mgw_cluster *cluster)
{
    if (!(cluster->beside.message > 1 || cluster->beside.compute > 1))
        return;
    mgw_text_printf(text, ",\n  \"beside\": {\"message\": ");
    mgw_text_json_number(text, cluster->beside.message);
    mgw_text_printf(text, ", \"compute\": ");
    mgw_text_json_number(text, cluster->beside.compute);
    mgw_text_printf(text, "}");
}

void mgw_cluster_write(const mgw_cluster *cluster, mgw_text *text)
{
    mgw_text_printf(text, "{\n  \"format\": \"mgwfbp-cluster-1\",\n  \"name\": ");
    mgw_text_json_string(text, cluster->name);
    mgw_text_printf(text, ",\n  \"workers\": %u,\n  ", cluster->workers);
    switch (cluster->kind) {
    case MGW_CLUSTER_COST:
        mgw_text_printf(text, "\"cost\": ");
        write_line(text, &cluster->cost);
        break;
    case MGW_CLUSTER_PUSH_PULL:
        mgw_text_printf(text, "\"cost\": {\"push\": ");
        write_line(text, &cluster->push);
        mgw_text_printf(text, ", \"pull\": ");
        write_line(text, &cluster->pull);
        mgw_text_printf(text, "}");
        break;
    case MGW_CLUSTER_LINK:
        write_link(text, cluster);
        break;
    case MGW_CLUSTER_SAMPLES:
        write_samples(text, cluster->samples, cluster->within, cluster->sample_count, 2);
        break;
    case MGW_CLUSTER_LEVELS:
        write_levels(text, cluster);
        break;
    }
    write_kinds(text, cluster);
    write_casts(text, cluster);
    write_beside(text, cluster);
    mgw_text_printf(text, "\n}\n");
}
