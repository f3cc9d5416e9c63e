/* The page over HTTP, on this machine only. */
#ifndef MGW_CLI_SERVE_H
#define MGW_CLI_SERVE_H

#include <mgwfbp/mgwfbp.h>

/*
 * Serves the page on 127.0.0.1 until SIGINT or SIGTERM. Dropped files are added to *page, which is
 * replaced when it is cleared. Port 0: any free port.
 */
MGW_CHECKED mgw_status cli_serve_page(mgw_page **page, unsigned port, mgw_error *error);

#endif
