/* Checkpoints: a text header, numbers, and a checksum of everything before it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include <mgwfbp/text.h>

#include "base/status.h"
#include "nn/state.h"

/* The first version did not name the optimizer: there was only one. The second had the mean of all
 * workers' statistics, so training could not resume bit for bit. */
enum { FIRST = 1, SECOND = 2, CURRENT = 3 };
enum { WORKERS_MAX = 1 << 20 };
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
    if (version > SECOND)
        mgw_text_printf(text, "workers %u\n", state->workers);
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
    int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    if (fd < 0) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        return mgw_fail(error, missing ? MGW_ERR_NOT_FOUND : MGW_ERR_IO, "%s: %s", path,
                        strerror(errno));
    }
    struct stat about;
    if (fstat(fd, &about) || !S_ISREG(about.st_mode)) {
        close(fd);
        return mgw_fail(error, MGW_ERR_INPUT, "%s: not a regular file", path);
    }
    FILE *file = fdopen(fd, "rb");
    if (!file) {
        close(fd);
        return mgw_fail_memory(error, path);
    }
    mgw_text text;
    mgw_text_init(&text);
    static const char begin[] = "mgwfbp-checkpoint-";
    char piece[1 << 12];
    size_t got = 0;
    bool ours = true; /* otherwise it may be endless */
    while (ours && !text.failed && (got = fread(piece, 1, sizeof piece, file)) > 0) {
        size_t first = got < sizeof begin - 1 ? got : sizeof begin - 1;
        ours = text.size > 0 || memcmp(piece, begin, first) == 0;
        mgw_text_append(&text, piece, got);
    }
    mgw_status status = ferror(file) ? mgw_fail(error, MGW_ERR_IO, "%s: cannot be read", path)
                        : !ours
                            ? mgw_fail(error, MGW_ERR_INPUT, "%s: not a mgwfbp checkpoint", path)
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
            return mgw_fail(error, MGW_ERR_INPUT, "%s: line '%s': missing, or not a number", path,
                            lines[i]);
    }
    return MGW_OK;
}

/* The number of workers whose statistics it has. */
static mgw_status read_workers(const char *path, const char *header, int version, nn_state *read,
                               mgw_error *error)
{
    static const char line[] = "\nworkers ";
    const char *at = strstr(header, line);
    char *end = NULL;
    unsigned long workers = at ? strtoul(at + sizeof line - 1, &end, 10) : 0;
    read->workers = version > SECOND ? (unsigned)workers : 1;
    if (version > SECOND && (!at || *end != '\n' || workers < 1 || workers > WORKERS_MAX))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: line 'workers': missing, or not a number", path);
    return MGW_OK;
}

/* The version, from the first line; 0: it is not a checkpoint of ours. */
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

/* Another optimizer has other state, so training could not resume. */
static mgw_status check_optimizer(const char *path, const char *header, int version,
                                  const nn_state *state, mgw_error *error)
{
    static const char line[] = "\noptimizer ";
    const char *at = version > FIRST ? strstr(header, line) : NULL;
    const char *name = at ? at + sizeof line - 1 : first_optimizer;
    if (version > FIRST && !at)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: line 'optimizer': missing", path);
    size_t length = strcspn(name, "\n");
    if (length == strlen(state->optimizer->name) &&
        memcmp(name, state->optimizer->name, length) == 0)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_INPUT,
                    "%s: made with --optimizer %.*s; it cannot be resumed with %s", path,
                    (int)(length < 40 ? length : 40), name, state->optimizer->name);
}

/* The header must be the one that this state would write, except for its progress. */
static mgw_status compare_headers(const char *path, const char *ours, const char *theirs,
                                  mgw_error *error)
{
    while (*theirs) {
        size_t a = strcspn(ours, "\n");
        size_t b = strcspn(theirs, "\n");
        if (a != b || memcmp(ours, theirs, a) != 0)
            return mgw_fail(error, MGW_ERR_INPUT, "%s: has '%.*s' where this model has '%.*s'",
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
        return mgw_fail(error, MGW_ERR_INPUT, "%s: not a mgwfbp checkpoint", path);
    static const char last[] = "\nf32, little-endian\n";
    const char *end = memmem(data, size, last, sizeof last - 1);
    char *header = end ? strndup(data, (size_t)(end - data) + 1) : NULL;
    if (!header)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: the header is incomplete", path);
    mgw_text own;
    mgw_text_init(&own);
    mgw_status status = read_progress(path, header, &read->progress, error);
    if (!status)
        status = check_optimizer(path, header, version, read, error);
    if (!status)
        status = read_workers(path, header, version, read, error);
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

/* Checks the size and the checksum. */
static mgw_status check_whole(const char *path, const char *data, size_t size, size_t wanted,
                              mgw_error *error)
{
    uint32_t sum = 0;
    if (size != wanted + sizeof sum)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: has %zu bytes, but should have %zu", path, size,
                        wanted + sizeof sum);
    memcpy(&sum, data + wanted, sizeof sum);
    if (sum != (uint32_t)crc32_z(0, (const Bytef *)data, wanted))
        return mgw_fail(error, MGW_ERR_INPUT, "%s: damaged: the checksum is wrong", path);
    return MGW_OK;
}

bool nn_checkpoint_is_whole(const char *path)
{
    char *data = NULL;
    size_t size = 0;
    uint32_t sum = 0;
    mgw_error unused;
    if (read_file(path, &data, &size, &unused))
        return false;
    bool whole = size > sizeof sum;
    if (whole) {
        memcpy(&sum, data + size - sizeof sum, sizeof sum);
        whole = sum == (uint32_t)crc32_z(0, (const Bytef *)data, size - sizeof sum);
    }
    free(data);
    return whole;
}

bool nn_are_finite(const float *numbers, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(numbers[i]))
        i++;
    return i == count;
}

/* Converts the statistics to the present number of workers. */
static void copy_statistics(const float *from, unsigned before, float *to, unsigned now,
                            size_t count)
{
    for (unsigned w = 0; w < now; w++)
        for (size_t i = 0; i < count; i++) {
            double sum = 0;
            for (unsigned b = 0; before != now && b < before; b++)
                sum += from[b * count + i];
            to[w * count + i] = before == now ? from[w * count + i] : (float)(sum / before);
        }
}

/* Reads the numbers after the header, which may be unaligned, as a row of `state`. */
static mgw_status take_row(const char *path, const nn_state *state, const nn_state *read,
                           const char *numbers, float **row, mgw_error *error)
{
    size_t count = nn_state_count(read);
    size_t running = state->running_total;
    size_t head = count - read->workers * running;
    float *found = nn_allocate(count);
    float *made = nn_allocate(nn_state_count(state));
    mgw_status status = found && made ? MGW_OK : mgw_fail_memory(error, path);
    if (!status) {
        memcpy(found, numbers, count * sizeof *found);
        memcpy(made, found, head * sizeof *made);
        copy_statistics(found + head, read->workers, made + head, state->workers, running);
    }
    if (!status && !nn_are_finite(found, count))
        status = mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s: weights are not finite", path);
    free(found);
    if (status)
        free(made);
    else
        *row = made;
    return status;
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
                  : mgw_fail(error, MGW_ERR_INPUT, "%s: the file is empty", path);
    if (!status)
        status =
            check_whole(path, data, size, header + nn_state_count(&read) * sizeof(float), error);
    if (!status)
        status = take_row(path, state, &read, data + header, row, error);
    if (!status)
        state->progress = read.progress;
    free(data);
    return status;
}
