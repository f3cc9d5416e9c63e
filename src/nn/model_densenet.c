/* Densely connected networks, Huang et al. 2017: every layer takes all previous outputs. */
#include "nn/models.h"

static nn_value normal_relu(nn_net *net, nn_value x, const char *name)
{
    return nn_add_relu(net, nn_add_normal(net, x, name));
}

static nn_value dense_layer(nn_net *net, nn_value in, const char *name, int growth)
{
    nn_conv narrow = {.channels = 4 * growth, .height = 1};
    nn_conv grow = {.channels = growth, .height = 3, .pad_h = 1, .pad_w = 1};
    nn_value x = normal_relu(net, in, nn_name_of("%s.norm1", name).text);
    x = nn_add_conv(net, x, nn_name_of("%s.conv1", name).text, narrow);
    x = normal_relu(net, x, nn_name_of("%s.norm2", name).text);
    x = nn_add_conv(net, x, nn_name_of("%s.conv2", name).text, grow);
    return nn_add_concat(net, (const nn_value[]){in, x}, 2);
}

/* Between two blocks: half the channels, half the size. */
static nn_value transition(nn_net *net, nn_value x, int block, int channels)
{
    nn_name name = nn_name_of("features.transition%d", block);
    x = normal_relu(net, x, nn_name_of("%s.norm", name.text).text);
    x = nn_add_conv(net, x, nn_name_of("%s.conv", name.text).text,
                    (nn_conv){.channels = channels, .height = 1});
    return nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_AVERAGE, .size = 2, .stride = 2});
}

static nn_value build(nn_net *net, const int layers[4], int growth, int channels, int classes)
{
    nn_conv stem = {.channels = channels, .height = 7, .stride = 2, .pad_h = 3, .pad_w = 3};
    nn_value x = nn_add_conv(net, nn_input(net), "features.conv0", stem);
    x = normal_relu(net, x, "features.norm0");
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_MAX, .size = 3, .stride = 2, .pad = 1});
    for (int block = 0; block < 4; block++) {
        for (int l = 0; l < layers[block]; l++)
            x = dense_layer(net, x,
                            nn_name_of("features.denseblock%d.denselayer%d", block + 1, l + 1).text,
                            growth);
        channels += layers[block] * growth;
        if (block < 3)
            x = transition(net, x, block + 1, channels /= 2);
    }
    x = normal_relu(net, x, "features.norm5");
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_AVERAGE});
    return nn_add_linear(net, x, "classifier", classes);
}

nn_value nn_build_densenet161(nn_net *net, int classes)
{
    return build(net, (const int[]){6, 12, 36, 24}, 48, 96, classes);
}

nn_value nn_build_densenet201(nn_net *net, int classes)
{
    return build(net, (const int[]){6, 12, 48, 32}, 32, 64, classes);
}
