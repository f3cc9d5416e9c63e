/* Checkpoints: lines that say what it is, numbers, a checksum of all before it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include <mgwfbp/text.h>

#include "base/status.h"
#include "nn/state.h"

/* The first version did not name the optimizer: there was only one. */
enum { FIRST = 1, CURRENT = 2 };
static const char first_optimizer[] = "sgd";

static void write_header(const nn_state *state, int version, mgw_text *text)
{
    mgw_text_printf(text,
                    "mgwfbp-checkpoint-%d\nmodel %s\nseed %" PRIu64 "\nepoch %" PRIu64
                    "\nsamples %" PRIu64 "\nsteps %" PRIu64 "\n",
                    version, state->net->name, state->progress.seed, state->progress.epoch,
                    state->progress.samples, state->progress.steps);
    if (version > FIRST)
        mgw_text_printf(text, "optimizer %s\n", state->optimizer->name);
    mgw_text_printf(text, "parameters %d\nstatistics %zu\n", state->net->parameter_count,
                    state->running_total);
    for (int i = 0; i < state->net->parameter_count; i++)
        mgw_text_printf(text, "%s %zu\n", state->net->parameters[i].name,
                        state->net->parameters[i].count);
    mgw_text_printf(text, "f32, little-endian\n");
}

mgw_status nn_checkpoint_save(const nn_state *state, const float *row, const char *path,
                              mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    write_header(state, CURRENT, &text);
    mgw_text_append(&text, (const char *)row, nn_state_count(state) * sizeof *row);
    if (!text.failed) {
        uint32_t sum = (uint32_t)crc32_z(0, (const Bytef *)text.data, text.size);
        mgw_text_append(&text, (const char *)&sum, sizeof sum);
    }
    mgw_status status = mgw_text_save(&text, path, error);
    mgw_text_fini(&text);
    return status;
}

/* ---- Reading ---- */

static mgw_status read_file(const char *path, char **data, size_t *size, mgw_error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return mgw_fail(error, MGW_ERR_NOT_FOUND, "%s: %s", path, strerror(errno));
    mgw_text text;
    mgw_text_init(&text);
    char piece[1 << 16];
    size_t got = 0;
    while ((got = fread(piece, 1, sizeof piece, file)) > 0)
        mgw_text_append(&text, piece, got);
    mgw_status status = ferror(file) ? mgw_fail(error, MGW_ERR_IO, "%s: cannot be read", path)
                                     : mgw_text_status(&text, error);
    fclose(file);
    if (status)
        mgw_text_fini(&text);
    *data = text.data;
    *size = text.size;
    return status;
}

/* The numbers of a checkpoint's header that may differ from run to run. */
static mgw_status read_progress(const char *path, const char *header, nn_progress *read,
                                mgw_error *error)
{
    static const char *const lines[] = {"seed", "epoch", "samples", "steps"};
    uint64_t *const where[] = {&read->seed, &read->epoch, &read->samples, &read->steps};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char wanted[24];
        snprintf(wanted, sizeof wanted, "\n%s ", lines[i]);
        const char *at = strstr(header, wanted);
        char *end = NULL;
        *where[i] = at ? strtoull(at + strlen(wanted), &end, 10) : 0;
        if (!at || *end != '\n')
            return mgw_fail(error, MGW_ERR_INPUT, "%s: line '%s': it is missing or no number", path,
                            lines[i]);
    }
    return MGW_OK;
}

/* Of which version it is, by its first line; 0: it is not ours. */
static int version_of(const char *data, size_t size)
{
    for (int version = FIRST; version <= CURRENT; version++) {
        char line[32];
        size_t length = (size_t)snprintf(line, sizeof line, "mgwfbp-checkpoint-%d\n", version);
        if (size >= length && memcmp(data, line, length) == 0)
            return version;
    }
    return 0;
}

/* Another optimizer remembers other numbers, so that there would be nothing to go on from. */
static mgw_status check_optimizer(const char *path, const char *header, int version,
                                  const nn_state *state, mgw_error *error)
{
    static const char line[] = "\noptimizer ";
    const char *at = version > FIRST ? strstr(header, line) : NULL;
    const char *name = at ? at + sizeof line - 1 : first_optimizer;
    if (version > FIRST && !at)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: line 'optimizer': it is missing", path);
    size_t length = strcspn(name, "\n");
    if (length == strlen(state->optimizer->name) &&
        memcmp(name, state->optimizer->name, length) == 0)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_INPUT,
                    "%s: it is of a training with --optimizer %.*s, and cannot go on with %s", path,
                    (int)(length < 40 ? length : 40), name, state->optimizer->name);
}

/* The header must be the one that this state would write, but for its progress. */
static mgw_status compare_headers(const char *path, const char *ours, const char *theirs,
                                  mgw_error *error)
{
    while (*theirs) {
        size_t a = strcspn(ours, "\n");
        size_t b = strcspn(theirs, "\n");
        if (a != b || memcmp(ours, theirs, a) != 0)
            return mgw_fail(error, MGW_ERR_INPUT, "%s: it has '%.*s' where this model has '%.*s'",
                            path, (int)(b < 80 ? b : 80), theirs, (int)(a < 80 ? a : 80), ours);
        ours += a + 1;
        theirs += b + 1;
    }
    return MGW_OK;
}

static mgw_status check_header(const char *path, const char *data, size_t size, nn_state *read,
                               size_t *length, mgw_error *error)
{
    int version = version_of(data, size);
    if (!version)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: it is no checkpoint of ours", path);
    static const char last[] = "\nf32, little-endian\n";
    const char *end = memmem(data, size, last, sizeof last - 1);
    char *header = end ? strndup(data, (size_t)(end - data) + 1) : NULL;
    if (!header)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: its header is not complete", path);
    mgw_text own;
    mgw_text_init(&own);
    mgw_status status = read_progress(path, header, &read->progress, error);
    if (!status)
        status = check_optimizer(path, header, version, read, error);
    write_header(read, version, &own);
    if (!status)
        status = mgw_text_status(&own, error);
    *length = own.size;
    if (!status)
        status = compare_headers(path, own.data, header, error);
    mgw_text_fini(&own);
    free(header);
    return status;
}

/* The size and the checksum. */
static mgw_status check_whole(const char *path, const char *data, size_t size, size_t wanted,
                              mgw_error *error)
{
    uint32_t sum = 0;
    if (size != wanted + sizeof sum)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: it has %zu bytes, and should have %zu", path,
                        size, wanted + sizeof sum);
    memcpy(&sum, data + wanted, sizeof sum);
    if (sum != (uint32_t)crc32_z(0, (const Bytef *)data, wanted))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: it is damaged: its checksum is wrong", path);
    return MGW_OK;
}

mgw_status nn_checkpoint_load(nn_state *state, const char *path, float **row, mgw_error *error)
{
    char *data = NULL;
    size_t size = 0;
    size_t header = 0;
    nn_state read = *state;
    mgw_status status = read_file(path, &data, &size, error);
    if (status)
        return status;
    status = size ? check_header(path, data, size, &read, &header, error)
                  : mgw_fail(error, MGW_ERR_INPUT, "%s: it is empty", path);
    size_t count = nn_state_count(state);
    if (!status)
        status = check_whole(path, data, size, header + count * sizeof(float), error);
    float *numbers = status ? NULL : nn_allocate(count);
    if (!status && !numbers)
        status = mgw_fail_memory(error, path);
    if (!status) {
        memcpy(numbers, data + header, count * sizeof *numbers); /* aligned */
        *state = read;
        *row = numbers;
    }
    free(data);
    return status;
}
