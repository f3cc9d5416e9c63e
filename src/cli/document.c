/* Help texts, from the commands' tables. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/terminal.h"

/* Lines of help are as wide as the terminal, but at most 90 columns. */
static int help_width(void)
{
    size_t width = cli_width();
    return width && width < 92 ? (int)width - 2 : 90;
}

/* Breaks text into lines of at most `width`, each indented by `indent` spaces; the first one
 * continues the current line. */
static void write_wrapped(mgw_text *text, const char *words, int indent, int width)
{
    int column = 0;
    while (*words) {
        size_t length = strcspn(words, " ");
        if (column && column + 1 + (int)length > width) {
            mgw_text_printf(text, "\n%*s", indent, "");
            column = 0;
        } else if (column) {
            mgw_text_append(text, " ", 1);
            column++;
        }
        mgw_text_append(text, words, length);
        column += (int)length;
        words += length + (words[length] == ' ');
    }
    mgw_text_append(text, "\n", 1);
}

/* Writes paragraphs, which are separated by newlines. */
static void write_paragraphs(mgw_text *text, const char *paragraphs)
{
    while (*paragraphs) {
        size_t length = strcspn(paragraphs, "\n");
        char one[2000];
        snprintf(one, sizeof one, "%.*s", (int)length, paragraphs);
        write_wrapped(text, one, 0, help_width());
        paragraphs += length + (paragraphs[length] == '\n');
        if (*paragraphs)
            mgw_text_append(text, "\n", 1);
    }
}

void cli_option_label(const cli_option *option, char *out, size_t size)
{
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(out, size, "%s--%s%s%s", letter, option->name, option->argument ? " " : "",
             option->argument ? option->argument : "");
}

static const cli_option help_option = {"help", 'h', NULL, "show this text"};

const cli_option *cli_option_at(const cli_command *command, size_t index)
{
    return index < command->option_count ? &command->options[index] : &help_option;
}

void cli_write_help(const cli_command *command, mgw_text *text)
{
    if (command->runs_program)
        mgw_text_printf(text, "usage: mgwfbp %s [options] %s\n\n", command->name,
                        command->arguments);
    else
        mgw_text_printf(text, "usage: mgwfbp %s %s%s[options]\n\n", command->name,
                        command->arguments, *command->arguments ? " " : "");
    write_paragraphs(text, command->details);
    mgw_text_printf(text, "\noptions:\n");
    int indent = help_width() < 60 ? 8 : 30; /* below the option if there is no room beside it */
    for (size_t i = 0; i <= command->option_count; i++) {
        char label[80];
        cli_option_label(cli_option_at(command, i), label, sizeof label);
        mgw_text_printf(text, "  %-28s", label);
        if (indent < 30)
            mgw_text_printf(text, "\n%*s", indent, "");
        write_wrapped(text, cli_option_at(command, i)->help, indent, help_width() + 2 - indent);
    }
    mgw_text_printf(text, "\nexamples:\n");
    for (const char *line = command->examples; *line; line += strcspn(line, "\n") + 1)
        mgw_text_printf(text, "  %.*s\n", (int)strcspn(line, "\n"), line);
}

const char cli_about[] =
    "In data-parallel training the workers average their gradients in every step. Merging "
    "neighbouring gradients into one message saves start-up time; sending early hides "
    "communication behind the backward pass. mgwfbp finds the plan with the shortest step and "
    "shows how short a step can be at all.";

void cli_write_usage(mgw_text *text)
{
    mgw_text_printf(text, "usage: mgwfbp COMMAND ...\n\n");
    write_wrapped(text, cli_about, 0, help_width());
    mgw_text_printf(text, "\ncommands ('mgwfbp COMMAND --help' explains each):\n");
    for (size_t i = 0; i < cli_command_count; i++)
        mgw_text_printf(text, "  %-10s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    mgw_text_printf(text, "\nfirst steps:\n"
                          "  mgwfbp list\n"
                          "  mgwfbp plan resnet50-b32-fp32-h200 paper-2-10gbe -o plan.json\n"
                          "  mgwfbp show plan.json --svg plan.svg\n");
}
