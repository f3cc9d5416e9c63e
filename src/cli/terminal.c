/* The terminal: its width, colours, and progress lines. */
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

/* Our workers write to pipes; this variable lists the streams that lead to a terminal: "12". */
static const char shared[] = "MGWFBP_TERMINAL";

static bool is_terminal(int stream)
{
    const char *streams = getenv(shared);
    return streams ? strchr(streams, '0' + stream) != NULL : isatty(stream);
}

enum { NARROWEST = 20 };

static size_t find_width(void)
{
    const char *columns = getenv("COLUMNS");
    struct winsize size;
    unsigned long width = columns ? strtoul(columns, NULL, 10) : 0;
    if (width == 0 && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size))
        width = size.ws_col;
    return width == 0 ? 80 : width < NARROWEST ? NARROWEST : width;
}

size_t cli_width(void)
{
    return is_terminal(STDOUT_FILENO) ? find_width() : 0;
}

bool cli_has_colour(int stream)
{
    const char *none = getenv("NO_COLOR");
    const char *kind = getenv("TERM");
    return is_terminal(stream) && !(none && *none) && kind && *kind && strcmp(kind, "dumb") != 0;
}

static bool is_launcher;

bool cli_is_told_of(void)
{
    return getenv(shared) && !is_launcher;
}

void cli_share_terminal(void)
{
    char streams[3] = "";
    char columns[24];
    for (int stream = STDOUT_FILENO; stream <= STDERR_FILENO; stream++)
        if (is_terminal(stream))
            streams[strlen(streams)] = (char)('0' + stream);
    snprintf(columns, sizeof columns, "%zu", find_width());
    setenv("COLUMNS", columns, 1);
    setenv(shared, streams, 1);
    is_launcher = true;
}

/* ---- Progress ---- */

/* Seconds between lines: if they overwrite each other, and if they do not. */
static const double often_s = 0.2;
static const double seldom_s = 1;

/* The remaining time is shown after this many seconds. */
static const double unknown_s = 1;

static bool is_shown; /* a line that will be overwritten */

void cli_progress_begin(const cli_args *args, cli_progress *progress)
{
    bool overwrites = is_terminal(STDERR_FILENO);
    *progress = (cli_progress){.command = args->command->name,
                               .shows = overwrites || cli_value(args, "progress"),
                               .overwrites = overwrites,
                               .begun_s = mgw_now_s()};
    progress->said_s = progress->begun_s; /* short work needs no progress line */
}

static void write_left(double left_s, char *out, size_t size)
{
    unsigned long seconds = (unsigned long)(left_s < 1e9 ? left_s + 0.5 : 1e9);
    if (seconds < 100)
        snprintf(out, size, "%lu s left", seconds);
    else if (seconds < 100 * 60)
        snprintf(out, size, "%lu min left", (seconds + 30) / 60);
    else
        snprintf(out, size, "%lu h %lu min left", seconds / 3600, seconds % 3600 / 60);
}

void cli_progress_show(cli_progress *p, double share, const char *what)
{
    double now_s = mgw_now_s();
    if (!p->shows || now_s - p->said_s < (p->overwrites ? often_s : seldom_s))
        return;
    p->said_s = now_s;
    char left[48] = "";
    double spent_s = now_s - p->begun_s;
    if (share > 0 && spent_s > unknown_s) {
        strcpy(left, ", ");
        write_left(spent_s * (1 - share) / share, left + 2, sizeof left - 2);
    }
    fprintf(stderr, "mgwfbp %s: %s, %.0f%%%s%s", p->command, what, 100 * share, left,
            p->overwrites ? "\033[K\r" : "\n");
    fflush(stderr);
    is_shown = p->overwrites;
}

bool cli_is_first(void)
{
    static const char *const ranks[] = {"MGWFBP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "PMIX_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const char *rank = getenv(ranks[i]);
        if (rank)
            return !strcmp(rank, "0");
    }
    return true;
}

void cli_progress_clear(void)
{
    if (!is_shown)
        return;
    fputs("\033[K\r", stderr);
    fflush(stderr);
    is_shown = false;
}

void cli_progress_end(cli_progress *progress)
{
    cli_progress_clear();
    progress->shows = false;
}
