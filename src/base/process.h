/* The process id without a system call, to tell a forked child from its parent. */
#ifndef MGW_BASE_PROCESS_H
#define MGW_BASE_PROCESS_H

#include <sys/types.h>

/* Like getpid. Threads: any. */
pid_t mgw_process(void);

#endif
