/*
 * Calls that fail on purpose. Defines what the library calls of the C library, and passes it on
 * unless it is its turn to fail. Linked into a test, or put in front of the command (LD_PRELOAD),
 * where MGWFBP_INJECT says which calls fail, each in a run of its own.
 */
#include "inject.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const inject_mode_names[] = {"nothing", "memory", "system", "interrupt", "short"};

/* ---- Whose calls count ---- */

enum { OBJECTS = 16 };

static struct {
    uintptr_t begin, end, base;
    char name[64];
} objects[OBJECTS];
static size_t object_count;
static const char *const *wanted;

static int note_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    bool is_wanted = false;
    for (const char *const *w = wanted; *w; w++)
        is_wanted |= **w ? strstr(name, *w) != NULL : !*info->dlpi_name;
    for (int i = 0; is_wanted && i < info->dlpi_phnum && object_count < OBJECTS; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        objects[object_count].begin = begin;
        objects[object_count].end = begin + part->p_memsz;
        objects[object_count].base = info->dlpi_addr;
        strncpy(objects[object_count++].name, *name ? name : "program", 63);
    }
    return 0;
}

/* -1: nobody we look at. */
static int object_of(const void *caller)
{
    for (size_t i = 0; i < object_count; i++)
        if ((uintptr_t)caller >= objects[i].begin && (uintptr_t)caller < objects[i].end)
            return (int)i;
    return -1;
}

/* ---- Counting ---- */

/* What is known of one run of a command, also of one that crashed. The first is counted by all
 * processes that it forks. */
typedef struct run_record {
    atomic_ulong counts[INJECT_MODES];
    long live; /* allocations that were not freed at exit */
    char where[128];
    char leak[128];
} run_record;

static run_record *record;

static _Atomic inject_mode armed;
static atomic_ulong own_counts[INJECT_MODES];
static atomic_ulong *counted = own_counts;
static unsigned long turn;
static _Atomic(const void *) hit_caller;
static const char *hit_name;

static void describe(const char *name, const void *caller, char *where, size_t size)
{
    int object = object_of(caller);
    snprintf(where, size, "%s from %s+0x%lx", name, object < 0 ? "?" : objects[object].name,
             (unsigned long)((uintptr_t)caller - (object < 0 ? 0 : objects[object].base)));
}

static bool fails(inject_mode mode, const char *name, const void *caller)
{
    inject_mode now_armed = atomic_load_explicit(&armed, memory_order_relaxed);
    int object = now_armed == INJECT_NOTHING ? -1 : object_of(caller);
    if (object < 0)
        return false;
    bool now = atomic_fetch_add(&counted[mode], 1) + 1 == turn && mode == now_armed;
    if (!now)
        return false;
    hit_name = name;
    atomic_store(&hit_caller, caller);
    if (record) /* it may crash next */
        describe(name, caller, record->where, sizeof record->where);
    return true;
}

void inject_arm(inject_mode mode, unsigned long at, const char *const *whose)
{
    wanted = whose;
    object_count = 0;
    dl_iterate_phdr(note_object, NULL);
    for (int m = 0; m < INJECT_MODES; m++)
        atomic_store(&counted[m], 0);
    atomic_store(&hit_caller, NULL);
    turn = at;
    atomic_store(&armed, mode);
}

void inject_disarm(unsigned long counts[INJECT_MODES])
{
    atomic_store(&armed, INJECT_NOTHING);
    for (int m = 0; m < INJECT_MODES; m++)
        counts[m] = atomic_load(&counted[m]);
}

bool inject_hit(char *where, size_t size)
{
    const void *caller = atomic_load(&hit_caller);
    if (caller)
        describe(hit_name, caller, where, size);
    return caller != NULL;
}

/* What comes next in the order of libraries; while it is looked for, nothing is there yet. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!next)                                                                                     \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

#define CALLER __builtin_return_address(0)

/* ---- What is allocated ---- */

enum { TABLE = 1 << 18 };

static struct {
    void *at;
    const void *caller;
} table[TABLE];
static long live;
static atomic_flag table_lock = ATOMIC_FLAG_INIT;

