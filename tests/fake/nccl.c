/* NCCL for the fake GPU: a libnccl.so.2 whose workers are processes of one host. Calls return at
 * once; their operations run on the stream, and are polled like those of non-blocking
 * communicators. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/nccl_library.h"
#include "transport/reduce.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))

enum { RANKS = 16, ROOM = 64 << 20, BOX = 1 << 20 };

/* Of the fake driver. */
int cuLaunchHostFunc(cuda_stream stream, void (*call)(void *), void *argument);

/* From one rank to another, a piece at a time: it is full while more was put in than taken out. */
typedef struct box {
    _Atomic uint32_t put;
    _Atomic uint32_t taken;
    size_t bytes; /* of the whole message, so that both ends can be compared */
    char piece[BOX];
} box;

/* In a file without a name, which rank 0's descriptor in /proc leads to. */
typedef struct segment {
    _Atomic uint32_t came[RANKS]; /* operations that the rank has brought its data to */
    _Atomic uint32_t went[RANKS]; /* operations that it has taken the result of */
    box boxes[RANKS][RANKS];      /* by sender and receiver */
} segment;

typedef enum kind { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECEIVE } kind;

typedef struct operation {
    nccl_comm comm;
    kind kind;
    const void *from;
    void *to;
    size_t count; /* of the last two: of one rank's part */
    int type;
    int op;
    int root;               /* or the peer */
    size_t moved;           /* of a message: bytes so far */
    struct operation *next; /* of a group's messages */
} operation;

struct ncclComm {
    segment *shared;
    char *rooms;
    int rank;
    int size;
    uint32_t number;       /* of the operation that the stream is at */
    double free_s;         /* when its own link is, with FAKE_NCCL_RATE */
    _Atomic int under_way; /* operations */
    _Atomic int holders;   /* those, and the caller */
    _Atomic bool ends;     /* the caller waits for them */
    _Atomic bool aborted;
};

static _Thread_local int depth;
static _Thread_local operation *messages; /* of the group */
static _Thread_local cuda_stream messages_on;

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
    comm->holders = 1;
    *out = comm;
    return NCCL_IN_PROGRESS;
}

static void let_go(nccl_comm comm)
{
    if (atomic_fetch_sub(&comm->holders, 1) > 1)
        return;
    munmap((void *)comm->shared, sizeof(segment) + (size_t)RANKS * ROOM);
    free(comm);
}

/* Whether all ranks have come there; false if it was aborted. */
static bool await(const nccl_comm comm, _Atomic uint32_t *numbers)
{
    for (int r = 0; r < comm->size; r++)
        while ((int32_t)(atomic_load(&numbers[r]) - comm->number) < 0) {
            if (atomic_load(&comm->aborted))
                return false;
            nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
        }
    return true;
}

static mgw_dtype dtype_of(int type)
{
    return type == NCCL_F32    ? MGW_F32
           : type == NCCL_F16  ? MGW_F16
           : type == NCCL_BF16 ? MGW_BF16
                               : MGW_F64;
}

static size_t bytes_of(const operation *o)
{
    return o->count * (o->type == NCCL_U8 ? 1 : mgw_dtype_bytes(dtype_of(o->type)));
}

/* Of what a rank brings. */
static size_t brought(const operation *o)
{
    return bytes_of(o) * (o->kind == REDUCE_SCATTER ? (size_t)o->comm->size : 1);
}

static void take_result(nccl_comm comm, const operation *o)
{
    const void *sources[RANKS];
    size_t bytes = bytes_of(o);
    size_t skipped = o->kind == REDUCE_SCATTER ? (size_t)comm->rank * bytes : 0;
    for (int r = 0; r < comm->size; r++)
        sources[r] = comm->rooms + (size_t)r * ROOM + skipped;
    void *target = o->to;
    mgw_op op = o->op == NCCL_AVERAGE ? MGW_AVERAGE : o->op == NCCL_MAX ? MGW_MAX : MGW_SUM;
    if (o->kind == BROADCAST)
        memcpy(o->to, sources[o->root], bytes);
    else if (o->kind == ALL_GATHER)
        for (int r = 0; r < comm->size; r++)
            memcpy((char *)o->to + (size_t)r * bytes, sources[r], bytes);
    else if (o->kind != REDUCE || o->root == comm->rank)
        mgw_reduce(sources, (size_t)comm->size, &target, 1, o->count, dtype_of(o->type), op);
}

