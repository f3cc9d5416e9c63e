/* GoogleNet, Szegedy et al. 2015, with batch normalisation and without auxiliary classifiers, as in
 * torchvision. */
#include "nn/models.h"

static nn_value conv(nn_net *net, nn_value x, const char *name, nn_conv shape)
{
    x = nn_add_conv(net, x, nn_name_of("%s.conv", name).text, shape);
    return nn_add_relu(net, nn_add_normal(net, x, nn_name_of("%s.bn", name).text));
}

static nn_value conv1x1(nn_net *net, nn_value x, const char *name, int channels)
{
    return conv(net, x, name, (nn_conv){.channels = channels, .height = 1});
}

static nn_value conv3x3(nn_net *net, nn_value x, const char *name, int channels)
{
    return conv(net, x, name, (nn_conv){.channels = channels, .height = 3, .pad_h = 1, .pad_w = 1});
}

static nn_value max_pool(nn_net *net, nn_value x, int size, int stride, int pad)
{
    return nn_add_pool(
        net, x,
        (nn_pool_shape){
            .pooling = NN_MAX, .size = size, .stride = stride, .pad = pad, .ceil = true});
}

/* Four parallel branches and their channels: 1x1; 3x3 reduced and 3x3; 5x5 (a 3x3) reduced and 5x5;
 * pooled. */
typedef struct inception {
    const char *name;
    int c1, c3_in, c3, c5_in, c5, pooled;
    int pool_behind; /* the size of a subsequent pooling, or 0 */
} inception;

static nn_value add_inception(nn_net *net, nn_value in, const inception *i)
{
    nn_value branches[4];
    branches[0] = conv1x1(net, in, nn_name_of("%s.branch1", i->name).text, i->c1);
    nn_value x = conv1x1(net, in, nn_name_of("%s.branch2.0", i->name).text, i->c3_in);
    branches[1] = conv3x3(net, x, nn_name_of("%s.branch2.1", i->name).text, i->c3);
    x = conv1x1(net, in, nn_name_of("%s.branch3.0", i->name).text, i->c5_in);
    branches[2] = conv3x3(net, x, nn_name_of("%s.branch3.1", i->name).text, i->c5);
    x = max_pool(net, in, 3, 1, 1);
    branches[3] = conv1x1(net, x, nn_name_of("%s.branch4.1", i->name).text, i->pooled);
    x = nn_add_concat(net, branches, 4);
    return i->pool_behind ? max_pool(net, x, i->pool_behind, 2, 0) : x;
}

nn_value nn_build_googlenet(nn_net *net, int classes)
{
    static const inception inceptions[] = {
        {"inception3a", 64, 96, 128, 16, 32, 32, 0},
        {"inception3b", 128, 128, 192, 32, 96, 64, 3},
        {"inception4a", 192, 96, 208, 16, 48, 64, 0},
        {"inception4b", 160, 112, 224, 24, 64, 64, 0},
        {"inception4c", 128, 128, 256, 24, 64, 64, 0},
        {"inception4d", 112, 144, 288, 32, 64, 64, 0},
        {"inception4e", 256, 160, 320, 32, 128, 128, 2},
        {"inception5a", 256, 160, 320, 32, 128, 128, 0},
        {"inception5b", 384, 192, 384, 48, 128, 128, 0},
    };
    net->epsilon = 1e-3f;
    nn_conv stem = {.channels = 64, .height = 7, .stride = 2, .pad_h = 3, .pad_w = 3};
    nn_value x = max_pool(net, conv(net, nn_input(net), "conv1", stem), 3, 2, 0);
    x = conv1x1(net, x, "conv2", 64);
    x = max_pool(net, conv3x3(net, x, "conv3", 192), 3, 2, 0);
    for (size_t i = 0; i < sizeof inceptions / sizeof *inceptions; i++)
        x = add_inception(net, x, &inceptions[i]);
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_AVERAGE});
    return nn_add_linear(net, x, "fc", classes);
}
