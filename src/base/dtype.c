/* Number types: their names and sizes. */
#include "base/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define X(constant, name, bytes) [constant] = {name, bytes},
    MGW_DTYPE_LIST(X)
#undef X
};

const char *mgw_dtype_name(mgw_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t mgw_dtype_bytes(mgw_dtype dtype)
{
    return dtypes[dtype].bytes;
}

bool mgw_dtype_parse(const char *name, mgw_dtype *out)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *out = (mgw_dtype)i;
            return true;
        }
    return false;
}