static size_t slot_of(const void *at)
{
    return (size_t)(((uintptr_t)at * 0x9e3779b97f4a7c15u) >> 46);
}

static void lock_table(void)
{
    while (atomic_flag_test_and_set(&table_lock))
        continue;
}

/* Those that are made while calls are counted, by whom they are counted. */
static void *note(void *made, const void *caller)
{
    if (!made || atomic_load(&armed) == INJECT_NOTHING || object_of(caller) < 0)
        return made;
    lock_table();
    size_t i = slot_of(made);
    for (size_t tries = 0; table[i].at && table[i].at != (void *)1 && tries < TABLE; tries++)
        i = (i + 1) % TABLE;
    table[i].at = made;
    table[i].caller = caller;
    live++;
    atomic_flag_clear(&table_lock);
    return made;
}

/* A hole is marked, so that what lies behind it is found. */
static void forget(const void *at)
{
    if (!at || !live)
        return;
    lock_table();
    for (size_t i = slot_of(at), tries = 0; table[i].at && tries < TABLE;
         i = (i + 1) % TABLE, tries++)
        if (table[i].at == at) {
            table[i].at = (void *)1;
            live--;
            break;
        }
    atomic_flag_clear(&table_lock);
}

long inject_live(char *where, size_t size)
{
    for (size_t i = 0; i < TABLE; i++)
        if ((uintptr_t)table[i].at > 1)
            describe("memory", table[i].caller, where, size);
    return live;
}

/* dlsym itself may allocate a little. */
static char early[65536];
static size_t early_used;

static void *allocate_early(size_t size)
{
    void *made = early + early_used;
    early_used += (size + 15) / 16 * 16;
    return early_used <= sizeof early ? made : NULL;
}

static bool is_early(const void *at)
{
    return (const char *)at >= early && (const char *)at < early + sizeof early;
}

#define MEMORY(name)                                                                               \
    if (fails(INJECT_MEMORY, name, CALLER)) {                                                      \
        errno = ENOMEM;                                                                            \
        return NULL;                                                                               \
    }

void *malloc(size_t size)
{
    static void *(*next)(size_t);
    static bool looking;
    if (!next && looking)
        return allocate_early(size);
    if (!next) {
        looking = true;
        *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    }
    MEMORY("malloc")
    return note(next(size), CALLER);
}

void *calloc(size_t count, size_t size)
{
    static void *(*next)(size_t, size_t);
    static bool looking;
    if (!next && looking)
        return allocate_early(count * size);
    if (!next) {
        looking = true;
        *(void **)&next = dlsym(RTLD_NEXT, "calloc");
    }
    MEMORY("calloc")
    return note(next(count, size), CALLER);
}

void *realloc(void *at, size_t size)
{
    NEXT(realloc);
    MEMORY("realloc")
    forget(at);
    return note(next(at, size), CALLER);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    NEXT(aligned_alloc);
    MEMORY("aligned_alloc")
    return note(next(alignment, size), CALLER);
}

void free(void *at)
{
    static void (*next)(void *);
    static bool looking;
    if (is_early(at) || (!next && looking)) /* looking for it frees a message */
        return;
    if (!next) {
        looking = true;
        *(void **)&next = dlsym(RTLD_NEXT, "free");
    }
    forget(at);
    next(at);
}

char *strdup(const char *text)
{
    NEXT(strdup);
    MEMORY("strdup")
    return note(next(text), CALLER);
}

char *strndup(const char *text, size_t most)
{
    NEXT(strndup);
    MEMORY("strndup")
    return note(next(text, most), CALLER);
}

int asprintf(char **out, const char *format, ...)
{
    va_list arguments;
    if (fails(INJECT_MEMORY, "asprintf", CALLER))
        return -1;
    va_start(arguments, format);
    int length = vasprintf(out, format, arguments);
    va_end(arguments);
    if (length >= 0)
        note(*out, CALLER);
    return length;
}

