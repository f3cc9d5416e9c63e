/* The values of options and arguments: output files, and names for completion. */
#ifndef MGW_CLI_TAKES_H
#define MGW_CLI_TAKES_H

#include <stdbool.h>

#include "cli/command.h"

/* An option has the same meaning in every command, or does not take a FILE. */
typedef struct cli_takes {
    const char *name;  /* of an option, or of an argument as shown in usage lines */
    const char *words; /* words for completion, and commands in $(...); or null */
    bool files;        /* also offer files */
    bool writes;       /* a file that the command writes */
    bool keeps;        /* and reads again later: never standard output */
    bool lists;        /* several, separated by commas */
} cli_takes;

/* Null: nothing to offer (a number, or a free name). */
const cli_takes *cli_option_takes(const cli_option *option);
const cli_takes *cli_argument_takes(const char *argument);

#endif
