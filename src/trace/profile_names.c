/* Names and sizes of a profile's gradients: from the model's list of parameters, or made up. */
#include "trace/profile_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_MAX = 100000 };

void mgw_named_free(mgw_named *named, size_t count)
{
    for (size_t i = 0; named && i < count; i++)
        free(named[i].name);
    free(named);
}

/* ---- The list of parameters ---- */

/* The number of elements of a number or a shape; 0: neither, or too large. */
static uint64_t count_of(json_t *value)
{
    uint64_t count = 1;
    bool shape = json_is_array(value);
    for (size_t i = 0; i < (shape ? json_array_size(value) : 1); i++) {
        json_int_t length = json_integer_value(shape ? json_array_get(value, i) : value);
        if (length <= 0 || count > (uint64_t)INT64_MAX / 16 / (uint64_t)length)
            return 0;
        count *= (uint64_t)length;
    }
    return count;
}

static mgw_status read_list(const mgw_profile_options *options, mgw_named **out, size_t *count,
                            mgw_error *error)
{
    const char *origin = options->tensors_origin ? options->tensors_origin : "tensors";
    mgw_json_document document = {0};
    mgw_status status = mgw_json_read(origin, options->tensors, options->tensors_size, NULL, NULL,
                                      NULL, NULL, &document, error);
    size_t size = status ? 0 : json_object_size(document.root);
    if (!status && size > TENSORS_MAX)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: more than %d parameters", origin, TENSORS_MAX);
    mgw_named *list = calloc(size ? size : 1, sizeof *list);
    if (!status && !list)
        status = mgw_fail_memory(error, origin);
    const char *name = NULL;
    json_t *value = NULL;
    size_t made = 0;
    if (!status)
        json_object_foreach(document.root, name, value)
        {
            uint64_t elements = count_of(value);
            mgw_json_place place = mgw_json_top(&document, name);
            if (elements == 0)
                status =
                    mgw_json_fail(&place, name, error, "must be a number of elements, or a shape");
            else if (!(list[made].name = strdup(name)))
                status = mgw_fail_memory(error, origin);
            if (status)
                break;
            list[made++].count = elements;
        }
    mgw_json_document_fini(&document);
    if (status)
        mgw_named_free(list, made);
    else {
        *out = list;
        *count = made;
    }
    return status;
}

/* ---- Matching parameters and gradients ---- */

/* The length of the module part of a name: "layers.1.norm" in "layers.1.norm.bias". */
static size_t module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

/* Whether all parameters of a module have the same size, as in normalizations; SINGLE: it has only
 * one. */
typedef enum likeness { DIFFERENT, ALIKE, SINGLE } likeness;

static void mark_alike(const mgw_named *list, size_t count, likeness *alike)
{
    for (size_t first = 0; first < count;) {
        size_t length = module_length(list[first].name);
        size_t end = first + 1;
        bool same = true;
        while (end < count && module_length(list[end].name) == length &&
               !strncmp(list[end].name, list[first].name, length)) {
            same = same && list[end].count == list[first].count;
            end++;
        }
        likeness found = end == first + 1 ? SINGLE : same ? ALIKE : DIFFERENT;
        for (; first < end; first++)
            alike[first] = found;
    }
}

/* The unmatched parameters of a list. */
typedef struct remaining {
    const mgw_named *list;
    size_t count;
    bool *taken;
    likeness *alike;
} remaining;

/*
 * The unmatched parameter nearest to `where`, of the gradient's size if that is known. Prefers
 * parameters that, like the gradient, belong to a normalization or do not. `count`: none.
 */
static size_t nearest(const remaining *r, const mgw_step_gradient *gradient, size_t where)
{
    const char *label = gradient->node && gradient->node->label ? gradient->node->label : "";
    uint64_t size = gradient->row->count;
    likeness wrong = strstr(label, "Norm") ? DIFFERENT : ALIKE;
    for (int strict = 1; strict >= 0; strict--)
        for (size_t away = 0; away < r->count; away++)
            for (int side = 0; side < 2; side++) {
                size_t i = side ? where + away : where - away; /* may wrap: then it is too large */
                if (i < r->count && !r->taken[i] && (size == 0 || r->list[i].count == size) &&
                    (!strict || r->alike[i] != wrong))
                    return i;
            }
    return r->count;
}

