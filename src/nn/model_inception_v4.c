/* Inception-v4, Szegedy et al. 2017: modules of branches, each a chain of convolutions. */
#include "nn/models.h"

typedef enum fit { SAME, INSIDE } fit; /* padded to keep the size, or not */

typedef struct conv {
    int channels; /* 0: end of the chain */
    int height;
    int width;
    int stride;
    fit fit;
} conv;

enum { CHAIN_MAX = 6, BRANCHES_MAX = 4 };

/*
 * A branch: an optional pooling, then a chain; if it forks, the last two convolutions are parallel.
 */
typedef struct branch {
    enum { CONVOLUTIONS, MAX_HALVED, AVERAGE } first;
    conv chain[CHAIN_MAX];
    bool forks;
} branch;

typedef struct module {
    int repeat;
    branch branches[BRANCHES_MAX];
    int count;
} module;

#define C1(channels)                                                                               \
    {                                                                                              \
        channels, 1, 1, 1, SAME                                                                    \
    }
#define C3(channels)                                                                               \
    {                                                                                              \
        channels, 3, 3, 1, SAME                                                                    \
    }
#define C3_INSIDE(channels)                                                                        \
    {                                                                                              \
        channels, 3, 3, 1, INSIDE                                                                  \
    }
#define C3_HALVES(channels)                                                                        \
    {                                                                                              \
        channels, 3, 3, 2, INSIDE                                                                  \
    }
#define ROW(channels, n)                                                                           \
    {                                                                                              \
        channels, 1, n, 1, SAME                                                                    \
    }
#define COLUMN(channels, n)                                                                        \
    {                                                                                              \
        channels, n, 1, 1, SAME                                                                    \
    }
#define CHAIN(...)                                                                                 \
    {                                                                                              \
        CONVOLUTIONS, {__VA_ARGS__}, false                                                         \
    }
#define FORK(...)                                                                                  \
    {                                                                                              \
        CONVOLUTIONS, {__VA_ARGS__}, true                                                          \
    }
#define POOLED(channels)                                                                           \
    {                                                                                              \
        AVERAGE, {C1(channels)}, false                                                             \
    }
#define HALVED                                                                                     \
    {                                                                                              \
        MAX_HALVED, {{0}}, false                                                                   \
    }

static const module modules[] = {
    {1, {CHAIN(C3_HALVES(32))}, 1},
    {1, {CHAIN(C3_INSIDE(32))}, 1},
    {1, {CHAIN(C3(64))}, 1},
    {1, {HALVED, CHAIN(C3_HALVES(96))}, 2},
    {1, {CHAIN(C1(64), C3_INSIDE(96)), CHAIN(C1(64), ROW(64, 7), COLUMN(64, 7), C3_INSIDE(96))}, 2},
    {1, {CHAIN(C3_HALVES(192)), HALVED}, 2},
    {4, {CHAIN(C1(96)), CHAIN(C1(64), C3(96)), CHAIN(C1(64), C3(96), C3(96)), POOLED(96)}, 4},
    {1, {CHAIN(C3_HALVES(384)), CHAIN(C1(192), C3(224), C3_HALVES(256)), HALVED}, 3},
    {7,
     {CHAIN(C1(384)), CHAIN(C1(192), ROW(224, 7), COLUMN(256, 7)),
      CHAIN(C1(192), COLUMN(192, 7), ROW(224, 7), COLUMN(224, 7), ROW(256, 7)), POOLED(128)},
     4},
    {1,
     {CHAIN(C1(192), C3_HALVES(192)), CHAIN(C1(256), ROW(256, 7), COLUMN(320, 7), C3_HALVES(320)),
      HALVED},
     3},
    {3,
     {CHAIN(C1(256)), FORK(C1(384), ROW(256, 3), COLUMN(256, 3)),
      FORK(C1(384), COLUMN(448, 3), ROW(512, 3), ROW(256, 3), COLUMN(256, 3)), POOLED(256)},
     4},
};

static nn_value add_conv(nn_net *net, nn_value x, nn_name name, const conv *c)
{
    nn_conv shape = {
        .channels = c->channels, .height = c->height, .width = c->width, .stride = c->stride};
    if (c->fit == SAME) {
        shape.pad_h = (c->height - 1) / 2;
        shape.pad_w = (c->width - 1) / 2;
    }
    x = nn_add_conv(net, x, nn_name_of("%s.conv", name.text).text, shape);
    return nn_add_relu(net, nn_add_normal(net, x, nn_name_of("%s.bn", name.text).text));
}

static nn_value add_pooling(nn_net *net, nn_value x, const branch *b)
{
    if (b->first == MAX_HALVED)
        return nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_MAX, .size = 3, .stride = 2});
    if (b->first == AVERAGE)
        return nn_add_pool(
            net, x,
            (nn_pool_shape){.pooling = NN_AVERAGE_INSIDE, .size = 3, .stride = 1, .pad = 1});
    return x;
}

/* Appends the one or two outputs of a branch to `out`. */
static int add_branch(nn_net *net, nn_value in, int number, int b, const branch *spec,
                      nn_value *out)
{
    nn_value x = add_pooling(net, in, spec);
    int length = 0;
    while (length < CHAIN_MAX && spec->chain[length].channels)
        length++;
    int straight = spec->forks ? length - 2 : length;
    for (int i = 0; i < straight; i++)
        x = add_conv(net, x, nn_name_of("features.%d.branch%d.%d", number, b, i), &spec->chain[i]);
    if (!spec->forks) {
        out[0] = x;
        return 1;
    }
    for (int i = 0; i < 2; i++)
        out[i] = add_conv(net, x, nn_name_of("features.%d.branch%d.%d", number, b, straight + i),
                          &spec->chain[straight + i]);
    return 2;
}

nn_value nn_build_inception_v4(nn_net *net, int classes)
{
    net->epsilon = 1e-3f;
    nn_value x = nn_input(net);
    int number = 0;
    for (size_t m = 0; m < sizeof modules / sizeof *modules; m++)
        for (int r = 0; r < modules[m].repeat; r++, number++) {
            nn_value out[NN_PARTS_MAX];
            int count = 0;
            for (int b = 0; b < modules[m].count; b++)
                count += add_branch(net, x, number, b, &modules[m].branches[b], out + count);
            x = count == 1 ? out[0] : nn_add_concat(net, out, count);
        }
    x = nn_add_pool(net, x, (nn_pool_shape){.pooling = NN_AVERAGE});
    return nn_add_linear(net, x, "last_linear", classes);
}
