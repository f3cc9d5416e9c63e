/* The networks by name, and LeNet-5. */
#include "nn/models.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

const nn_model nn_models[] = {
    {"lenet5", 1, 28, 10, nn_build_lenet5},
    {"resnet20", 1, 28, 10, nn_build_resnet20},
    {"resnet50", 3, 224, 1000, nn_build_resnet50},
    {"resnet152", 3, 224, 1000, nn_build_resnet152},
    {"googlenet", 3, 224, 1000, nn_build_googlenet},
    {"densenet161", 3, 224, 1000, nn_build_densenet161},
    {"densenet201", 3, 224, 1000, nn_build_densenet201},
    {"inception_v4", 3, 299, 1000, nn_build_inception_v4},
};
const size_t nn_model_count = sizeof nn_models / sizeof *nn_models;

const nn_model *nn_model_find(const char *name)
{
    for (size_t i = 0; i < nn_model_count; i++)
        if (!strcmp(nn_models[i].name, name))
            return &nn_models[i];
    return NULL;
}

mgw_status nn_model_build(const nn_model *model, int batch, int channels, int size, int classes,
                          nn_net **out, mgw_error *error)
{
    nn_net *net = nn_net_create(model->name, batch, channels, size, size);
    if (!net)
        return mgw_fail_memory(error, model->name);
    mgw_status status = nn_finish(net, model->build(net, classes), error);
    if (status)
        nn_net_destroy(net);
    else
        *out = net;
    return status;
}

nn_name nn_name_of(const char *format, ...)
{
    nn_name name;
    va_list values;
    va_start(values, format);
    vsnprintf(name.text, sizeof name.text, format, values);
    va_end(values);
    return name;
}

/* LeCun et al. 1998, with ReLU and max pooling as it is trained today: 10 tensors. */
nn_value nn_build_lenet5(nn_net *net, int classes)
{
    const nn_pool_shape half = {.pooling = NN_MAX, .size = 2, .stride = 2};
    nn_value x = nn_input(net);
    x = nn_add_conv(net, x, "conv1",
                    (nn_conv){.channels = 6, .height = 5, .pad_h = 2, .pad_w = 2, .bias = true});
    x = nn_add_pool(net, nn_add_relu(net, x), half);
    x = nn_add_conv(net, x, "conv2", (nn_conv){.channels = 16, .height = 5, .bias = true});
    x = nn_add_pool(net, nn_add_relu(net, x), half);
    x = nn_add_relu(net, nn_add_linear(net, x, "fc1", 120));
    x = nn_add_relu(net, nn_add_linear(net, x, "fc2", 84));
    return nn_add_linear(net, x, "fc3", classes);
}
