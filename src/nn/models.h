/* The networks, by name. */
#ifndef MGW_NN_MODELS_H
#define MGW_NN_MODELS_H

#include "nn/net.h"

typedef struct nn_model {
    const char *name;
    int channels; /* of its usual images, and their size */
    int size;
    int classes;
    nn_value (*build)(nn_net *net, int classes);
} nn_model;

extern const nn_model nn_models[];
extern const size_t nn_model_count;

/* Null: there is none of that name. */
const nn_model *nn_model_find(const char *name);

/* Builds a model for images of that size, with zero weights. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status nn_model_build(const nn_model *model, int batch, int channels, int size,
                                      int classes, nn_net **out, mgw_error *error);

/* ---- For the definitions ---- */

/* Joins "layer1.0" and "conv1" to "layer1.0.conv1"; any number of levels. */
typedef struct nn_name {
    char text[80];
} nn_name;
nn_name nn_name_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

nn_value nn_build_lenet5(nn_net *net, int classes);
nn_value nn_build_resnet20(nn_net *net, int classes);
nn_value nn_build_resnet50(nn_net *net, int classes);
nn_value nn_build_resnet152(nn_net *net, int classes);
nn_value nn_build_googlenet(nn_net *net, int classes);
nn_value nn_build_densenet161(nn_net *net, int classes);
nn_value nn_build_densenet201(nn_net *net, int classes);
nn_value nn_build_inception_v4(nn_net *net, int classes);

#endif
