/* The man page, from the commands' tables. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

/* The date of the man page: when its text was last changed. */
static const char written_on[] = "2026-11-16";

enum { LINE_WIDTH = 78 };

static void write_character(mgw_text *text, char c)
{
    if (c == '\\')
        mgw_text_append(text, "\\e", 2);
    else if (c == '-')
        mgw_text_append(text, "\\-", 2);
    else
        mgw_text_append(text, &c, 1);
}

static size_t roff_length(const char *word, size_t length)
{
    size_t made = length;
    for (size_t i = 0; i < length; i++)
        made += word[i] == '\\' || word[i] == '-';
    return made;
}

/*
 * Writes text for troff, in short lines: none begins with a control character, and backslashes and
 * hyphens are escaped. A newline starts a paragraph; a sentence ends its line, so that troff spaces
 * it.
 */
static void write_roff(mgw_text *text, const char *words)
{
    size_t column = 0;
    while (*words) {
        size_t length = strcspn(words, " \n");
        size_t made = roff_length(words, length);
        if (column && column + 1 + made > LINE_WIDTH) {
            mgw_text_append(text, "\n", 1);
            column = 0;
        } else if (column) {
            mgw_text_append(text, " ", 1);
            column++;
        }
        if (!column && (*words == '.' || *words == '\''))
            mgw_text_append(text, "\\&", 2);
        for (size_t i = 0; i < length; i++)
            write_character(text, words[i]);
        column += made;
        bool ends = length && strchr(".?!", words[length - 1]) && words[length] == ' ';
        if (words[length] == '\n')
            mgw_text_append(text, "\n.PP\n", 5);
        else if (ends)
            mgw_text_append(text, "\n", 1);
        if (words[length] == '\n' || ends)
            column = 0;
        words += length + (words[length] != '\0');
    }
    if (column)
        mgw_text_append(text, "\n", 1);
}

/* Writes a line without filling. */
static void write_literal(mgw_text *text, const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        write_character(text, line[i]);
    mgw_text_append(text, "\n", 1);
}

/* Writes lines without filling, broken between words if they are too long. */
static void write_examples(mgw_text *text, const char *examples)
{
    mgw_text_printf(text, ".PP\n.nf\n");
    for (const char *line = examples; *line; line += strcspn(line, "\n") + 1) {
        const char *rest = line;
        size_t left = strcspn(rest, "\n");
        while (roff_length(rest, left) > LINE_WIDTH) {
            size_t at = left;
            while (at > 1 && (rest[at - 1] != ' ' || roff_length(rest, at) > LINE_WIDTH - 4))
                at--;
            if (at <= 1)
                break;
            for (size_t i = 0; i < at; i++)
                write_character(text, rest[i]);
            mgw_text_printf(text, "\\e\n    ");
            rest += at;
            left -= at;
        }
        write_literal(text, rest, left);
    }
    mgw_text_printf(text, ".fi\n");
}

static void write_command(const cli_command *command, mgw_text *text)
{
    mgw_text_printf(text, ".SS mgwfbp %s\n.B mgwfbp %s\n", command->name, command->name);
    if (command->runs_program)
        mgw_text_printf(text, ".RI [ options ]\n");
    if (*command->arguments) {
        mgw_text_printf(text, ".I ");
        write_literal(text, command->arguments, strlen(command->arguments));
    }
    if (!command->runs_program)
        mgw_text_printf(text, ".RI [ options ]\n");
    mgw_text_printf(text, ".PP\n");
    write_roff(text, command->details);
    for (size_t i = 0; i <= command->option_count; i++) {
        char label[80];
        cli_option_label(cli_option_at(command, i), label, sizeof label);
        const char *shown = label + strspn(label, " ");
        mgw_text_printf(text, ".TP\n.B ");
        write_literal(text, shown, strlen(shown));
        write_roff(text, cli_option_at(command, i)->help);
    }
}

typedef struct entry {
    const char *name;
    const char *about;
} entry;

