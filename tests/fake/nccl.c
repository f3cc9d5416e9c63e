/* NCCL for the fake GPU: a libnccl.so.2 whose workers are processes of one host. Calls return at
 * once and go on while their state is asked for, as those of communicators that do not block. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport/nccl_library.h"
#include "transport/reduce.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))

enum { RANKS = 8, ROOM = 64 << 20, OPS = 32 };

/* In a file without a name, which rank 0's descriptor in /proc leads to. */
typedef struct segment {
    _Atomic uint32_t came[RANKS]; /* operations that the rank has brought its data to */
    _Atomic uint32_t went[RANKS]; /* operations that it has taken the result of */
} segment;

typedef struct operation {
    const void *from;
    void *to;
    size_t count;
    int type;
    int op;
    int root; /* -1: all */
    bool copies;
} operation;

struct ncclComm {
    segment *shared;
    char *rooms;
    int rank;
    int size;
    operation ops[OPS];
    int first;
    int count;
    bool brought;
    uint32_t number;
};

static _Thread_local int depth;

EXPORT const char *ncclGetErrorString(int code)
{
    return code == NCCL_IN_PROGRESS ? "in progress" : "an error of the fake NCCL";
}

EXPORT const char *ncclGetLastError(nccl_comm comm)
{
    (void)comm;
    return "";
}

EXPORT int ncclGetUniqueId(nccl_id *out)
{
    int fd = memfd_create("fake-nccl", 0);
    if (fd < 0 || ftruncate(fd, (off_t)sizeof(segment) + (off_t)RANKS * ROOM))
        return 2;
    memset(out, 0, sizeof *out);
    snprintf(out->bytes, sizeof out->bytes, "/proc/%ld/fd/%d", (long)getpid(), fd);
    return NCCL_SUCCESS;
}

EXPORT int ncclCommInitRankConfig(nccl_comm *out, int size, nccl_id id, int rank,
                                  nccl_config *config)
{
    if (size > RANKS || config->magic != NCCL_CONFIG_MAGIC || config->blocking)
        return 4;
    size_t bytes = sizeof(segment) + (size_t)RANKS * ROOM;
    int fd = open(id.bytes, O_RDWR);
    char *memory =
        fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    nccl_comm comm = calloc(1, sizeof *comm);
    if (fd >= 0)
        close(fd);
    if (memory == MAP_FAILED || !comm) {
        free(comm);
        return 2;
    }
    comm->shared = (segment *)(void *)memory;
    comm->rooms = memory + sizeof(segment);
    comm->rank = rank;
    comm->size = size;
    *out = comm;
    return NCCL_IN_PROGRESS;
}

static bool all_at(const nccl_comm comm, _Atomic uint32_t *numbers)
{
    for (int r = 0; r < comm->size; r++)
        if ((int32_t)(atomic_load(&numbers[r]) - comm->number) < 0)
            return false;
    return true;
}

static mgw_dtype dtype_of(int type)
{
    return type == NCCL_F32    ? MGW_F32
           : type == NCCL_F16  ? MGW_F16
           : type == NCCL_BF16 ? MGW_BF16
                               : MGW_F64;
}

static void take_result(nccl_comm comm, const operation *o)
{
    const void *sources[RANKS];
    size_t bytes = o->count * (o->type == NCCL_U8 ? 1 : mgw_dtype_bytes(dtype_of(o->type)));
    for (int r = 0; r < comm->size; r++)
        sources[r] = comm->rooms + (size_t)r * ROOM;
    void *target = o->to;
    if (o->copies)
        memcpy(o->to, sources[o->root], bytes);
    else if (o->root < 0 || o->root == comm->rank)
        mgw_reduce(sources, (size_t)comm->size, &target, 1, o->count, dtype_of(o->type),
                   o->op == NCCL_AVERAGE ? MGW_AVERAGE : MGW_SUM);
}

/* One operation after the other: all bring their data, all take the result. */
static void go_on(nccl_comm comm)
{
    while (comm->first < comm->count) {
        const operation *o = &comm->ops[comm->first];
        size_t bytes = o->count * (o->type == NCCL_U8 ? 1 : mgw_dtype_bytes(dtype_of(o->type)));
        if (!comm->brought) {
            if (!all_at(comm, comm->shared->went)) /* of the one before */
                return;
            comm->number++;
            memcpy(comm->rooms + (size_t)comm->rank * ROOM, o->from, bytes);
            atomic_store(&comm->shared->came[comm->rank], comm->number);
            comm->brought = true;
        }
        if (!all_at(comm, comm->shared->came))
            return;
        take_result(comm, o);
        atomic_store(&comm->shared->went[comm->rank], comm->number);
        comm->brought = false;
        comm->first++;
    }
    comm->first = comm->count = 0;
}

static int add(nccl_comm comm, operation o)
{
    size_t element = o.type == NCCL_U8 ? 1 : mgw_dtype_bytes(dtype_of(o.type));
    if (comm->count == OPS || o.count * element > ROOM)
        return 4;
    comm->ops[comm->count++] = o;
    return depth ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
}

EXPORT int ncclCommGetAsyncError(nccl_comm comm, int *out)
{
    go_on(comm);
    *out = comm->count ? NCCL_IN_PROGRESS : NCCL_SUCCESS;
    return NCCL_SUCCESS;
}

EXPORT int ncclCommFinalize(nccl_comm comm)
{
    (void)comm;
    return NCCL_SUCCESS;
}

EXPORT int ncclCommDestroy(nccl_comm comm)
{
    munmap((void *)comm->shared, sizeof(segment) + (size_t)RANKS * ROOM);
    free(comm);
    return NCCL_SUCCESS;
}

EXPORT int ncclCommAbort(nccl_comm comm)
{
    return ncclCommDestroy(comm);
}

EXPORT int ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

EXPORT int ncclGroupEnd(void)
{
    depth--;
    return NCCL_IN_PROGRESS;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, nccl_comm comm,
                         cuda_stream stream)
{
    (void)stream;
    return add(comm, (operation){from, to, count, type, op, -1, false});
}

EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
                      nccl_comm comm, cuda_stream stream)
{
    (void)stream;
    return add(comm, (operation){from, to, count, type, op, root, false});
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                         nccl_comm comm, cuda_stream stream)
{
    (void)stream;
    return add(comm, (operation){from, to, count, type, NCCL_SUM, root, true});
}
