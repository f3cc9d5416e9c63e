/* Sizes and times in human-readable form. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/text.h>

#include "base/locale.h"
#include "base/status.h"

/* "17.9 ms": three digits, or a power of ten where these are not enough. */
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
    } suffixes[] = {{"", 0},   {"B", 0},   {"K", 10},   {"KB", 10}, {"kB", 10}, {"KiB", 10},
                    {"M", 20}, {"MB", 20}, {"MiB", 20}, {"G", 30},  {"GB", 30}, {"GiB", 30}};
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(string, &end, 10);
    bool good = *string >= '0' && *string <= '9' && errno == 0;
    double part = 0; /* of a unit, after the point */
    size_t digits = good && *end == '.' ? strspn(end + 1, "0123456789") : 0;
    if (digits) { /* an exponent cannot follow: no suffix begins with one */
        part = strtod_l(end, NULL, mgw_c_locale());
        end += 1 + digits;
    }
    for (size_t i = 0; good && i < sizeof suffixes / sizeof *suffixes; i++) {
        unsigned shift = suffixes[i].shift;
        if (strcmp(end, suffixes[i].suffix) != 0 || value >= (uint64_t)INT64_MAX >> shift ||
            part >= 1 || (part > 0 && shift == 0))
            continue;
        *bytes = ((uint64_t)value << shift) + (uint64_t)ldexp(part, (int)shift);
        return MGW_OK;
    }
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "'%.40s' is not a size in bytes (write 1048576, 1024K, 25MB or 2GiB)", string);
}

mgw_status mgw_parse_size(const char *string, uint64_t *bytes, mgw_error *error)
{
    enum { FEWEST_BYTES = 1024 };
    char sized[64];
    size_t length = strlen(string);
    bool alone = length > 0 && length < 40 && strspn(string, "0123456789.") == length;
    double number = alone ? strtod_l(string, NULL, mgw_c_locale()) : 0;
    if (!(number > 0 && number < FEWEST_BYTES))
        return mgw_parse_bytes(string, bytes, error);
    snprintf(sized, sizeof sized, "%sMiB", string);
    return mgw_parse_bytes(sized, bytes, error);
}