static const entry environment[] = {
    {"MGWFBP_TRANSPORT",
     "How workers communicate: shm, mpi, tcp, nccl, self, emulated:A,B or emulated:CLUSTER."},
    {"MGWFBP_POLICY, MGWFBP_CLUSTER, MGWFBP_SERVERS, MGWFBP_WIRE, MGWFBP_DEVICE, MGWFBP_PLAN, "
     "MGWFBP_TRIALS, MGWFBP_PROFILE_STEPS, MGWFBP_REPLAN_STEPS, MGWFBP_REPLAN_PERCENT",
     "Options of the engine, for programs that do not set them."},
    {"MGWFBP_LANES", "How many communicators of NCCL move the parts of a long message at the same "
                     "time, 1 to 8 (default: measured)."},
    {"MGWFBP_DEBUG", "1: the engine checks for mistakes of the program that would go unnoticed."},
    {"MGWFBP_STATS", "1: the engine prints its report to standard error when it is closed."},
    {"MGWFBP_TIMELINE",
     "A file to which the last step of all workers is saved, for Perfetto and report."},
    {"MGWFBP_TIMEOUT", "Seconds after which a worker gives up waiting for another (default 1800)."},
    {"MGWFBP_JOB, MGWFBP_RANK, MGWFBP_SIZE, MGWFBP_ADDRESS",
     "The job that a process belongs to. launch and the commands that start workers set them."},
    {"MGWFBP_SECRET", "A secret that workers which meet over TCP must share."},
    {"MGWFBP_DUMP", "A folder in which a worker that fails or times out writes what it was doing; "
                    "empty: write nothing (default: TMPDIR or /tmp)."},
    {"RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
     "The same, under PyTorch's names; launch sets these as well."},
    {"OMP_NUM_THREADS",
     "Threads of a worker; if it is not set, launch divides the cores among the workers."},
    {"CUDA_DEVICE_MAX_CONNECTIONS",
     "Queues between a process and a GPU; if it is not set, launch sets 32, or fewer under MPS."},
    {"COLUMNS", "The width of the terminal, if it differs from what the terminal reports."},
    {"NO_COLOR", "If set and not empty, nothing is printed in colour or bold."},
    {"TERM", "dumb: the same."},
};

static const entry files[] = {
    {"report.html", "The page written by report, unless --output names another file."},
    {"TRACE", "JSON in the format mgwfbp-trace-1: tensors in the order of the backward pass."},
    {"CLUSTER", "JSON in the format mgwfbp-cluster-1, or the output of nccl-tests or of the OSU "
                "benchmarks: what collectives cost."},
    {"PLAN", "JSON in the format mgwfbp-plan-2: messages, and when each is sent."},
    {"/usr/share/datasets/fashion-mnist", "Images that train reads; --data names another folder."},
    {"/dev/shm/mgwfbp-*", "Memory shared by the workers of a host while they run."},
};

static void write_entries(mgw_text *text, const char *section, const entry *entries, size_t count)
{
    mgw_text_printf(text, ".SH %s\n", section);
    for (size_t i = 0; i < count; i++) {
        mgw_text_printf(text, ".TP\n.B ");
        write_literal(text, entries[i].name, strlen(entries[i].name));
        write_roff(text, entries[i].about);
    }
}

void cli_write_man(mgw_text *text)
{
    mgw_text_printf(text,
                    ".TH MGWFBP 1 %s \"mgwfbp %s\" \"User Commands\"\n"
                    ".SH NAME\nmgwfbp \\- plan merged\\-gradient communication for data\\-parallel "
                    "training\n.SH SYNOPSIS\n.B mgwfbp\n.I COMMAND\n.RI [ arguments ]\n"
                    ".SH DESCRIPTION\n",
                    written_on, mgw_version());
    write_roff(text, cli_about);
    mgw_text_printf(text, ".SH COMMANDS\n");
    for (size_t i = 0; i < cli_command_count; i++)
        write_command(cli_commands[i], text);
    write_entries(text, "ENVIRONMENT", environment, sizeof environment / sizeof *environment);
    write_entries(text, "FILES", files, sizeof files / sizeof *files);
    mgw_text_printf(text, ".SH EXIT STATUS\n");
    write_roff(text,
               "0 on success; 2 for bad usage, bad input, or a file that could not be read or "
               "written; 130 (128 + the signal) after Ctrl-C, when the results so far are printed "
               "and saved. If workers were started, the status of the first that failed, or 128 + "
               "the signal that killed it. Errors are one line on standard error.");
    mgw_text_printf(text, ".SH EXAMPLES\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        write_roff(text, cli_commands[i]->summary);
        write_examples(text, cli_commands[i]->examples);
        if (i + 1 < cli_command_count)
            mgw_text_printf(text, ".PP\n");
    }
}
