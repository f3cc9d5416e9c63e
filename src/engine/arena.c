/* The tensors, and the memory of their gradients. */
#include <stdlib.h>

#include "base/status.h"
#include "engine/place.h"

mgw_status mgw_engine_add(mgw_engine *engine, const char *name, size_t count, mgw_dtype dtype,
                          unsigned *id, mgw_error *error)
{
    mgw_status status = engine_check(engine, "add", error);
    if (status)
        return status;
    engine_arena *arena = &engine->arena;
    if (!name)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "add: the name of tensor %zu is null",
                        arena->count);
    if (engine->started)
        return mgw_fail(
            error, MGW_ERR_ARGUMENT,
            "tensor '%.80s': the engine has started; tensors cannot be added or resized", name);
    if ((unsigned)dtype >= DTYPES || count > SIZE_MAX / 64 || arena->count > UINT32_MAX / 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "tensor '%.80s': unknown dtype, or too large",
                        name);
    if (arena->count == arena->capacity) {
        size_t capacity = arena->capacity ? 2 * arena->capacity : 64;
        engine_tensor *tensors = realloc(arena->tensors, capacity * sizeof *tensors);
        if (!tensors)
            return mgw_fail_memory(error, "engine");
        arena->tensors = tensors;
        arena->capacity = capacity;
    }
    status = mgw_names_add(arena->names, name, error);
    if (status)
        return status;
    arena->tensors[arena->count] = (engine_tensor){.count = count, .dtype = dtype};
    *id = (unsigned)arena->count++;
    return MGW_OK;
}

static mgw_status lay_out(engine_arena *arena, mgw_error *error)
{
    size_t *counts = malloc(arena->count * sizeof *counts);
    mgw_dtype *dtypes = malloc(arena->count * sizeof *dtypes);
    mgw_status status = counts && dtypes ? MGW_OK : mgw_fail_memory(error, "engine");
    for (size_t i = 0; !status && i < arena->count; i++) {
        counts[i] = arena->tensors[i].count;
        dtypes[i] = arena->tensors[i].dtype;
    }
    if (!status)
        status = mgw_layout_create(arena->count, counts, dtypes, &arena->layout, error);
    free(counts);
    free(dtypes);
    return status;
}

mgw_status engine_arena_allocate(mgw_engine *engine, mgw_error *error)
{
    engine_arena *arena = &engine->arena;
    mgw_status status = lay_out(arena, error);
    for (int d = 0; !status && d < DTYPES; d++) {
        size_t bytes = engine_arena_bytes(arena, (mgw_dtype)d);
        void *memory = NULL;
        if (bytes)
            status = mgw_transport_allocate(engine->transport, bytes, &memory, error);
        arena->memory[d] = memory;
    }
    return status ? status : engine_allow_wire(engine, engine->wire, error);
}

mgw_status engine_allow_wire(mgw_engine *engine, mgw_dtype wire, mgw_error *error)
{
    engine_arena *arena = &engine->arena;
    size_t elements = mgw_layout_length(arena->layout, MGW_F32);
    size_t scales = (elements / MGW_FP8_BLOCK + 1) * sizeof *arena->largest;
    mgw_status status = MGW_OK;
    if (wire == MGW_F32 || !elements)
        return MGW_OK;
    if (!arena->narrow)
        status = engine_at_place(engine, engine->place->allow, error);
    if (status)
        return status;
    if (!arena->narrow) {
        status = mgw_transport_allocate(engine->transport, 2 * elements, &arena->narrow, error);
        arena->narrow_bytes += status ? 0 : 2 * elements;
    }
    if (!status && !arena->largest && mgw_dtype_bytes(wire) == 1) {
        void *largest = NULL;
        status = mgw_transport_allocate(engine->transport, scales, &largest, error);
        arena->largest = largest;
        arena->narrow_bytes += status ? 0 : scales;
    }
    return status;
}

void engine_arena_fini(engine_arena *arena)
{
    mgw_names_release(arena->names);
    mgw_layout_destroy(arena->layout);
    free(arena->tensors);
}

void *mgw_engine_gradient(const mgw_engine *engine, unsigned id)
{
    if (!engine || !engine->started || id >= engine->arena.count)
        return NULL;
    const engine_arena *arena = &engine->arena;
    mgw_dtype dtype = arena->tensors[id].dtype;
    return arena->memory[dtype] + mgw_layout_offset(arena->layout, id) * mgw_dtype_bytes(dtype);
}

mgw_status mgw_engine_bind(mgw_engine *engine, unsigned id, void *where, mgw_error *error)
{
    mgw_status status = engine_check(engine, "bind", error);
    if (status)
        return status;
    if (engine->in_step || id >= engine->arena.count)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "bind: tensor %u: %s", id,
                        id >= engine->arena.count ? "there is no such tensor"
                                                  : "only between steps");
    engine->arena.tensors[id].bound = where;
    return MGW_OK;
}

void *engine_home(const mgw_engine *engine, size_t id)
{
    void *bound = engine->arena.tensors[id].bound;
    return bound ? bound : mgw_engine_gradient(engine, (unsigned)id);
}

size_t engine_tensor_bytes(const engine_tensor *tensor)
{
    return tensor->count * mgw_dtype_bytes(tensor->dtype);
}

size_t engine_arena_bytes(const engine_arena *arena, mgw_dtype dtype)
{
    return mgw_layout_length(arena->layout, dtype) * mgw_dtype_bytes(dtype);
}
