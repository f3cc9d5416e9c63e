/* The state of a training as one row of numbers, and checkpoints. */
#include "nn/state.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include <mgwfbp/text.h>

#include "base/status.h"

mgw_status nn_state_init(nn_state *state, nn_net *net, uint64_t seed, mgw_error *error)
{
    *state = (nn_state){
        .net = net, .parameter_total = nn_parameter_total(net), .progress = {.seed = seed}};
    for (int l = 0; l < net->layer_count; l++)
        if (net->layers[l].running)
            state->running_total += 2 * (size_t)net->layers[l].shape.channels;
    state->velocity = nn_allocate(state->parameter_total);
    nn_initialise(net, seed);
    return state->velocity ? MGW_OK : mgw_fail_memory(error, net->name);
}

void nn_state_fini(nn_state *state)
{
    free(state->velocity);
    state->velocity = NULL;
}

/* ---- All numbers in one row ---- */

size_t nn_state_count(const nn_state *state)
{
    return 2 * state->parameter_total + state->running_total;
}

/* Copies between a row of numbers and where they live; returns the row's end. */
static float *copy(float *row, float *home, size_t count, bool out)
{
    memcpy(out ? row : home, out ? home : row, count * sizeof *row);
    return row + count;
}

static void copy_running(const nn_state *state, float *row, bool out)
{
    for (int l = 0; l < state->net->layer_count; l++) {
        const nn_layer *layer = &state->net->layers[l];
        if (layer->running)
            row = copy(row, layer->running, 2 * (size_t)layer->shape.channels, out);
    }
}

static void copy_all(const nn_state *state, float *row, bool out)
{
    for (int i = 0; i < state->net->parameter_count; i++)
        row = copy(row, state->net->parameters[i].data, state->net->parameters[i].count, out);
    row = copy(row, state->velocity, state->parameter_total, out);
    copy_running(state, row, out);
}

void nn_state_copy_out(const nn_state *state, float *numbers)
{
    copy_all(state, numbers, true);
}

void nn_state_copy_in(nn_state *state, const float *numbers)
{
    copy_all(state, (float *)numbers, false);
}

void nn_state_running_out(const nn_state *state, float *numbers)
{
    copy_running(state, numbers, true);
}

void nn_state_running_in(nn_state *state, const float *numbers)
{
    copy_running(state, (float *)numbers, false);
}

static bool are_finite(const float *numbers, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(numbers[i]))
        i++;
    return i == count;
}

bool nn_state_is_finite(const nn_state *state)
{
    bool finite = are_finite(state->velocity, state->parameter_total);
    for (int i = 0; finite && i < state->net->parameter_count; i++)
        finite = are_finite(state->net->parameters[i].data, state->net->parameters[i].count);
    for (int l = 0; finite && l < state->net->layer_count; l++) {
        const nn_layer *layer = &state->net->layers[l];
        finite = !layer->running || are_finite(layer->running, 2 * (size_t)layer->shape.channels);
    }
    return finite;
}

uint32_t nn_state_checksum(const nn_state *state)
{
    uLong sum = crc32_z(0, NULL, 0);
    for (int i = 0; i < state->net->parameter_count; i++)
        sum = crc32_z(sum, (const Bytef *)state->net->parameters[i].data,
                      state->net->parameters[i].count * sizeof(float));
    return (uint32_t)sum;
}

/* ---- Checkpoints: lines that say what it is, numbers, a checksum of all before it ---- */

static void write_header(const nn_state *state, mgw_text *text)
{
    mgw_text_printf(text,
                    "mgwfbp-checkpoint-1\nmodel %s\nseed %" PRIu64 "\nepoch %" PRIu64
                    "\nsamples %" PRIu64 "\nsteps %" PRIu64 "\nparameters %d\nstatistics %zu\n",
                    state->net->name, state->progress.seed, state->progress.epoch,
                    state->progress.samples, state->progress.steps, state->net->parameter_count,
                    state->running_total);
    for (int i = 0; i < state->net->parameter_count; i++)
        mgw_text_printf(text, "%s %zu\n", state->net->parameters[i].name,
                        state->net->parameters[i].count);
    mgw_text_printf(text, "f32, little-endian\n");
}

mgw_status nn_checkpoint_save(const nn_state *state, const char *path, mgw_error *error)
{
    size_t count = nn_state_count(state);
    float *numbers = malloc(count * sizeof *numbers);
    if (!numbers)
        return mgw_fail_memory(error, path);
    nn_state_copy_out(state, numbers);
    mgw_text text;
    mgw_text_init(&text);
    write_header(state, &text);
    mgw_text_append(&text, (const char *)numbers, count * sizeof *numbers);
    free(numbers);
    if (!text.failed) {
        uint32_t sum = (uint32_t)crc32_z(0, (const Bytef *)text.data, text.size);
        mgw_text_append(&text, (const char *)&sum, sizeof sum);
    }
    mgw_status status = mgw_text_save(&text, path, error);
    mgw_text_fini(&text);
    return status;
}

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

/* The header must be the one that this state would write, but for its progress. */
static mgw_status check_header(const char *path, const char *data, size_t size, nn_state *read,
                               size_t *length, mgw_error *error)
{
    static const char first[] = "mgwfbp-checkpoint-1\n";
    if (size < sizeof first - 1 || memcmp(data, first, sizeof first - 1) != 0)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: it is no checkpoint of ours", path);
    static const char last[] = "\nf32, little-endian\n";
    const char *end = memmem(data, size, last, sizeof last - 1);
    char *header = end ? strndup(data, (size_t)(end - data) + 1) : NULL;
    if (!header)
        return mgw_fail(error, MGW_ERR_INPUT, "%s: its header is not complete", path);
    mgw_text own;
    mgw_text_init(&own);
    mgw_status status = read_progress(path, header, &read->progress, error);
    write_header(read, &own);
    if (!status)
        status = mgw_text_status(&own, error);
    *length = own.size;
    const char *ours = own.data;
    const char *theirs = header;
    while (!status && *theirs) {
        size_t a = strcspn(ours, "\n");
        size_t b = strcspn(theirs, "\n");
        if (a != b || memcmp(ours, theirs, a) != 0)
            status = mgw_fail(error, MGW_ERR_INPUT, "%s: it has '%.*s' where this model has '%.*s'",
                              path, (int)(b < 80 ? b : 80), theirs, (int)(a < 80 ? a : 80), ours);
        ours += a + 1;
        theirs += b + 1;
    }
    mgw_text_fini(&own);
    free(header);
    return status;
}

mgw_status nn_checkpoint_load(nn_state *state, const char *path, mgw_error *error)
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
    size_t bytes = nn_state_count(state) * sizeof(float);
    uint32_t sum = 0;
    if (!status && size != header + bytes + sizeof sum)
        status = mgw_fail(error, MGW_ERR_INPUT, "%s: it has %zu bytes, and should have %zu", path,
                          size, header + bytes + sizeof sum);
    if (!status) {
        memcpy(&sum, data + size - sizeof sum, sizeof sum);
        if (sum != (uint32_t)crc32_z(0, (const Bytef *)data, size - sizeof sum))
            status =
                mgw_fail(error, MGW_ERR_INPUT, "%s: it is damaged: its checksum is wrong", path);
    }
    float *numbers = status ? NULL : malloc(bytes);
    if (!status && !numbers)
        status = mgw_fail_memory(error, path);
    if (!status) {
        memcpy(numbers, data + header, bytes); /* aligned */
        *state = read;
        nn_state_copy_in(state, numbers);
    }
    free(numbers);
    free(data);
    return status;
}
