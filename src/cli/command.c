/* Parses the arguments of a command, and runs it. */
#include "cli/command.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/near.h"
#include "cli/terminal.h"
#include "job/interrupt.h"
#include "job/output.h"

const char *cli_value(const cli_args *args, const char *name)
{
    for (size_t i = 0; i < args->command->option_count; i++)
        if (!strcmp(args->command->options[i].name, name))
            return args->values[i];
    return NULL;
}

bool cli_takes_option(const cli_command *command, const char *name)
{
    for (size_t i = 0; i < command->option_count; i++)
        if (!strcmp(command->options[i].name, name))
            return true;
    return false;
}

/* Repeated options are joined: --policy wfbp --policy optimal. */
static mgw_status set_value(char **value, const char *given, mgw_error *error)
{
    size_t before = *value ? strlen(*value) + 1 : 0;
    char *joined = malloc(before + strlen(given) + 1);
    if (!joined)
        return cli_fail(error, "out of memory");
    if (*value)
        sprintf(joined, "%s,%s", *value, given);
    else
        strcpy(joined, given);
    free(*value);
    *value = joined;
    return MGW_OK;
}

enum { LONG_BASE = 256, HELP = LONG_BASE + CLI_OPTIONS_MAX };

static int option_of(const cli_command *command, int code)
{
    for (size_t i = 0; i < command->option_count; i++)
        if (code == LONG_BASE + (int)i || (code < LONG_BASE && code == command->options[i].letter))
            return (int)i;
    return -1;
}

static mgw_status fail_unknown(const cli_command *command, const char *given, mgw_error *error)
{
    char wanted[64];
    char names[CLI_OPTIONS_MAX][48];
    char hint[MGW_NEAR_HINT];
    snprintf(wanted, sizeof wanted, "%.*s", (int)strcspn(given, "="), given);
    mgw_near near = mgw_near_to(wanted);
    for (size_t i = 0; i < command->option_count; i++) {
        snprintf(names[i], sizeof names[i], "--%s", command->options[i].name);
        mgw_near_offer(&near, names[i]);
    }
    return cli_fail(error, "unknown option '%.100s'%s", given, mgw_near_hint(&near, hint));
}

/* Some commands take as an option what others take as an argument. */
static mgw_status fail_surplus(const cli_command *command, const char *given, mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    bool is_cluster =
        cli_takes_option(command, "cluster") && !mgw_cluster_load(given, &cluster, NULL);
    mgw_cluster_destroy(cluster);
    if (is_cluster)
        return cli_fail(error, "too many arguments: write --cluster %.100s", given);
    return cli_fail(error, "too many arguments: '%.100s'", given);
}

/* *help is set if --help was among the options. */
static mgw_status parse(const cli_command *command, int argc, char **argv, cli_args *args,
                        bool *help, mgw_error *error)
{
    struct option longs[CLI_OPTIONS_MAX + 2] = {0};
    char shorts[2 * CLI_OPTIONS_MAX + 4] = ":h";
    if (command->runs_program)
        strcpy(shorts, "+:h");
    for (size_t i = 0; i < command->option_count; i++) {
        const cli_option *option = &command->options[i];
        int takes = option->argument ? required_argument : no_argument;
        longs[i] = (struct option){option->name, takes, NULL, LONG_BASE + (int)i};
        if (option->letter)
            sprintf(shorts + strlen(shorts), "%c%s", option->letter, option->argument ? ":" : "");
    }
    longs[command->option_count] = (struct option){"help", no_argument, NULL, HELP};
    opterr = 0;
    int code = 0;
    while ((code = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (code == HELP || code == 'h') {
            *help = true;
            return MGW_OK;
        }
        if (code == ':')
            return cli_fail(error, "option '%s' needs a value", argv[optind - 1]);
        int index = option_of(command, code);
        if (code == '?' && optopt > 0 && optopt < LONG_BASE)
            return cli_fail(error, "unknown option '-%c'", optopt);
        if (code == '?' || index < 0)
            return fail_unknown(command, argv[optind - 1], error);
        const cli_option *option = &command->options[index];
        if (args->values[index] && option->argument && strcmp(option->argument, "LIST") != 0)
            return cli_fail(error, "option '--%s' is given twice", option->name);
        mgw_status status = set_value(&args->values[index], optarg ? optarg : "", error);
        if (status)
            return status;
    }
    args->positional = argv + optind;
    args->count = argc - optind;
    if (args->count < command->least)
        return cli_fail(error, "%s expected", command->arguments);
    if (args->count > command->most)
        return fail_surplus(command, args->positional[command->most], error);
    return MGW_OK;
}

static mgw_status print_help(const cli_command *command, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    cli_write_help(command, &text);
    mgw_status status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

static void say_error(const cli_command *command, mgw_status status, const mgw_error *error,
                      bool usage)
{
    bool colour = cli_has_colour(STDERR_FILENO);
    cli_progress_clear();
    if (cli_is_told_of()) /* the launcher prints it when it knows who failed first */
        fputs(status == MGW_ERR_PEER || status == MGW_ERR_TIMEOUT ? JOB_FOLLOWS : JOB_LAST_WORD,
              stderr);
    fprintf(stderr, "%smgwfbp %s:%s %s", colour ? "\033[1;31m" : "", command->name,
            colour ? "\033[0m" : "", error->message);
    if (usage)
        fprintf(stderr, " (try 'mgwfbp %s --help')", command->name);
    fputc('\n', stderr);
}

int cli_run(const cli_command *command, int argc, char **argv)
{
    cli_args args = {.command = command, .argv = argv};
    mgw_error error = {0};
    bool help = false;
    mgw_status status = parse(command, argc, argv, &args, &help, &error);
    bool usage = status != MGW_OK;
    if (help)
        status = print_help(command, &error);
    else if (!status)
        status = cli_check_outputs(&args, &error);
    if (!help && !status)
        status = command->run(&args, &error);
    if (status)
        say_error(command, status, &error, usage);
    for (size_t i = 0; i < CLI_OPTIONS_MAX; i++)
        free(args.values[i]);
    int told = job_interrupted();
    return told ? 128 + told : status ? 2 : 0;
}
