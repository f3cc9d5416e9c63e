/* Which process this is, without a system call: for who must not take a fork for its parent. */
#ifndef MGW_BASE_PROCESS_H
#define MGW_BASE_PROCESS_H

#include <sys/types.h>

/* As getpid. Threads: any. */
pid_t mgw_process(void);

#endif
