/* All descendant processes of a job. */
#ifndef MGW_JOB_FAMILY_H
#define MGW_JOB_FAMILY_H

#include <stdbool.h>

/* From now on, orphaned descendants become our children. Existing children are not ours, and are
 * left alone. */
void family_adopt(void);

/*
 * Ends all children that this process got since, including those adopted meanwhile: sends SIGTERM,
 * and SIGKILL two seconds later, or SIGKILL at once. Returns when there are none, or after ten
 * seconds.
 */
void family_end(bool at_once);

#endif
