/* The state of a training: its size, and its checksum. */
#include "nn/state.h"

#include <string.h>

#include <zlib.h>

void nn_state_init(nn_state *state, nn_net *net, const nn_optimizer *optimizer, uint64_t seed)
{
    *state = (nn_state){.net = net,
                        .optimizer = optimizer,
                        .parameter_total = nn_parameter_total(net),
                        .workers = 1,
                        .progress = {.seed = seed}};
    for (int l = 0; l < net->layer_count; l++)
        if (net->layers[l].running)
            state->running_total += 2 * (size_t)net->layers[l].shape.channels;
    nn_initialise(net, seed);
}

size_t nn_state_count(const nn_state *state)
{
    return (1 + (size_t)state->optimizer->array_count) * state->parameter_total +
           state->workers * state->running_total;
}

/* Copies between a row of numbers and the layers. */
static void copy_running(const nn_state *state, float *numbers, bool out)
{
    for (int l = 0; l < state->net->layer_count; l++) {
        const nn_layer *layer = &state->net->layers[l];
        if (!layer->running)
            continue;
        size_t count = 2 * (size_t)layer->shape.channels;
        memcpy(out ? numbers : layer->running, out ? layer->running : numbers,
               count * sizeof *numbers);
        numbers += count;
    }
}

void nn_state_running_out(const nn_state *state, float *numbers)
{
    copy_running(state, numbers, true);
}

void nn_state_running_in(nn_state *state, const float *numbers)
{
    copy_running(state, (float *)numbers, false);
}

uint32_t nn_state_checksum(const nn_state *state)
{
    uLong sum = crc32_z(0, NULL, 0);
    for (int i = 0; i < state->net->parameter_count; i++)
        sum = crc32_z(sum, (const Bytef *)state->net->parameters[i].data,
                      state->net->parameters[i].count * sizeof(float));
    return (uint32_t)sum;
}