int setenv(const char *name, const char *value, int overwrite)
{
    NEXT(setenv);
    if (fails(INJECT_MEMORY, "setenv", CALLER)) {
        errno = ENOMEM;
        return -1;
    }
    return next(name, value, overwrite);
}

DIR *opendir(const char *path)
{
    NEXT(opendir);
    MEMORY("opendir")
    return next(path);
}

char *realpath(const char *path, char *out)
{
    NEXT(realpath);
    MEMORY("realpath")
    char *made = next(path, out);
    return out ? made : note(made, CALLER);
}

/* ---- What the system is asked for ---- */

#define SYSTEM(name, code)                                                                         \
    NEXT(name);                                                                                    \
    if (fails(INJECT_SYSTEM, #name, CALLER)) {                                                     \
        errno = code;                                                                              \
        return -1;                                                                                 \
    }

#define INTERRUPTED(name, code)                                                                    \
    SYSTEM(name, code)                                                                             \
    if (fails(INJECT_INTERRUPT, #name, CALLER)) {                                                  \
        errno = EINTR;                                                                             \
        return -1;                                                                                 \
    }

/* Calls that return what went wrong. */
#define REFUSED(name, code)                                                                        \
    NEXT(name);                                                                                    \
    if (fails(INJECT_SYSTEM, #name, CALLER))                                                       \
        return code;

#define CUT(name, bytes)                                                                           \
    if (bytes > 1 && fails(INJECT_SHORT, #name, CALLER))                                           \
        bytes = 1;

ssize_t read(int fd, void *data, size_t bytes)
{
    INTERRUPTED(read, EIO)
    CUT(read, bytes)
    return next(fd, data, bytes);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    INTERRUPTED(write, ENOSPC)
    CUT(write, bytes)
    return next(fd, data, bytes);
}

/* The system never cuts a message that fits one page between processes of one host. */
static bool is_local(int fd)
{
    int domain = 0;
    socklen_t length = sizeof domain;
    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) && domain == AF_UNIX;
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    INTERRUPTED(send, ECONNRESET)
    if (!is_local(fd))
        CUT(send, bytes)
    return next(fd, data, bytes, flags);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    INTERRUPTED(recv, ECONNRESET)
    if (!is_local(fd))
        CUT(recv, bytes)
    return next(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    INTERRUPTED(sendmsg, ECONNRESET)
    return next(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    INTERRUPTED(recvmsg, ECONNRESET)
    return next(fd, message, flags);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    INTERRUPTED(open, EMFILE)
    return next(path, flags, mode);
}

/* It closes all the same: who would close again could close another's. */
int close(int fd)
{
    NEXT(close);
    int result = next(fd);
    if (fails(INJECT_SYSTEM, "close", CALLER)) {
        errno = EIO;
        return -1;
    }
    return result;
}

int fsync(int fd)
{
    SYSTEM(fsync, EIO)
    return next(fd);
}

int fstat(int fd, struct stat *out)
{
    SYSTEM(fstat, EIO)
    return next(fd, out);
}

int stat(const char *path, struct stat *out)
{
    SYSTEM(stat, EACCES)
    return next(path, out);
}

int rename(const char *from, const char *to)
{
    SYSTEM(rename, EACCES)
    return next(from, to);
}

int fchmod(int fd, mode_t mode)
{
    SYSTEM(fchmod, EPERM)
    return next(fd, mode);
}

int ftruncate(int fd, off_t size)
{
    SYSTEM(ftruncate, ENOSPC)
    return next(fd, size);
}

int memfd_create(const char *name, unsigned flags)
{
    SYSTEM(memfd_create, EMFILE)
    return next(name, flags);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    NEXT(mmap);
    if (fails(INJECT_SYSTEM, "mmap", CALLER)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return next(at, bytes, protection, flags, fd, offset);
}

pid_t fork(void)
{
    SYSTEM(fork, EAGAIN)
    return next();
}

int pipe2(int ends[2], int flags)
{
    SYSTEM(pipe2, EMFILE)
    return next(ends, flags);
}

int openpty(int *here, int *there, char *name, const struct termios *how,
            const struct winsize *size)
{
    SYSTEM(openpty, ENOENT)
    return next(here, there, name, how, size);
}

int signalfd(int fd, const sigset_t *mask, int flags)
{
    SYSTEM(signalfd, EMFILE)
    return next(fd, mask, flags);
}

int link(const char *from, const char *to)
{
    SYSTEM(link, EPERM)
    return next(from, to);
}

int socket(int domain, int type, int protocol)
{
    SYSTEM(socket, EMFILE)
    return next(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int fds[2])
{
    SYSTEM(socketpair, EMFILE)
    return next(domain, type, protocol, fds);
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    SYSTEM(bind, EADDRINUSE)
    return next(fd, address, length);
}

int listen(int fd, int backlog)
{
    SYSTEM(listen, EADDRINUSE)
    return next(fd, backlog);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    INTERRUPTED(accept4, EMFILE)
    return next(fd, address, length, flags);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    SYSTEM(connect, ECONNREFUSED)
    return next(fd, address, length);
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
    SYSTEM(getsockopt, ENOBUFS)
    return next(fd, level, option, value, length);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    SYSTEM(setsockopt, ENOBUFS)
    return next(fd, level, option, value, length);
}

int shutdown(int fd, int how)
{
    SYSTEM(shutdown, ENOTCONN)
    return next(fd, how);
}

int poll(struct pollfd *all, nfds_t count, int timeout_ms)
{
    INTERRUPTED(poll, ENOMEM)
    return next(all, count, timeout_ms);
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **out)
{
    REFUSED(getaddrinfo, EAI_MEMORY)
    return next(host, port, hints, out);
}

ssize_t getrandom(void *data, size_t bytes, unsigned flags)
{
    INTERRUPTED(getrandom, EIO)
    if (bytes > 256) /* fewer are never cut */
        CUT(getrandom, bytes)
    return next(data, bytes, flags);
}

#define STREAM(name, result)                                                                       \
    NEXT(name);                                                                                    \
    if (fails(INJECT_SYSTEM, #name, CALLER)) {                                                     \
        errno = EIO;                                                                               \
        return result;                                                                             \
    }

FILE *fopen(const char *path, const char *mode)
{
    STREAM(fopen, NULL)
    return next(path, mode);
}

FILE *fdopen(int fd, const char *mode)
{
    STREAM(fdopen, NULL)
    return next(fd, mode);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *file)
{
    if (file == stderr) { /* what went wrong is told there, if that works */
        NEXT(fwrite);
        return next(data, size, count, file);
    }
    STREAM(fwrite, 0)
    return next(data, size, count, file);
}

int fflush(FILE *file)
{
    STREAM(fflush, EOF)
    return next(file);
}

/* Waiting on a futex. */
long syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    INTERRUPTED(syscall, EINVAL)
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int sem_wait(sem_t *semaphore)
{
    NEXT(sem_wait);
    if (fails(INJECT_INTERRUPT, "sem_wait", CALLER)) {
        errno = EINTR;
        return -1;
    }
    return next(semaphore);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    NEXT(sem_clockwait);
    if (fails(INJECT_INTERRUPT, "sem_clockwait", CALLER)) {
        errno = EINTR;
        return -1;
    }
    return next(semaphore, clock, until);
}

int sem_init(sem_t *semaphore, int shared, unsigned value)
{
    SYSTEM(sem_init, ENOSPC)
    return next(semaphore, shared, value);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    REFUSED(pthread_create, EAGAIN)
    return next(thread, attributes, run, argument);
}

int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    REFUSED(pthread_mutex_init, ENOMEM)
    return next(mutex, attributes);
}

int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    REFUSED(pthread_cond_init, ENOMEM)
    return next(condition, attributes);
}

/* ---- In front of a command ---- */

static void end_run(void)
{
    unsigned long counts[INJECT_MODES];
    inject_disarm(counts);
    inject_hit(record->where, sizeof record->where);
}

/* In a folder of its own, with its output beside that. */
static void begin_run(inject_mode mode, unsigned long at)
{
    static const char *const all[] = {"libmgwfbp", "libjansson", "", NULL};
    char name[32];
    snprintf(name, sizeof name, "%lu.out", at);
    int out = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    snprintf(name, sizeof name, "%lu.err", at);
    int err = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    snprintf(name, sizeof name, "%lu", at);
    if (mkdir(name, 0777) || chdir(name) || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(98);
    close(out);
    close(err);
    atexit(end_run);
    inject_arm(mode, at, all);
}

/* Its exit status; with a limit, for what hangs. */
static int await_run(pid_t child)
{
    int status = 0;
    for (int ms = 0; ms < 60000; ms++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        usleep(1000);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1000;
}

static void tell_live(void)
{
    atomic_store(&armed, INJECT_NOTHING);
    record->live = inject_live(record->leak, sizeof record->leak);
}

/* As which rank of a job this process was started; null: it is none, but may start one. */
static const char *own_rank(void)
{
    const char *rank = getenv("MGWFBP_RANK");
    rank = rank ? rank : getenv("OMPI_COMM_WORLD_RANK");
    return rank ? rank : getenv("PMI_RANK");
}

/*
 * MGWFBP_INJECT_ONE=mode:at:rank:file in front of a job: in that rank, or in what starts the job
 * (rank "-"), the call `at` fails. The file, which is there, tells what came of it.
 */
static void begin_one(const char *given)
{
    static const char *const command[] = {"libmgwfbp", "libjansson", "", NULL};
    static const char *const library[] = {"libmgwfbp", "libjansson", NULL};
    char name[32], rank[16], file[4000];
    unsigned long at = 0;
    int mode = 1;
    const char *own = own_rank();
    if (sscanf(given, "%31[a-z]:%lu:%15[^:]:%3999s", name, &at, rank, file) != 4 ||
        strcmp(own ? own : "-", rank) != 0)
        return;
    while (mode < INJECT_MODES - 1 && strcmp(name, inject_mode_names[mode]) != 0)
        mode++;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    record = fd < 0 || ftruncate(fd, sizeof *record)
                 ? MAP_FAILED
                 : mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (record == MAP_FAILED)
        _exit(97);
    close(fd);
    counted = record->counts;
    atexit(tell_live);
    inject_arm((inject_mode)mode, at, getenv("MGWFBP_INJECT_LIBRARY") ? library : command);
}

/*
 * MGWFBP_INJECT=mode:first:step:last in front of a command runs it once for each of these numbers,
 * in a child that begins where main does, in the folder MGWFBP_INJECT_FOLDER; and says in
 * mode.first.log there how each ended.
 */
__attribute__((constructor)) static void begin(void)
{
    const char *given = getenv("MGWFBP_INJECT");
    const char *folder = getenv("MGWFBP_INJECT_FOLDER");
    char name[64];
    unsigned long first = 0, step = 1, last = 0;
    int mode = 1;
    if (getenv("MGWFBP_INJECT_ONE"))
        begin_one(getenv("MGWFBP_INJECT_ONE"));
    if (!given || !folder || chdir(folder) ||
        sscanf(given, "%31[a-z]:%lu:%lu:%lu", name, &first, &step, &last) != 4)
        return;
    while (mode < INJECT_MODES && strcmp(name, inject_mode_names[mode]) != 0)
        mode++;
    unsetenv("MGWFBP_INJECT");
    snprintf(name, sizeof name, "%s.%lu.log", inject_mode_names[mode], first);
    FILE *log = fopen(name, "w");
    record = mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!log || record == MAP_FAILED)
        _exit(97);
    for (unsigned long at = first; at <= last; at += step) {
        memset(record, 0, sizeof *record);
        counted = record->counts;
        pid_t child = fork();
        if (child == 0) {
            begin_run((inject_mode)mode, at);
            return;
        }
        int code = await_run(child);
        fprintf(log, "%lu %d", at, code);
        for (int m = 1; m < INJECT_MODES; m++)
            fprintf(log, " %lu", atomic_load(&record->counts[m]));
        fprintf(log, " %s\n", record->where);
        fflush(log);
    }
    _exit(0);
}
