/* How many queues to a GPU a process should ask CUDA for. */
#include <mgwfbp/device.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WANTED = 32 };        /* the most that CUDA has */
enum { SHARED_BY_ALL = 64 }; /* of MPS, for the workers of a host: they were had on an H200 */
enum { FEWEST = 4 };

/* MPS has one pool of queues, which its clients divide; without it, every process has its own. */
static bool is_shared(void)
{
    char path[4096];
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int length = snprintf(path, sizeof path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

unsigned mgw_device_queues(unsigned workers)
{
    if (!is_shared() || workers == 0)
        return WANTED;
    unsigned share = SHARED_BY_ALL / workers;
    return share > WANTED ? WANTED : share < FEWEST ? 0 : share;
}