/* All bring their data, when they have taken the result before; then all take the result. */
static void meet(nccl_comm comm, const operation *o)
{
    if (!await(comm, comm->shared->went))
        return;
    comm->number++;
    memcpy(comm->rooms + (size_t)comm->rank * ROOM, o->from, brought(o));
    atomic_store(&comm->shared->came[comm->rank], comm->number);
    if (!await(comm, comm->shared->came))
        return;
    take_result(comm, o);
    atomic_store(&comm->shared->went[comm->rank], comm->number);
}

/* ---- Links: FAKE_NCCL_RATE is how many bytes a communicator moves in a second ---- */

/* Takes the link for so many bytes, when it is free; returns until when. With FAKE_NCCL_LINK, all
 * communicators of the process have the same. */
static double take_link(nccl_comm comm, size_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static double shared_s;
    const char *rate = getenv("FAKE_NCCL_RATE");
    if (!rate)
        return 0;
    pthread_mutex_lock(&lock);
    double *free_s = getenv("FAKE_NCCL_LINK") ? &shared_s : &comm->free_s;
    double now_s = mgw_now_s();
    double until_s = (*free_s > now_s ? *free_s : now_s) + (double)bytes / strtod(rate, NULL);
    *free_s = until_s;
    pthread_mutex_unlock(&lock);
    return until_s;
}

/* The operation lasts until then, at least; but not if it was aborted. */
static void stay(nccl_comm comm, double until_s)
{
    while (mgw_now_s() < until_s && !atomic_load(&comm->aborted))
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
}

/* ---- Messages: those of a group go on side by side, those of a pair in their order ---- */

/* Whether it went on. */
static bool move_piece(operation *o)
{
    int rank = o->comm->rank;
    bool sends = o->kind == SEND;
    size_t bytes = bytes_of(o);
    box *b =
        sends ? &o->comm->shared->boxes[rank][o->root] : &o->comm->shared->boxes[o->root][rank];
    bool full = atomic_load(&b->put) != atomic_load(&b->taken);
    size_t length = bytes - o->moved < BOX ? bytes - o->moved : BOX;
    if (sends == full)
        return false;
    if (sends) {
        b->bytes = bytes;
        memcpy(b->piece, (const char *)o->from + o->moved, length);
        atomic_fetch_add(&b->put, 1);
    } else {
        if (b->bytes != bytes) {
            fprintf(stderr, "fake nccl: rank %d gets %zu bytes from rank %d, and expects %zu\n",
                    rank, b->bytes, o->root, bytes);
            abort();
        }
        memcpy((char *)o->to + o->moved, b->piece, length);
        atomic_fetch_add(&b->taken, 1);
    }
    o->moved += length;
    return true;
}

static bool is_behind(const operation *first, const operation *o)
{
    for (; first != o; first = first->next)
        if (first->kind == o->kind && first->root == o->root && first->moved < bytes_of(first))
            return true;
    return false;
}

static void run_messages(void *argument)
{
    operation *first = argument;
    nccl_comm comm = first->comm;
    size_t bytes = 0;
    for (const operation *o = first; o; o = o->next)
        bytes += o->kind == SEND ? bytes_of(o) : 0;
    double until_s = take_link(comm, bytes);
    for (bool left = true; left && !atomic_load(&comm->aborted);) {
        bool moved = false;
        left = false;
        for (operation *o = first; o; o = o->next) {
            if (o->moved < bytes_of(o) && !is_behind(first, o))
                moved = move_piece(o) || moved;
            left = left || o->moved < bytes_of(o);
        }
        if (!moved)
            nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
    }
    stay(comm, until_s);
    for (operation *next = NULL; first; first = next) {
        next = first->next;
        free(first);
    }
    atomic_fetch_sub(&comm->under_way, 1);
    let_go(comm);
}

/* Behind those that the group has. */
static int add_message(operation o, cuda_stream stream)
{
    operation *own = malloc(sizeof *own);
    operation **end = &messages;
    if (!own || !depth || (messages && messages_on != stream)) {
        free(own);
        return 4;
    }
    *own = o;
    while (*end)
        end = &(*end)->next;
    *end = own;
    messages_on = stream;
    return NCCL_SUCCESS;
}

static int send_messages(void)
{
    operation *first = messages;
    messages = NULL;
    if (!first)
        return NCCL_SUCCESS;
    atomic_fetch_add(&first->comm->under_way, 1);
    atomic_fetch_add(&first->comm->holders, 1);
    return cuLaunchHostFunc(messages_on, run_messages, first) ? 1 : NCCL_SUCCESS;
}

