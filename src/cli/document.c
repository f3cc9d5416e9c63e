/* Help, man page and bash completion, all from the commands' tables. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

/* Breaks a text into lines of at most `width`, each behind `indent` spaces; the first continues. */
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

/* Paragraphs are separated by line ends. */
static void write_paragraphs(mgw_text *text, const char *paragraphs)
{
    while (*paragraphs) {
        size_t length = strcspn(paragraphs, "\n");
        char one[2000];
        snprintf(one, sizeof one, "%.*s", (int)length, paragraphs);
        write_wrapped(text, one, 0, 90);
        paragraphs += length + (paragraphs[length] == '\n');
        if (*paragraphs)
            mgw_text_append(text, "\n", 1);
    }
}

static void option_label(const cli_option *option, char *out, size_t size)
{
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(out, size, "%s--%s%s%s", letter, option->name, option->argument ? " " : "",
             option->argument ? option->argument : "");
}

static const cli_option help_option = {"help", 'h', NULL, "show this text"};

static const cli_option *option_at(const cli_command *command, size_t index)
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
    for (size_t i = 0; i <= command->option_count; i++) {
        char label[80];
        option_label(option_at(command, i), label, sizeof label);
        mgw_text_printf(text, "  %-28s", label);
        write_wrapped(text, option_at(command, i)->help, 30, 62);
    }
    mgw_text_printf(text, "\nexamples:\n");
    for (const char *line = command->examples; *line; line += strcspn(line, "\n") + 1)
        mgw_text_printf(text, "  %.*s\n", (int)strcspn(line, "\n"), line);
}

static const char about[] =
    "In data-parallel training the workers average their gradients in every step. Merging "
    "neighbouring gradients into one message saves start-up time, sending early hides "
    "communication behind the backward pass. mgwfbp finds the plan that makes the step as short "
    "as it can be, and tells how short that is.";

void cli_write_usage(mgw_text *text)
{
    mgw_text_printf(text, "usage: mgwfbp COMMAND ...\n\n");
    write_wrapped(text, about, 0, 90);
    mgw_text_printf(text, "\ncommands ('mgwfbp COMMAND --help' explains each):\n");
    for (size_t i = 0; i < cli_command_count; i++)
        mgw_text_printf(text, "  %-10s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    mgw_text_printf(text, "\nfirst steps:\n"
                          "  mgwfbp list\n"
                          "  mgwfbp plan resnet50-b32-fp32-h200 paper-2-10gbe -o plan.json\n"
                          "  mgwfbp show plan.json --svg plan.svg\n");
}

/* ---- Man page ---- */

/* Text for troff: no line may begin with a control character, backslashes and hyphens are literal.
 */
static void write_roff(mgw_text *text, const char *words)
{
    for (bool first = true; *words; words++, first = words[-1] == '\n') {
        if (first && (*words == '.' || *words == '\''))
            mgw_text_append(text, "\\&", 2);
        if (*words == '\\')
            mgw_text_append(text, "\\e", 2);
        else if (*words == '-')
            mgw_text_append(text, "\\-", 2);
        else if (*words == '\n')
            mgw_text_append(text, "\n.PP\n", 5);
        else
            mgw_text_append(text, words, 1);
    }
    mgw_text_append(text, "\n", 1);
}

static void write_man_command(const cli_command *command, mgw_text *text)
{
    mgw_text_printf(text, ".SH MGWFBP ");
    for (const char *c = command->name; *c; c++)
        mgw_text_printf(text, "%c", toupper((unsigned char)*c));
    mgw_text_printf(text, "\n.B mgwfbp %s\n", command->name);
    if (command->runs_program)
        mgw_text_printf(text, ".RI [ options ]\n");
    if (*command->arguments) {
        mgw_text_printf(text, ".I ");
        write_roff(text, command->arguments);
    }
    if (!command->runs_program)
        mgw_text_printf(text, ".RI [ options ]\n");
    mgw_text_printf(text, ".PP\n");
    write_roff(text, command->details);
    for (size_t i = 0; i <= command->option_count; i++) {
        char label[80];
        option_label(option_at(command, i), label, sizeof label);
        mgw_text_printf(text, ".TP\n.B ");
        write_roff(text, label + strspn(label, " "));
        write_roff(text, option_at(command, i)->help);
    }
    mgw_text_printf(text, ".PP\nExamples:\n.PP\n.nf\n");
    for (const char *line = command->examples; *line; line += strcspn(line, "\n") + 1) {
        char one[300];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
        write_roff(text, one);
    }
    mgw_text_printf(text, ".fi\n");
}

void cli_write_man(mgw_text *text)
{
    mgw_text_printf(text,
                    ".TH MGWFBP 1 \"\" \"mgwfbp %s\" \"User Commands\"\n"
                    ".SH NAME\nmgwfbp \\- plan merged\\-gradient communication for data\\-parallel "
                    "training\n.SH SYNOPSIS\n.B mgwfbp\n.I COMMAND\n.RI [ arguments ]\n"
                    ".SH DESCRIPTION\n",
                    mgw_version());
    write_roff(text, about);
    for (size_t i = 0; i < cli_command_count; i++)
        write_man_command(cli_commands[i], text);
    mgw_text_printf(text, ".SH EXIT STATUS\n0 if all went well; 2 for bad usage, bad input, or a "
                          "file that could not be read or written.\n"
                          "Where workers were started, that of the first that failed, or 128 + "
                          "the signal that killed it.\n"
                          "Errors are one line on standard error.\n");
}

/* ---- Bash completion ---- */

void cli_write_completion(mgw_text *text)
{
    mgw_text_printf(text, "# bash completion for mgwfbp\n_mgwfbp()\n{\n"
                          "    local current=${COMP_WORDS[COMP_CWORD]} words\n"
                          "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words=\"");
    for (size_t i = 0; i < cli_command_count; i++)
        mgw_text_printf(text, "%s ", cli_commands[i]->name);
    mgw_text_printf(text, "--help --version\"\n    else\n        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        const cli_command *command = cli_commands[i];
        mgw_text_printf(text, "        %s) words=\"", command->name);
        for (size_t k = 0; k <= command->option_count; k++)
            mgw_text_printf(text, "--%s ", option_at(command, k)->name);
        mgw_text_printf(text, "\" ;;\n");
    }
    mgw_text_printf(
        text, "        esac\n"
              "        case ${COMP_WORDS[COMP_CWORD-1]} in\n"
              "        --policy) words=\"$(mgwfbp list policies --names)\" ;;\n"
              "        --algorithm) words=\"$(mgwfbp list algorithms --names)\" ;;\n"
              "        --parameters) words=\"f32 f16 bf16 f64\" ;;\n"
              "        *) [[ $current == -* ]] || words=\"$(mgwfbp list --names)\" ;;\n"
              "        esac\n"
              "    fi\n"
              "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
              "    [[ $COMP_CWORD == 1 || $current == -* ]] ||\n"
              "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$current\")\n"
              "}\ncomplete -o filenames -F _mgwfbp mgwfbp\n");
}
