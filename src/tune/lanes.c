/* How many lanes move a long message: decided by a few messages before the first step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mgwfbp/tune.h>

#include "base/hash.h"
#include "base/status.h"

enum { PROBES = 3, MOST = 4 };
static const double slow_s = 40e-3;    /* on one lane: the network is the limit */
static const double worthwhile = 0.9;  /* of the time with half as many lanes */
static const double cores_of_lane = 2; /* so that lanes leave cores to the program */

/* Each worker sends its host and its number of cores. */
mgw_status mgw_crowd(const mgw_exchange *exchange, double *out, mgw_error *error)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    enum { HOST, CORES, COLUMNS };
    size_t count = (size_t)COLUMNS * exchange->size;
    double *rows = calloc(count, sizeof *rows);
    if (!rows)
        return mgw_fail_memory(error, "workers");
    rows[COLUMNS * exchange->rank + HOST] = (double)(mgw_hash(host, strlen(host)) >> 12);
    rows[COLUMNS * exchange->rank + CORES] = (double)sysconf(_SC_NPROCESSORS_ONLN);
    mgw_status status = exchange->combine(exchange->context, rows, count, 0, error);
    *out = 0;
    for (size_t r = 0; !status && r < exchange->size; r++) {
        double neighbours = 0;
        for (size_t s = 0; s < exchange->size; s++)
            neighbours += rows[COLUMNS * s + HOST] == rows[COLUMNS * r + HOST];
        *out = fmax(*out, neighbours / fmax(rows[COLUMNS * r + CORES], 1));
    }
    free(rows);
    return status;
}

mgw_status mgw_choose_lanes(const mgw_exchange *exchange, void *context,
                            mgw_status (*time)(void *context, unsigned lanes, double *seconds,
                                               mgw_error *error),
                            unsigned *out, mgw_error *error)
{
    double crowd = 0;
    double best_s = INFINITY;
    *out = 1;
    mgw_status status = mgw_crowd(exchange, &crowd, error);
    for (unsigned lanes = 1; !status && lanes <= MOST && lanes * cores_of_lane * crowd <= 1;
         lanes *= 2) {
        double fastest_s = INFINITY;
        for (int i = 0; !status && i <= PROBES; i++) {
            double seconds = 0;
            status = time(context, lanes, &seconds, error);
            if (i) /* in the first, lanes connect */
                fastest_s = fmin(fastest_s, seconds);
        }
        if (!status) /* the slowest worker's counts */
            status = exchange->combine(exchange->context, &fastest_s, 0, 1, error);
        if (status || fastest_s > worthwhile * best_s)
            break;
        *out = lanes;
        best_s = fastest_s;
        if (best_s > slow_s)
            break;
    }
    return status;
}
