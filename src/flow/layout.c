/* The memory layout of gradients: prefix sums of their sizes, by dtype. */
#include <mgwfbp/layout.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

enum { DTYPES = MGW_F64 + 1, ALIGNMENT = 64 };

struct mgw_layout {
    size_t tensor_count;
    size_t *begins[DTYPES]; /* by tensor, and one more: where its elements of the dtype begin */
    size_t *counts;         /* by tensor: its elements */
    mgw_dtype *dtypes;
};

void mgw_layout_destroy(mgw_layout *layout)
{
    if (!layout)
        return;
    for (int d = 0; d < DTYPES; d++)
        free(layout->begins[d]);
    free(layout->counts);
    free(layout->dtypes);
    free(layout);
}

/* Adds a tensor to the sums; false: its dtype is unknown, or it has too many elements. */
static bool append(mgw_layout *layout, size_t i, size_t count, mgw_dtype dtype)
{
    if ((unsigned)dtype >= DTYPES)
        return false;
    size_t unit = ALIGNMENT / mgw_dtype_bytes(dtype);
    size_t most = SIZE_MAX / 32 - layout->begins[dtype][i];
    if (count > most || most - count < unit)
        return false;
    for (int d = 0; d < DTYPES; d++)
        layout->begins[d][i + 1] = layout->begins[d][i];
    layout->begins[dtype][i + 1] += (count + unit - 1) / unit * unit;
    layout->counts[i] = count;
    layout->dtypes[i] = dtype;
    return true;
}

mgw_status mgw_layout_create(size_t tensor_count, const size_t *counts, const mgw_dtype *dtypes,
                             mgw_layout **out, mgw_error *error)
{
    mgw_layout *layout = calloc(1, sizeof *layout);
    if (!layout)
        return mgw_fail_memory(error, "layout");
    bool room = true;
    for (int d = 0; d < DTYPES; d++)
        room = (layout->begins[d] = calloc(tensor_count + 1, sizeof *layout->begins[d])) && room;
    layout->counts = calloc(tensor_count ? tensor_count : 1, sizeof *layout->counts);
    layout->dtypes = calloc(tensor_count ? tensor_count : 1, sizeof *layout->dtypes);
    if (!room || !layout->counts || !layout->dtypes) {
        mgw_layout_destroy(layout);
        return mgw_fail_memory(error, "layout");
    }
    layout->tensor_count = tensor_count;
    for (size_t i = 0; i < tensor_count; i++)
        if (!append(layout, i, counts[i], dtypes[i])) {
            mgw_layout_destroy(layout);
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "tensor %zu has an unknown dtype, or too many elements", i);
        }
    *out = layout;
    return MGW_OK;
}

size_t mgw_layout_tensor_count(const mgw_layout *layout)
{
    return layout->tensor_count;
}

size_t mgw_layout_count(const mgw_layout *layout, size_t tensor)
{
    return layout->counts[tensor];
}

mgw_dtype mgw_layout_dtype(const mgw_layout *layout, size_t tensor)
{
    return layout->dtypes[tensor];
}

size_t mgw_layout_offset(const mgw_layout *layout, size_t tensor)
{
    return layout->begins[layout->dtypes[tensor]][tensor];
}

size_t mgw_layout_length(const mgw_layout *layout, mgw_dtype dtype)
{
    return layout->begins[dtype][layout->tensor_count];
}

void mgw_layout_slice(const mgw_layout *layout, size_t first, size_t count, mgw_dtype dtype,
                      size_t *begin, size_t *length)
{
    *begin = layout->begins[dtype][first];
    *length = layout->begins[dtype][first + count] - *begin;
}
