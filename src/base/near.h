/* Suggests known names that are similar to an unknown one. For the library and the command. */
#ifndef MGW_BASE_NEAR_H
#define MGW_BASE_NEAR_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MGW_NEAR_SHOWN = 4, MGW_NEAR_LENGTH = 64, MGW_NEAR_HINT = 400 };

/* The nearest names so far, all at the same distance. They are not copied. */
typedef struct mgw_near {
    const char *wanted;
    size_t length;
    unsigned far;
    unsigned count; /* how many there are; the first MGW_NEAR_SHOWN are kept */
    const char *names[MGW_NEAR_SHOWN];
} mgw_near;

static inline char mgw_near_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* The edit distance: missing, extra, wrong or swapped letters; case is ignored. */
static inline unsigned mgw_near_distance(const char *a, size_t n, const char *b, size_t m)
{
    unsigned rows[3][MGW_NEAR_LENGTH + 1];
    if (n > MGW_NEAR_LENGTH || m > MGW_NEAR_LENGTH)
        return MGW_NEAR_LENGTH;
    for (size_t i = 0; i <= n; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i + 2) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            char x = i ? mgw_near_lower(a[i - 1]) : 0;
            char y = mgw_near_lower(b[j - 1]);
            unsigned best = row[j - 1] + 1;
            if (i && above[j] + 1 < best)
                best = above[j] + 1;
            if (i && above[j - 1] + (x != y) < best)
                best = above[j - 1] + (x != y);
            bool swapped =
                i > 1 && j > 1 && x == mgw_near_lower(b[j - 2]) && mgw_near_lower(a[i - 2]) == y;
            if (swapped && rows[(i + 1) % 3][j - 2] + 1 < best)
                best = rows[(i + 1) % 3][j - 2] + 1;
            row[j] = i ? best : (unsigned)j;
        }
    }
    return rows[n % 3][m];
}

static inline mgw_near mgw_near_to(const char *wanted)
{
    size_t length = strlen(wanted);
    /* A third of the letters may be wrong, but never all of them. */
    unsigned most = length < 3 ? (unsigned)length / 2 : (unsigned)(length + 1) / 3;
    if (length > MGW_NEAR_LENGTH)
        most = 0;
    return (mgw_near){.wanted = wanted, .length = length, .far = most};
}

/* Compares one name; its first words are enough, as in resnet50-b32-fp32-h200. */
static inline void mgw_near_offer(mgw_near *near, const char *name)
{
    unsigned far = mgw_near_distance(near->wanted, near->length, name, strlen(name));
    for (size_t i = 1; name[i - 1]; i++) {
        bool ends = name[i] == '-' || name[i] == '_' || i == near->length;
        unsigned part = ends ? mgw_near_distance(near->wanted, near->length, name, i) : far;
        bool is_word = name[i] == '-' || name[i] == '_' || part == 0;
        if (is_word && part < far)
            far = part;
    }
    if (near->length == 0 || far > near->far)
        return;
    if (far < near->far)
        near->count = 0;
    near->far = far;
    if (near->count < MGW_NEAR_SHOWN)
        near->names[near->count] = name;
    near->count++;
}

/* "; did you mean 'a', 'b' or 'c'?", or nothing. */
static inline const char *mgw_near_hint(const mgw_near *near, char out[MGW_NEAR_HINT])
{
    unsigned shown = near->count < MGW_NEAR_SHOWN ? near->count : MGW_NEAR_SHOWN;
    size_t used = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < shown && used < MGW_NEAR_HINT; i++) {
        const char *before = i == 0 ? "; did you mean " : i + 1 == near->count ? " or " : ", ";
        used +=
            (size_t)snprintf(out + used, MGW_NEAR_HINT - used, "%s'%.64s'", before, near->names[i]);
    }
    if (shown && used < MGW_NEAR_HINT)
        snprintf(out + used, MGW_NEAR_HINT - used, near->count > shown ? " ...?" : "?");
    return out;
}

#endif
