/* Calls that fail on purpose: a layer between the library and the system, for tests alone. */
#ifndef TESTS_INJECT_H
#define TESTS_INJECT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum inject_mode {
    INJECT_NOTHING,
    INJECT_MEMORY,    /* an allocation fails */
    INJECT_SYSTEM,    /* a call of the system fails */
    INJECT_INTERRUPT, /* a signal interrupts one that has to be repeated then */
    INJECT_SHORT,     /* one byte is read or written, where more were wanted */
    INJECT_MODES,
} inject_mode;

extern const char *const inject_mode_names[INJECT_MODES];

/* From here on calls are counted, and of those that the mode is about the one `at` fails; 0: none.
 * Only those of objects whose name holds one of `objects` (null: the end; "": the program). */
void inject_arm(inject_mode mode, unsigned long at, const char *const *objects);

/* Counts no more. Tells how many there were of each mode. */
void inject_disarm(unsigned long counts[INJECT_MODES]);

/* Whether the call came. If so, which it was: "malloc from libmgwfbp.so.0+0x1234". */
bool inject_hit(char *where, size_t size);

/* Allocations since the arming that are not freed, and where one of them was made. */
long inject_live(char *where, size_t size);

#endif