/*
 * Gradients become ready in roughly the reverse order of the model's parameters; those of one
 * function, in the same order.
 */
static mgw_status match(const char *origin, const mgw_step *step, mgw_named *list, size_t count,
                        mgw_named *out, mgw_error *error)
{
    const remaining r = {list, count, calloc(count, sizeof *r.taken),
                         calloc(count, sizeof *r.alike)};
    if (!r.taken || !r.alike) {
        free(r.taken);
        free(r.alike);
        return mgw_fail_memory(error, origin);
    }
    mgw_status status = MGW_OK;
    mark_alike(list, count, r.alike);
    size_t group = 0; /* first gradient of the same function */
    for (size_t i = 0, left = count; !status && i < step->count; i++) {
        const mgw_step_gradient *gradient = &step->gradients[i];
        if (i == 0 || gradient->node != step->gradients[i - 1].node) {
            size_t size = 1;
            group = i;
            while (i + size < step->count && step->gradients[i + size].node == gradient->node)
                size++;
            left = left > size ? left - size : 0;
        }
        size_t found = nearest(&r, gradient, left + (i - group));
        if (found == count) {
            status = mgw_fail(error, MGW_ERR_INPUT,
                              "%s: gradient %zu has %llu elements, but the list has no parameter "
                              "of that size left",
                              origin, i, (unsigned long long)gradient->row->count);
            break;
        }
        r.taken[found] = true;
        out[i] = (mgw_named){list[found].name, list[found].count};
        list[found].name = NULL;
    }
    free(r.taken);
    free(r.alike);
    return status;
}

/* ---- Without a list ---- */

/* "012.AddmmBackward0" */
static mgw_status make_up(const char *origin, const mgw_step *step, mgw_named *out,
                          mgw_error *error)
{
    for (size_t i = 0; i < step->count; i++) {
        const mgw_step_gradient *gradient = &step->gradients[i];
        const char *made_by = gradient->node && gradient->node->label ? gradient->node->label : "?";
        char name[96];
        snprintf(name, sizeof name, "%03zu.%.70s", i, made_by);
        out[i] = (mgw_named){strdup(name), gradient->row->count};
        if (!out[i].name)
            return mgw_fail_memory(error, origin);
        if (out[i].count == 0)
            return mgw_fail(error, MGW_ERR_INPUT,
                            "%s: the size of gradient %zu is missing: profile with "
                            "record_shapes=True, or give the model's parameters with --tensors",
                            origin, i);
    }
    return MGW_OK;
}

mgw_status mgw_profile_name(const char *origin, const mgw_profile_options *options,
                            const mgw_step *step, mgw_named **out, mgw_text *notes,
                            mgw_error *error)
{
    mgw_named *list = NULL;
    size_t count = 0;
    mgw_named *made = calloc(step->count, sizeof *made);
    mgw_status status = made ? MGW_OK : mgw_fail_memory(error, origin);
    if (!status && options->tensors)
        status = read_list(options, &list, &count, error);
    if (!status && options->tensors && count < step->count)
        status =
            mgw_fail(error, MGW_ERR_INPUT, "%s: has %zu gradients, but the list has %zu parameters",
                     origin, step->count, count);
    if (!status)
        status = options->tensors ? match(origin, step, list, count, made, error)
                                  : make_up(origin, step, made, error);
    if (!status && !options->tensors)
        mgw_text_printf(notes,
                        "names are made up, since a profile has none; pass them with --tensors\n");
    if (!status && options->tensors && step->gradients[0].row->count == 0)
        mgw_text_printf(notes, "the profile has no sizes: using those of the list, in reverse "
                               "order\n");
    if (!status && options->tensors && count > step->count)
        mgw_text_printf(notes, "%zu parameters got no gradient and are ignored\n",
                        count - step->count);
    mgw_named_free(list, count);
    if (status)
        mgw_named_free(made, step->count);
    else
        *out = made;
    return status;
}
