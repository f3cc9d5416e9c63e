/* Processes that a job started, however indirectly. */
#ifndef MGW_JOB_FAMILY_H
#define MGW_JOB_FAMILY_H

#include <stdbool.h>

/* From now on, who loses its parent among our descendants becomes our child. Children that there
 * are already are somebody else's, and left alone. */
void family_adopt(void);

/*
 * Ends all children of this process that came since, and who becomes one meanwhile: they are asked,
 * and two seconds later killed; or killed at once. Returns when there are none, or after ten
 * seconds.
 */
void family_end(bool at_once);

#endif
