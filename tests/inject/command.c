/* In front of a command or a job (LD_PRELOAD): MGWFBP_INJECT says which calls fail, each in a run
 * of its own; MGWFBP_INJECT_ONE, which one does in one process of a job. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inside.h"

static inject_record *record;

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
    unsigned long counts[INJECT_MODES];
    inject_disarm(counts);
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
 * (rank "-"), the call `at` fails. The file, which is there, tells what came of it. With
 * MGWFBP_INJECT_STACK=key it is the call `at` of those whose stack has this key; 0: none is.
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
    inject_write_down(record);
    atexit(tell_live);
    if (getenv("MGWFBP_INJECT_STACK"))
        inject_by_stack(strtoul(getenv("MGWFBP_INJECT_STACK"), NULL, 0));
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
        inject_write_down(record);
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
