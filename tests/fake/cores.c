/* A machine with as many cores as FAKE_CORES says: for LD_PRELOAD. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) long sysconf(int name)
{
    const char *cores = getenv("FAKE_CORES");
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN && cores ? strtol(cores, NULL, 10) : real(name);
}
