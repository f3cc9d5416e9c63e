/* Replaces the server if libmicrohttpd was not found. */
#include "cli/command.h"
#include "cli/serve.h"

mgw_status cli_serve_page(mgw_page **page, unsigned port, mgw_error *error)
{
    (void)page, (void)port;
    return cli_fail(error, "this mgwfbp was built without libmicrohttpd (libmicrohttpd-dev); "
                           "'mgwfbp report' writes the same page to a file");
}
