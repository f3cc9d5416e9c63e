/* Kernels on oneDNN: devices, primitives, and their memory. */
#include "nn/onednn.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl_debug.h>

#include "base/status.h"

float *nn_allocate(size_t count)
{
    size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    float *made = aligned_alloc(64, bytes ? bytes : 64);
    if (made)
        memset(made, 0, bytes);
    return made;
}

size_t nn_image_count(const nn_image *image)
{
    return (size_t)image->batch * (size_t)image->channels * (size_t)image->height *
           (size_t)image->width;
}

mgw_status kernel_check(dnnl_status_t code, const char *what, mgw_error *error)
{
    if (code == dnnl_success)
        return MGW_OK;
    return mgw_fail(error, code == dnnl_out_of_memory ? MGW_ERR_NO_MEMORY : MGW_ERR_UNSUPPORTED,
                    "oneDNN: %s: %s", what, dnnl_status2str(code));
}

/* ---- The processor ---- */

/* oneDNN has no call for this; its OpenMP runtime does, whichever it is. */
static mgw_status set_threads(int threads, mgw_error *error)
{
    void (*set)(int) = NULL;
    *(void **)&set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!set)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "this oneDNN does not use OpenMP, so its threads cannot be limited: build "
                        "with one that does (Debian's libdnnl-dev)");
    set(threads);
    return MGW_OK;
}

mgw_status nn_processor_create(int threads, nn_processor **out, mgw_error *error)
{
    nn_processor *processor = calloc(1, sizeof *processor);
    if (!processor)
        return mgw_fail_memory(error, "oneDNN");
    mgw_status status = set_threads(threads, error);
    if (!status)
        status = kernel_check(dnnl_engine_create(&processor->engine, dnnl_cpu, 0), "engine", error);
    if (!status)
        status = kernel_check(
            dnnl_stream_create(&processor->stream, processor->engine, dnnl_stream_default_flags),
            "stream", error);
    if (status)
        nn_processor_destroy(processor);
    else
        *out = processor;
    return status;
}

void nn_processor_destroy(nn_processor *processor)
{
    if (!processor)
        return;
    if (processor->stream)
        dnnl_stream_destroy(processor->stream);
    if (processor->engine)
        dnnl_engine_destroy(processor->engine);
    free(processor->scratch);
    free(processor);
}

/* Grows the scratch memory; arguments in it are bound again on every run. */
static mgw_status reserve_scratch(nn_processor *processor, size_t bytes, mgw_error *error)
{
    if (bytes <= processor->scratch_bytes)
        return MGW_OK;
    free(processor->scratch);
    processor->scratch_bytes = 0;
    processor->scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!processor->scratch)
        return mgw_fail_memory(error, "oneDNN");
    processor->scratch_bytes = bytes;
    return MGW_OK;
}

/* ---- Making kernels ---- */

/* Stands for the processor's scratch memory, wherever that is when the kernel runs. */
static float scratch_mark;

static mgw_status bind(nn_kernel *kernel, call *c, const binding *b, mgw_error *error)
{
    dnnl_memory_t memory = NULL;
    mgw_status status =
        kernel_check(dnnl_memory_create(&memory, &b->where, kernel->processor->engine,
                                        b->data == &scratch_mark ? DNNL_MEMORY_NONE : b->data),
                     "memory", error);
    if (status)
        return status;
    c->args[c->count++] = (dnnl_exec_arg_t){b->arg, memory};
    if (b->data == &scratch_mark)
        kernel->in_scratch[kernel->in_scratch_count++] = memory;
    return MGW_OK;
}

/* oneDNN's unoptimized reference code. */
static bool is_reference(const_dnnl_primitive_desc_t description)
{
    const char *name = "";
    dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&name);
    return strstr(name, "ref");
}

static mgw_status add_call(nn_kernel *kernel, const_dnnl_primitive_desc_t description,
                           const binding *bindings, size_t count, const char *what,
                           mgw_error *error)
{
    call *c = &kernel->calls[kernel->call_count++];
    if (is_reference(description))
        kernel->reference = what;
    mgw_status status =
        kernel_check(dnnl_primitive_create(&c->primitive, description), what, error);
    for (size_t i = 0; !status && i < count; i++)
        if (bindings[i].data)
            status = bind(kernel, c, &bindings[i], error);
    return status;
}

