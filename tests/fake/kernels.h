/* Kernels of the fake GPU, by the names that they have in PTX. */
#ifndef MGW_FAKE_KERNELS_H
#define MGW_FAKE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

struct kernel;
typedef struct launched launched;

/* Null: there is none, or it is not in the text. */
const struct kernel *kernel_named(const char *image, const char *name);
bool is_kernel(const void *function);

/* With copies of its parameters; null: it would fail. Ownership: kernel_run frees it. */
launched *kernel_launched(const void *function, void **parameters, uint64_t threads);
void kernel_run(void *launched);

#endif