static void run_operation(void *argument)
{
    operation *o = argument;
    double until_s = take_link(o->comm, brought(o));
    meet(o->comm, o);
    stay(o->comm, until_s);
    atomic_fetch_sub(&o->comm->under_way, 1);
    let_go(o->comm);
    free(o);
}

static int add(operation o, cuda_stream stream)
{
    operation *own = malloc(sizeof *own);
    if (!own || brought(&o) > ROOM) {
        free(own);
        return 4;
    }
    *own = o;
    atomic_fetch_add(&o.comm->under_way, 1);
    atomic_fetch_add(&o.comm->holders, 1);
    if (cuLaunchHostFunc(stream, run_operation, own))
        return 1;
    return depth ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
}

/* FAKE_NCCL_SLOW: after a call is asked for the first time, it takes so many milliseconds.
 * FAKE_NCCL_BROKEN: every call fails, once it is over. */
EXPORT int ncclCommGetAsyncError(nccl_comm comm, int *out)
{
    static _Thread_local double begun_s;
    const char *slow = getenv("FAKE_NCCL_SLOW");
    begun_s = begun_s > 0 ? begun_s : mgw_now_s();
    bool waits = atomic_load(&comm->ends) && atomic_load(&comm->under_way);
    waits = waits || (slow && mgw_now_s() < begun_s + strtod(slow, NULL) * 1e-3);
    *out = waits ? NCCL_IN_PROGRESS : getenv("FAKE_NCCL_BROKEN") ? 3 : NCCL_SUCCESS;
    begun_s = waits ? begun_s : 0;
    return NCCL_SUCCESS;
}

EXPORT int ncclCommFinalize(nccl_comm comm)
{
    atomic_store(&comm->ends, true);
    return NCCL_IN_PROGRESS;
}

EXPORT int ncclCommDestroy(nccl_comm comm)
{
    let_go(comm);
    return NCCL_SUCCESS;
}

/* What the library is made of, until the process ends. */
static const char *volatile substance = "there";

__attribute__((destructor)) static void unload(void)
{
    substance = NULL;
    if (getenv("FAKE_NCCL_STUCK")) /* who is still in here shall notice */
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
}

/* What is under way ends, without a result. */
EXPORT int ncclCommAbort(nccl_comm comm)
{
    atomic_store(&comm->aborted, true);
    while (getenv("FAKE_NCCL_STUCK") && *substance)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
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
    return depth || !send_messages() ? NCCL_IN_PROGRESS : 1;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, nccl_comm comm,
                         cuda_stream stream)
{
    return add((operation){.comm = comm,
                           .kind = ALL_REDUCE,
                           .from = from,
                           .to = to,
                           .count = count,
                           .type = type,
                           .op = op,
                           .root = 0},
               stream);
}

EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
                             nccl_comm comm, cuda_stream stream)
{
    return add((operation){.comm = comm,
                           .kind = REDUCE_SCATTER,
                           .from = from,
                           .to = to,
                           .count = count,
                           .type = type,
                           .op = op,
                           .root = 0},
               stream);
}

EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, nccl_comm comm,
                         cuda_stream stream)
{
    return add((operation){.comm = comm,
                           .kind = ALL_GATHER,
                           .from = from,
                           .to = to,
                           .count = count,
                           .type = type,
                           .op = NCCL_SUM,
                           .root = 0},
               stream);
}

EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
                      nccl_comm comm, cuda_stream stream)
{
    return add((operation){.comm = comm,
                           .kind = REDUCE,
                           .from = from,
                           .to = to,
                           .count = count,
                           .type = type,
                           .op = op,
                           .root = root},
               stream);
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                         nccl_comm comm, cuda_stream stream)
{
    return add((operation){.comm = comm,
                           .kind = BROADCAST,
                           .from = from,
                           .to = to,
                           .count = count,
                           .type = type,
                           .op = NCCL_SUM,
                           .root = root},
               stream);
}

EXPORT int ncclSend(const void *from, size_t count, int type, int peer, nccl_comm comm,
                    cuda_stream stream)
{
    return add_message(
        (operation){
            .comm = comm, .kind = SEND, .from = from, .count = count, .type = type, .root = peer},
        stream);
}

EXPORT int ncclRecv(void *to, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    return add_message(
        (operation){
            .comm = comm, .kind = RECEIVE, .to = to, .count = count, .type = type, .root = peer},
        stream);
}
