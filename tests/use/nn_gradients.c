/*
 * The loss and all gradients of one training step, for a test that knows better what they must be.
 *
 *     nn_gradients MODEL BATCH CHANNELS SIZE CLASSES < weights, images, labels > results
 *     nn_gradients MODEL BATCH CHANNELS SIZE CLASSES --names
 *
 * In: all parameters as the net numbers them, images (nhwc), as floats; labels, as 32-bit integers.
 * Out: the loss, then each parameter's gradient, then running means and variances, as floats.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/models.h"
#include "nn/program.h"

static void must(mgw_status status, const mgw_error *error)
{
    if (!status)
        return;
    fprintf(stderr, "nn_gradients: %s\n", error->message);
    exit(2);
}

static void read_all(void *data, size_t size, size_t count)
{
    if (fread(data, size, count, stdin) != count) {
        fprintf(stderr, "nn_gradients: input is too short\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    mgw_error error;
    const nn_model *model = nn_model_find(argv[1]);
    int batch = atoi(argv[2]);
    nn_net *net = NULL;
    if (!model)
        return 2;
    must(nn_model_build(model, batch, atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), &net, &error),
         &error);
    size_t count = (size_t)net->parameter_count;
    if (argc > 6) {
        for (size_t i = 0; i < count; i++)
            printf("%s %zu %u\n", net->parameters[i].name, net->parameters[i].count,
                   net->parameters[i].tensor);
        nn_net_destroy(net);
        return 0;
    }
    float **gradients = calloc(count, sizeof *gradients);
    int *labels = calloc((size_t)batch, sizeof *labels);
    for (size_t i = 0; i < count; i++)
        gradients[net->parameters[i].tensor] = nn_allocate(net->parameters[i].count);
    nn_device *device = NULL;
    nn_program *program = NULL;
    must(nn_device_create(1, &device, &error), &error);
    must(nn_program_create(device, net, gradients, &program, &error), &error);
    for (size_t i = 0; i < count; i++)
        read_all(net->parameters[i].data, sizeof(float), net->parameters[i].count);
    read_all(nn_program_images(program), sizeof(float), nn_image_count(&net->layers[0].shape));
    read_all(labels, sizeof(int), (size_t)batch);
    double loss = 0;
    must(nn_forward(program, labels, batch, true, &loss, NULL, &error), &error);
    must(nn_backward(program, NULL, NULL, &error), &error);
    float short_loss = (float)loss;
    fwrite(&short_loss, sizeof short_loss, 1, stdout);
    for (size_t i = 0; i < count; i++)
        fwrite(gradients[net->parameters[i].tensor], sizeof(float), net->parameters[i].count,
               stdout);
    for (int l = 0; l < net->layer_count; l++)
        if (net->layers[l].running)
            fwrite(net->layers[l].running, sizeof(float), 2 * (size_t)net->layers[l].shape.channels,
                   stdout);
    for (size_t i = 0; i < count; i++)
        free(gradients[i]);
    free((void *)gradients);
    free(labels);
    nn_program_destroy(program);
    nn_device_destroy(device);
    nn_net_destroy(net);
    return 0;
}
