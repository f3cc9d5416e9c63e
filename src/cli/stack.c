/* Provides a larger stack if the system's limit is too small for the libraries we use. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "cli/command.h"

enum { LEAST = 1 << 20, MADE = 8 << 20 };

typedef struct start {
    int (*run)(int argc, char **argv);
    int argc;
    char **argv;
    sigset_t signals;
    int result;
} start;

static void *run_there(void *argument)
{
    start *s = argument;
    pthread_sigmask(SIG_SETMASK, &s->signals, NULL);
    s->result = s->run(s->argc, s->argv);
    return NULL;
}

int cli_run_on_stack(int (*run)(int argc, char **argv), int argc, char **argv)
{
    struct rlimit limit;
    pthread_attr_t large;
    pthread_t thread;
    start s = {.run = run, .argc = argc, .argv = argv, .result = 2};
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= LEAST || pthread_attr_init(&large))
        return run(argc, argv);
    /* Threads of libraries get this size, too. */
    bool set = !pthread_attr_setstacksize(&large, MADE) && !pthread_setattr_default_np(&large);
    pthread_attr_destroy(&large);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &s.signals); /* they are for the command's thread */
    if (set && !pthread_create(&thread, NULL, run_there, &s))
        pthread_join(thread, NULL);
    else
        run_there(&s);
    return s.result;
}
