/* What options and arguments take: files that are written, names that can be offered. */
#ifndef MGW_CLI_TAKES_H
#define MGW_CLI_TAKES_H

#include <stdbool.h>

#include "cli/command.h"

/* An option means the same in every command that has it, or does not take a FILE. */
typedef struct cli_takes {
    const char *name;  /* of an option, or of an argument as usage lines show it */
    const char *words; /* what a shell offers: words, and commands in $(...); or null */
    bool files;        /* files are offered as well */
    bool writes;       /* a file that the command writes */
    bool keeps;        /* and goes on with later: never standard output */
    bool lists;        /* several, separated by commas */
} cli_takes;

/* Null: nothing can be offered (a number, a name that one makes up). */
const cli_takes *cli_option_takes(const cli_option *option);
const cli_takes *cli_argument_takes(const char *argument);

#endif
