/* Residual networks, He et al. 2016. */
#include "nn/models.h"

static nn_value conv_normal(nn_net *net, nn_value x, const char *block, int number, nn_conv conv)
{
    x = nn_add_conv(net, x, nn_name_of("%s.conv%d", block, number).text, conv);
    return nn_add_normal(net, x, nn_name_of("%s.bn%d", block, number).text);
}

static nn_conv conv3x3(int channels, int stride)
{
    return (nn_conv){.channels = channels, .height = 3, .stride = stride, .pad_h = 1, .pad_w = 1};
}

/* For CIFAR-like images. The shortcut drops every other pixel and adds channels of zeros: it has
 * no parameters. 59 tensors. */
static nn_value basic_block(nn_net *net, nn_value in, const char *name, int channels, bool halves)
{
    nn_value x = nn_add_relu(net, conv_normal(net, in, name, 1, conv3x3(channels, halves ? 2 : 1)));
    x = conv_normal(net, x, name, 2, conv3x3(channels, 1));
    nn_value shortcut = in;
    if (halves) {
        nn_pool_shape every_other = {.pooling = NN_AVERAGE, .size = 1, .stride = 2};
        shortcut = nn_add_pool(net, in, every_other);
        nn_value parts[] = {shortcut, nn_add_zeros(net, shortcut, channels / 2)};
        shortcut = nn_add_concat(net, parts, 2);
    }
    return nn_add_relu(net, nn_add_sum(net, x, shortcut));
}

nn_value nn_build_resnet20(nn_net *net, int classes)
{
    nn_value x = nn_add_conv(net, nn_input(net), "conv1", conv3x3(16, 1));
    x = nn_add_relu(net, nn_add_normal(net, x, "bn1"));
    for (int stage = 0; stage < 3; stage++)
        for (int b = 0; b < 3; b++)
            x = basic_block(net, x, nn_name_of("layer%d.%d", stage + 1, b).text, 16 << stage,
                            stage > 0 && b == 0);
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_AVERAGE});
    return nn_add_linear(net, x, "fc", classes);
}

/* For ImageNet: 1x1, 3x3 and 1x1 convolutions, and four times the channels at the end. */
static nn_value bottleneck(nn_net *net, nn_value in, const char *name, int channels, int stride,
                           bool first)
{
    nn_conv narrow = {.channels = channels, .height = 1};
    nn_conv widen = {.channels = 4 * channels, .height = 1};
    nn_conv project = {.channels = 4 * channels, .height = 1, .stride = stride};
    nn_value x = nn_add_relu(net, conv_normal(net, in, name, 1, narrow));
    x = nn_add_relu(net, conv_normal(net, x, name, 2, conv3x3(channels, stride)));
    x = conv_normal(net, x, name, 3, widen);
    nn_value shortcut = in;
    if (first) {
        shortcut = nn_add_conv(net, in, nn_name_of("%s.downsample.0", name).text, project);
        shortcut = nn_add_normal(net, shortcut, nn_name_of("%s.downsample.1", name).text);
    }
    return nn_add_relu(net, nn_add_sum(net, x, shortcut));
}

static nn_value build(nn_net *net, const int blocks[4], int classes)
{
    nn_value x =
        nn_add_conv(net, nn_input(net), "conv1",
                    (nn_conv){.channels = 64, .height = 7, .stride = 2, .pad_h = 3, .pad_w = 3});
    x = nn_add_relu(net, nn_add_normal(net, x, "bn1"));
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_MAX, .size = 3, .stride = 2, .pad = 1});
    for (int stage = 0; stage < 4; stage++)
        for (int b = 0; b < blocks[stage]; b++)
            x = bottleneck(net, x, nn_name_of("layer%d.%d", stage + 1, b).text, 64 << stage,
                           stage > 0 && b == 0 ? 2 : 1, b == 0);
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_AVERAGE});
    return nn_add_linear(net, x, "fc", classes);
}

nn_value nn_build_resnet50(nn_net *net, int classes)
{
    return build(net, (const int[]){3, 4, 6, 3}, classes);
}

nn_value nn_build_resnet152(nn_net *net, int classes)
{
    return build(net, (const int[]){3, 8, 36, 3}, classes);
}
