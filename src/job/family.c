/* All descendant processes of a job: adopts orphans, and ends them. */
#include "job/family.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static const double patience_s = 2;
static const double give_up_s = 10; /* processes that survive this long hang in the kernel */

/* Children that existed before: with `exec mgwfbp launch … > >(tee log)`, the shell's children
 * become ours. */
enum { STRANGERS_MAX = 64 };
static pid_t strangers[STRANGERS_MAX];
static size_t stranger_count;

/* The parent of a process, given its pid as text; 0: the process is gone. */
static pid_t parent_of(const char *number)
{
    char path[300];
    char line[512];
    snprintf(path, sizeof path, "/proc/%s/stat", number);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        fclose(file);
    line[got] = '\0';
    const char *end = strrchr(line, ')'); /* end of its name, which may contain anything */
    int parent = 0;
    char state = 0;
    return end && sscanf(end + 1, " %c %d", &state, &parent) == 2 ? parent : 0;
}

static bool is_stranger(pid_t child)
{
    size_t i = 0;
    while (i < stranger_count && strangers[i] != child)
        i++;
    return i < stranger_count;
}

/* Calls `act` for all children except strangers. Returns their number; -1: unknown. */
static int each_child(void (*act)(pid_t child, const void *context), const void *context)
{
    DIR *all = opendir("/proc");
    const struct dirent *entry = NULL;
    int count = all ? 0 : -1;
    while (all && (entry = readdir(all))) {
        pid_t child = (pid_t)strtol(entry->d_name, NULL, 10);
        if (!isdigit((unsigned char)entry->d_name[0]) || parent_of(entry->d_name) != getpid() ||
            is_stranger(child))
            continue;
        act(child, context);
        count++;
    }
    if (all)
        closedir(all);
    return count;
}

static void note_stranger(pid_t child, const void *unused)
{
    (void)unused;
    if (stranger_count < STRANGERS_MAX)
        strangers[stranger_count++] = child;
}

void family_adopt(void)
{
    stranger_count = 0;
    each_child(note_stranger, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void end_child(pid_t child, const void *at_once)
{
    kill(child, *(const bool *)at_once ? SIGKILL : SIGTERM);
    kill(child, SIGCONT); /* a stopped process would not handle the signal */
}

void family_end(bool at_once)
{
    double begun_s = mgw_now_s();
    double pause_s = 1e-3;
    for (;;) {
        pid_t ended = 0;
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
            continue;
        double since_s = mgw_now_s() - begun_s;
        bool kills = at_once || since_s > patience_s;
        if (ended < 0 || since_s > give_up_s || each_child(end_child, &kills) == 0)
            return;
        nanosleep(&(struct timespec){.tv_nsec = (long)(pause_s * 1e9)}, NULL);
        pause_s = pause_s < 0.05 ? 2 * pause_s : pause_s;
    }
}
