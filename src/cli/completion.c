/* Bash completion, from the commands' tables: offers only what a command takes at the cursor. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/takes.h"

/* Calls `visit` once for each distinct option of all commands. */
static void each_option(mgw_text *text, void (*visit)(mgw_text *text, const cli_option *option))
{
    for (size_t i = 0; i < cli_command_count; i++)
        for (size_t k = 0; k < cli_commands[i]->option_count; k++) {
            const cli_option *option = &cli_commands[i]->options[k];
            bool seen = false;
            for (size_t j = 0; j < i && !seen; j++)
                for (size_t l = 0; l < cli_commands[j]->option_count && !seen; l++) {
                    const cli_option *other = &cli_commands[j]->options[l];
                    seen = !strcmp(other->name, option->name) && other->letter == option->letter &&
                           cli_option_takes(other) == cli_option_takes(option);
                }
            if (!seen)
                visit(text, option);
        }
}

static void write_label(mgw_text *text, const cli_option *option, const char *between)
{
    mgw_text_printf(text, "--%s", option->name);
    if (option->letter)
        mgw_text_printf(text, "%s-%c", between, option->letter);
}

static void write_valued(mgw_text *text, const cli_option *option)
{
    if (!option->argument)
        return;
    write_label(text, option, " ");
    mgw_text_printf(text, " ");
}

static void write_takes(mgw_text *text, const cli_takes *takes)
{
    if (takes->words)
        mgw_text_printf(text, " words=\"%s\"", takes->words);
    if (takes->files)
        mgw_text_printf(text, "%s files=1", takes->words ? ";" : "");
    if (takes->lists)
        mgw_text_printf(text, "; list=1");
}

static void write_value_case(mgw_text *text, const cli_option *option)
{
    const cli_takes *takes = cli_option_takes(option);
    if (!takes)
        return;
    mgw_text_printf(text, "        ");
    write_label(text, option, "|");
    mgw_text_printf(text, ")");
    write_takes(text, takes);
    mgw_text_printf(text, " ;;\n");
}

/* "[traces|clusters]" are words; the table has all other arguments. */
static void write_argument(mgw_text *text, const char *argument)
{
    char copy[120];
    snprintf(copy, sizeof copy, "%s", argument + (*argument == '['));
    copy[strcspn(copy, "]")] = '\0';
    const cli_takes *takes = cli_argument_takes(copy);
    if (takes) {
        write_takes(text, takes);
    } else if (islower((unsigned char)*copy)) {
        for (char *bar = copy; (bar = strchr(bar, '|'));)
            *bar = ' ';
        mgw_text_printf(text, " words=\"%s\"", copy);
    }
}

/* The arguments in order; the last may be repeated. */
static void write_arguments(mgw_text *text, const cli_command *command)
{
    char copy[200];
    snprintf(copy, sizeof copy, "%s", command->arguments);
    char *rest = *copy ? copy : NULL;
    for (int at = 0; rest; at++) {
        const char *one = strsep(&rest, " ");
        bool repeats = strstr(one, "...");
        char place[16] = "*";
        if (!repeats)
            snprintf(place, sizeof place, "%d", at);
        mgw_text_printf(text, "        %s:%s)", command->name, place);
        write_argument(text, one);
        mgw_text_printf(text, " ;;\n");
    }
}

static void write_commands(mgw_text *text)
{
    for (size_t i = 0; i < cli_command_count; i++)
        mgw_text_printf(text, "%s ", cli_commands[i]->name);
}

static void write_options_case(mgw_text *text, const cli_command *command)
{
    mgw_text_printf(text, "        %s) words=\"", command->name);
    for (size_t k = 0; k < command->option_count; k++)
        mgw_text_printf(text, "--%s ", command->options[k].name);
    mgw_text_printf(text, "--help\" ;;\n");
}

static const char head[] =
    "# bash completion for mgwfbp\n"
    "_mgwfbp()\n"
    "{\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
    "    local command=${COMP_WORDS[1]-} words='' files='' list='' before='' at=0 i\n"
    "    if [[ $current == '=' ]]; then current=''; fi\n"
    "    if [[ $previous == '=' ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi\n";

/* Counts the arguments before the cursor. */
static const char count_arguments[] =
    "        for ((i = 2; i < COMP_CWORD; i++)); do\n"
    "            if [[ $valued == *\" ${COMP_WORDS[i]} \"* ]]; then i=$((i + 1))\n"
    "            elif [[ ${COMP_WORDS[i]} != -* ]]; then at=$((at + 1)); fi\n"
    "        done\n"
    "        case $command:$at in\n";

static const char tail[] =
    "        esac\n"
    "    fi\n"
    "    if [[ $list && $current == *,* ]]; then before=${current%,*},; current=${current##*,}; "
    "fi\n"
    "    mapfile -t COMPREPLY < <(compgen -P \"$before\" -W \"$words\" -- \"$current\")\n"
    "    if [[ $files ]]; then\n"
    "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$current\")\n"
    "    fi\n"
    "}\n"
    "complete -o filenames -F _mgwfbp mgwfbp\n";

void cli_write_completion(mgw_text *text)
{
    mgw_text_printf(text, "%s    local valued=\" ", head);
    each_option(text, write_valued);
    mgw_text_printf(text, "\"\n    if [[ $COMP_CWORD == 1 ]]; then\n        words=\"");
    write_commands(text);
    mgw_text_printf(text, "help --help --version --man --bash-completion\"\n"
                          "    elif [[ $valued == *\" $previous \"* ]]; then\n"
                          "        case $previous in\n");
    each_option(text, write_value_case);
    mgw_text_printf(text, "        esac\n    elif [[ $current == -* ]]; then\n"
                          "        case $command in\n");
    for (size_t i = 0; i < cli_command_count; i++)
        write_options_case(text, cli_commands[i]);
    mgw_text_printf(text, "        esac\n    else\n%s        help:0) words=\"", count_arguments);
    write_commands(text);
    mgw_text_printf(text, "\" ;;\n");
    for (size_t i = 0; i < cli_command_count; i++)
        write_arguments(text, cli_commands[i]);
    mgw_text_printf(text, "%s", tail);
}