mgw_status kernel_reorder(nn_kernel *kernel, const binding *from, const binding *to,
                          mgw_error *error)
{
    dnnl_primitive_desc_t description = NULL;
    dnnl_engine_t engine = kernel->processor->engine;
    mgw_status status =
        kernel_check(dnnl_reorder_primitive_desc_create(&description, &from->where, engine,
                                                        &to->where, engine, NULL),
                     "reorder", error);
    if (status)
        return status;
    binding bindings[] = {*from, *to};
    bindings[0].arg = DNNL_ARG_FROM;
    bindings[1].arg = DNNL_ARG_TO;
    status = add_call(kernel, description, bindings, 2, "reorder", error);
    dnnl_primitive_desc_destroy(description);
    return status;
}

/* The argument for which the primitive prefers another layout than ours: its weights, or none. */
static mgw_status find_reordered(const nn_kernel *kernel, const binding *bindings, size_t count,
                                 const char *what, size_t *found, mgw_error *error)
{
    *found = count;
    for (size_t i = 0; i < count; i++) {
        const layout *chosen = dnnl_primitive_desc_query_md(
            kernel->description, dnnl_query_exec_arg_md, bindings[i].arg);
        if (!bindings[i].data || dnnl_memory_desc_equal(chosen, &bindings[i].where))
            continue;
        if (*found < count)
            return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                            "oneDNN needs more than reordered weights for this %s", what);
        *found = i;
    }
    return MGW_OK;
}

mgw_status kernel_complete(nn_kernel *kernel, const binding *bindings, size_t count,
                           const char *what, mgw_error *error)
{
    binding own[ARGS_MAX];
    size_t reordered = count;
    memcpy(own, bindings, count * sizeof *own);
    mgw_status status = find_reordered(kernel, bindings, count, what, &reordered, error);
    if (!status && reordered == count)
        return add_call(kernel, kernel->description, own, count, what, error);
    if (status)
        return status;
    binding *weights = &own[reordered];
    weights->where =
        *dnnl_primitive_desc_query_md(kernel->description, dnnl_query_exec_arg_md, weights->arg);
    weights->data = &scratch_mark;
    status = reserve_scratch(kernel->processor, dnnl_memory_desc_get_size(&weights->where), error);
    bool out = weights->arg == DNNL_ARG_DIFF_WEIGHTS;
    if (!status && !out)
        status = kernel_reorder(kernel, &bindings[reordered], weights, error);
    if (!status)
        status = add_call(kernel, kernel->description, own, count, what, error);
    if (!status && out)
        status = kernel_reorder(kernel, weights, &bindings[reordered], error);
    return status;
}

mgw_status kernel_finish(mgw_status status, nn_kernel *kernel, nn_kernel **made)
{
    if (status)
        nn_kernel_destroy(kernel);
    else
        *made = kernel;
    return status;
}

nn_kernel *kernel_begin(nn_processor *processor)
{
    nn_kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel)
        kernel->processor = processor;
    return kernel;
}

mgw_status kernel_make(nn_processor *processor, const char *what, dnnl_status_t code,
                       const void *operation, const void *forward, const binding *bindings,
                       size_t count, nn_kernel **made, mgw_error *error)
{
    nn_kernel *kernel = kernel_begin(processor);
    dnnl_primitive_desc_t hint = NULL;
    mgw_status status = kernel ? kernel_check(code, what, error) : mgw_fail_memory(error, what);
    if (!status && forward)
        status = kernel_check(
            dnnl_primitive_desc_create(&hint, forward, NULL, processor->engine, NULL), what, error);
    if (!status)
        status = kernel_check(dnnl_primitive_desc_create(&kernel->description, operation, NULL,
                                                         processor->engine, hint),
                              what, error);
    if (!status)
        status = kernel_complete(kernel, bindings, count, what, error);
    if (hint)
        dnnl_primitive_desc_destroy(hint);
    return kernel_finish(status, kernel, made);
}

mgw_status nn_kernel_run(nn_kernel *kernel, mgw_error *error)
{
    for (int i = 0; i < kernel->in_scratch_count; i++)
        dnnl_memory_set_data_handle(kernel->in_scratch[i], kernel->processor->scratch);
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < kernel->call_count; i++) {
        const call *c = &kernel->calls[i];
        status = kernel_check(
            dnnl_primitive_execute(c->primitive, kernel->processor->stream, c->count, c->args),
            "run", error);
    }
    return status;
}

const char *nn_kernel_reference(const nn_kernel *kernel)
{
    return kernel->reference;
}

void nn_kernel_destroy(nn_kernel *kernel)
{
    if (!kernel)
        return;
    for (int i = 0; i < kernel->call_count; i++) {
        call *c = &kernel->calls[i];
        for (int k = 0; k < c->count; k++)
            dnnl_memory_destroy(c->args[k].memory);
        if (c->primitive)
            dnnl_primitive_destroy(c->primitive);
    }
    if (kernel->description)
        dnnl_primitive_desc_destroy(kernel->description);
    free(kernel->workspace);
    free(kernel);
}
