/*
 * The memory layout of gradients: all gradients of a dtype are contiguous, in ready order, so that
 * every operation of every plan is one slice per dtype. Merging gradients needs no copies, and a
 * new plan only moves boundaries.
 *
 * Threads: any, on a layout that is not being destroyed.
 */
#ifndef MGWFBP_LAYOUT_H
#define MGWFBP_LAYOUT_H

#include <stddef.h>

#include <mgwfbp/dtype.h>
#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_layout mgw_layout;

/*
 * For tensors in ready order; `counts` are their numbers of elements. Every tensor begins on a
 * multiple of 64 bytes. The gaps are sent as well and stay zero. Ownership: the caller destroys
 * *out; nothing is borrowed.
 */
MGW_CHECKED mgw_status mgw_layout_create(size_t tensor_count, const size_t *counts,
                                         const mgw_dtype *dtypes, mgw_layout **out,
                                         mgw_error *error);
void mgw_layout_destroy(mgw_layout *layout);

/* The arguments of mgw_layout_create. */
size_t mgw_layout_tensor_count(const mgw_layout *layout);
size_t mgw_layout_count(const mgw_layout *layout, size_t tensor);
mgw_dtype mgw_layout_dtype(const mgw_layout *layout, size_t tensor);

/* In elements of the dtype's memory: where the tensor begins, and the total length. */
size_t mgw_layout_offset(const mgw_layout *layout, size_t tensor);
size_t mgw_layout_length(const mgw_layout *layout, mgw_dtype dtype);

/* The slice of tensors first .. first+count-1 in the memory of a dtype, in elements; may be empty.
 */
void mgw_layout_slice(const mgw_layout *layout, size_t first, size_t count, mgw_dtype dtype,
                      size_t *begin, size_t *length);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
