/* The terminal that is looked at, if there is one: its width, colours, how far the work is. */
#ifndef MGW_CLI_TERMINAL_H
#define MGW_CLI_TERMINAL_H

#include "cli/command.h"

/* Columns of the terminal that standard output is; 0: it is none. */
size_t cli_width(void);

/* Whether a stream (STDOUT_FILENO, STDERR_FILENO) is a terminal that shows colours. */
bool cli_has_colour(int stream);

/* Whether this is a worker of a command, whose launcher shows what it writes. */
bool cli_is_told_of(void);

/* Before workers are started, which write into pipes: lets them know what those lead to. */
void cli_share_terminal(void);

/* How far the work is, on standard error: on a terminal, or with --progress. */
typedef struct cli_progress {
    const char *command;
    bool shows;
    bool overwrites; /* a line takes the place of the one before */
    double begun_s;
    double said_s;
} cli_progress;

#define CLI_PROGRESS                                                                               \
    {                                                                                              \
        "progress", 0, NULL, "show progress and the remaining time, even if there is no terminal"  \
    }

void cli_progress_begin(const cli_args *args, cli_progress *progress);

/* The share that is done, and a word on what: "round 2 of 3". Shown now and then. */
void cli_progress_show(cli_progress *progress, double share, const char *what);
void cli_progress_end(cli_progress *progress);

/* Whether this process is the one of its job that tells: rank 0, or alone. */
bool cli_is_first(void);

/* Takes away a line that is shown, before something else is written. */
void cli_progress_clear(void);

#endif
