/* The terminal, if there is one: its width, colours, and progress lines. */
#ifndef MGW_CLI_TERMINAL_H
#define MGW_CLI_TERMINAL_H

#include "cli/command.h"

/* Columns of the terminal on standard output; 0: not a terminal. */
size_t cli_width(void);

/* Whether a stream (STDOUT_FILENO, STDERR_FILENO) is a terminal that shows colours. */
bool cli_has_colour(int stream);

/* Whether this is a worker of a command whose launcher shows its output. */
bool cli_is_told_of(void);

/* Before workers are started: tells them which of their pipes lead to a terminal. */
void cli_share_terminal(void);

/* Progress on standard error: on a terminal, or with --progress. */
typedef struct cli_progress {
    const char *command;
    bool shows;
    bool overwrites; /* a line overwrites the previous one */
    double begun_s;
    double said_s;
} cli_progress;

#define CLI_PROGRESS                                                                               \
    {                                                                                              \
        "progress", 0, NULL, "show progress and the remaining time, even if there is no terminal"  \
    }

void cli_progress_begin(const cli_args *args, cli_progress *progress);

/* Shows the completed share, with a description: "round 2 of 3". Rate-limited. */
void cli_progress_show(cli_progress *progress, double share, const char *what);
void cli_progress_end(cli_progress *progress);

/* Whether this process reports for its job: rank 0, or a single process. */
bool cli_is_first(void);

/* Clears a progress line before something else is written. */
void cli_progress_clear(void);

#endif
