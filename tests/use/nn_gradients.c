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

static void print_names(const nn_net *net)
{
    for (int i = 0; i < net->parameter_count; i++)
        printf("%s %zu %u\n", net->parameters[i].name, net->parameters[i].count,
               net->parameters[i].tensor);
}

static void write_results(const nn_net *net, float *const *gradients, double loss)
{
    float short_loss = (float)loss;
    fwrite(&short_loss, sizeof short_loss, 1, stdout);
    for (int i = 0; i < net->parameter_count; i++)
        fwrite(gradients[net->parameters[i].tensor], sizeof(float), net->parameters[i].count,
               stdout);
    for (int l = 0; l < net->layer_count; l++)
        if (net->layers[l].running)
            fwrite(net->layers[l].running, sizeof(float), 2 * (size_t)net->layers[l].shape.channels,
                   stdout);
}

static void run(nn_net *net, float *const *gradients, int batch)
{
    mgw_error error;
    nn_processor *processor = NULL;
    nn_program *program = NULL;
    int *labels = calloc((size_t)batch, sizeof *labels);
    must(nn_processor_create(1, &processor, &error), &error);
    must(nn_program_create(processor, net, gradients, &program, &error), &error);
    for (int i = 0; i < net->parameter_count; i++)
        read_all(net->parameters[i].data, sizeof(float), net->parameters[i].count);
    read_all(nn_program_images(program), sizeof(float), nn_image_count(&net->layers[0].shape));
    read_all(labels, sizeof(int), (size_t)batch);
    double loss = 0;
    must(nn_forward(program, labels, batch, true, &loss, NULL, &error), &error);
    must(nn_backward(program, NULL, NULL, &error), &error);
    write_results(net, gradients, loss);
    free(labels);
    nn_program_destroy(program);
    nn_processor_destroy(processor);
}

int main(int argc, char **argv)
{
    const nn_model *model = argc > 5 ? nn_model_find(argv[1]) : NULL;
    if (!model)
        return 2;
    int shape[4]; /* batch, channels, size, classes */
    for (int i = 0; i < 4; i++)
        shape[i] = (int)strtol(argv[2 + i], NULL, 10);
    mgw_error error;
    nn_net *net = NULL;
    must(nn_model_build(model, shape[0], shape[1], shape[2], shape[3], &net, &error), &error);
    if (argc > 6) {
        print_names(net);
        nn_net_destroy(net);
        return 0;
    }
    size_t count = (size_t)net->parameter_count;
    float **gradients = calloc(count, sizeof *gradients);
    for (size_t i = 0; i < count; i++)
        gradients[net->parameters[i].tensor] = nn_allocate(net->parameters[i].count);
    run(net, gradients, shape[0]);
    for (size_t i = 0; i < count; i++)
        free(gradients[i]);
    free((void *)gradients);
    nn_net_destroy(net);
    return 0;
}
