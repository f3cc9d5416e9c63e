/* The mgwfbp command: finds and runs the subcommand. */
#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "cli/command.h"

const cli_command *const cli_commands[] = {
    &cli_advise, &cli_plan, &cli_simulate, &cli_replay, &cli_train, &cli_trace, &cli_calibrate,
    &cli_launch, &cli_show, &cli_report,   &cli_serve,  &cli_fit,   &cli_list};
const size_t cli_command_count = sizeof cli_commands / sizeof *cli_commands;

static const cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < cli_command_count; i++)
        if (!strcmp(cli_commands[i]->name, name))
            return cli_commands[i];
    return NULL;
}

static void write_version(mgw_text *text)
{
    mgw_text_printf(text, "mgwfbp %s\n", mgw_version());
}

/* Options that can be given instead of a command. */
static const struct {
    const char *option;
    void (*write)(mgw_text *text);
} answers[] = {{"--help", cli_write_usage},  {"-h", cli_write_usage},
               {"--version", write_version}, {"-v", write_version},
               {"-V", write_version},        {"version", write_version},
               {"--man", cli_write_man},     {"--bash-completion", cli_write_completion}};

static int answer(void (*write)(mgw_text *text))
{
    mgw_text text;
    mgw_text_init(&text);
    write(&text);
    mgw_error error;
    mgw_status status = cli_print(&text, &error);
    if (status)
        fprintf(stderr, "mgwfbp: %s\n", error.message);
    mgw_text_fini(&text);
    return status ? 2 : 0;
}

static int run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (!strcmp(name, answers[i].option))
            return answer(answers[i].write);
    if (!strcmp(name, "help")) {
        const cli_command *topic = argc > 2 ? find_command(argv[2]) : NULL;
        char *help[] = {argv[0], "--help", NULL};
        if (topic || argc == 2)
            return topic ? cli_run(topic, 2, help) : answer(cli_write_usage);
        name = argv[2];
    }
    const cli_command *command = find_command(name);
    if (!command) {
        char hint[MGW_NEAR_HINT];
        mgw_near near = mgw_near_to(name);
        for (size_t i = 0; i < cli_command_count; i++)
            mgw_near_offer(&near, cli_commands[i]->name);
        mgw_near_hint(&near, hint);
        fprintf(stderr, "mgwfbp: unknown command '%.100s'%s\n", name,
                *hint ? hint : "; 'mgwfbp --help' lists all commands");
        return 2;
    }
    return cli_run(command, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    return cli_run_on_stack(run, argc, argv);
}
