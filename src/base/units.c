/* Sizes and times as people write them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/text.h>

#include "base/locale.h"
#include "base/status.h"

/* "17.9 ms": three digits, or a power of ten where that would not do. */
static void write_unit(double value, const char *unit, char out[MGW_UNITS_MAX])
{
    if (value >= 9999.5)
        mgw_snprintf(out, MGW_UNITS_MAX, "%.2e %s", value, unit);
    else
        mgw_snprintf(out, MGW_UNITS_MAX, "%.*f %s",
                     value >= 99.95   ? 0
                     : value >= 9.995 ? 1
                                      : 2,
                     value, unit);
}

const char *mgw_format_bytes(uint64_t bytes, char out[MGW_UNITS_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(out, MGW_UNITS_MAX, "%u B", (unsigned)bytes);
        return out;
    }
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    if (value == floor(value) && value < 1000)
        mgw_snprintf(out, MGW_UNITS_MAX, "%.0f %s", value, units[unit]);
    else
        write_unit(value, units[unit], out);
    return out;
}

const char *mgw_format_seconds(double seconds, char out[MGW_UNITS_MAX])
{
    static const struct {
        double scale;
        const char *unit;
    } units[] = {{1e9, "ns"}, {1e6, "us"}, {1e3, "ms"}, {1, "s"}};
    if (!(seconds > 0) || !isfinite(seconds)) {
        snprintf(out, MGW_UNITS_MAX, "%s", seconds == 0 ? "0 s" : "?");
        return out;
    }
    size_t unit = 0;
    while (unit < 3 && seconds * units[unit].scale >= 999.5)
        unit++;
    write_unit(seconds * units[unit].scale, units[unit].unit, out);
    return out;
}

mgw_status mgw_parse_bytes(const char *string, uint64_t *bytes, mgw_error *error)
{
    static const struct {
        const char *suffix;
        unsigned shift;
    } suffixes[] = {{"", 0},   {"B", 0},    {"K", 10}, {"KiB", 10},
                    {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}};
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(string, &end, 10);
    if (*string >= '0' && *string <= '9' && errno == 0)
        for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
            if (!strcmp(end, suffixes[i].suffix) &&
                value <= (uint64_t)INT64_MAX >> suffixes[i].shift) {
                *bytes = (uint64_t)value << suffixes[i].shift;
                return MGW_OK;
            }
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "'%.40s' is not a size in bytes (write 1048576, 1024K, 1MiB or 2G)", string);
}
