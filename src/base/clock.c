/* A clock that stops while the process is stopped. */
#include "base/clock.h"

#include <stdatomic.h>
#include <stdint.h>

/* The most that the time between two readings counts: waits read the clock once a second. */
enum { COUNTS_MS = 1500 };

/*
 * The last reading, and the time that did not count so far: in milliseconds modulo 2^32, packed
 * into one word, so that both are always read together.
 */
static _Atomic uint64_t reading;

double mgw_awake_s(void)
{
    uint64_t before = atomic_load(&reading);
    uint64_t after = 0;
    double now_s = 0;
    do {
        now_s = mgw_now_s();
        uint32_t now_ms = (uint32_t)(uint64_t)(now_s * 1e3);
        uint32_t lost_ms = (uint32_t)before;
        int32_t gap_ms = (int32_t)(now_ms - (uint32_t)(before >> 32));
        if (before && gap_ms > COUNTS_MS)
            lost_ms += (uint32_t)(gap_ms - COUNTS_MS);
        after = (uint64_t)now_ms << 32 | lost_ms;
    } while (!atomic_compare_exchange_weak(&reading, &before, after));
    return now_s - (double)(uint32_t)after * 1e-3;
}
