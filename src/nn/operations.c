/* The operations of networks, described to oneDNN. */
#include <string.h>

#include "base/status.h"
#include "nn/onednn.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- How numbers lie in memory ---- */

static layout layout_of(int dims, const dnnl_dim_t *sizes, dnnl_format_tag_t tag)
{
    layout made;
    memset(&made, 0, sizeof made);
    dnnl_memory_desc_init_by_tag(&made, dims, sizes, dnnl_f32, tag);
    return made;
}

static layout image_layout(const nn_image *image)
{
    return layout_of(4, (dnnl_dims_t){image->batch, image->channels, image->height, image->width},
                     dnnl_nhwc);
}

static layout rows_layout(const nn_image *image)
{
    return layout_of(2, (dnnl_dims_t){image->batch, image->channels}, dnnl_nc);
}

static layout vector_layout(int count)
{
    return layout_of(1, (dnnl_dims_t){count}, dnnl_x);
}

/* Weights in our layout, or (dnnl_format_tag_any) in the primitive's preferred one. */
static layout weights_layout(const nn_image *in, const nn_image *out, int height, int width,
                             dnnl_format_tag_t tag)
{
    return layout_of(4, (dnnl_dims_t){out->channels, in->channels, height, width}, tag);
}

/* ---- Convolution ---- */

/* Common to its three passes. */
typedef struct convolution {
    dnnl_dims_t strides;
    dnnl_dims_t before;
    dnnl_dims_t behind;
    layout in;
    layout out;
    layout weights; /* in our layout */
    layout chosen;  /* in the primitive's preferred layout */
    layout bias;
    dnnl_convolution_desc_t forward;
    dnnl_status_t code;
} convolution;

static void describe_convolution(const nn_window *w, const nn_image *in, const nn_image *out,
                                 bool has_bias, convolution *c)
{
    *c = (convolution){.strides = {w->stride, w->stride},
                       .before = {w->pad_top, w->pad_left},
                       .behind = {w->pad_bottom, w->pad_right},
                       .in = image_layout(in),
                       .out = image_layout(out),
                       .weights = weights_layout(in, out, w->height, w->width, dnnl_oihw),
                       .chosen = weights_layout(in, out, w->height, w->width, dnnl_format_tag_any),
                       .bias = vector_layout(out->channels)};
    c->code = dnnl_convolution_forward_desc_init(
        &c->forward, dnnl_forward_training, dnnl_convolution_direct, &c->in, &c->chosen,
        has_bias ? &c->bias : NULL, &c->out, c->strides, c->before, c->behind);
}

mgw_status nn_convolution(nn_processor *processor, const nn_window *window, const nn_image *in,
                          float *weights, float *bias, const nn_image *out, nn_kernel **made,
                          mgw_error *error)
{
    convolution c;
    describe_convolution(window, in, out, bias, &c);
    const binding bindings[] = {{DNNL_ARG_SRC, c.in, in->data},
                                {DNNL_ARG_WEIGHTS, c.weights, weights},
                                {DNNL_ARG_BIAS, c.bias, bias},
                                {DNNL_ARG_DST, c.out, out->data}};
    return kernel_make(processor, "convolution", c.code, &c.forward, NULL, bindings,
                       COUNT(bindings), made, error);
}

mgw_status nn_convolution_back_data(nn_processor *processor, const nn_window *window,
                                    const nn_image *d_in, float *weights, const nn_image *d_out,
                                    nn_kernel **made, mgw_error *error)
{
    convolution c;
    dnnl_convolution_desc_t backward;
    describe_convolution(window, d_in, d_out, false, &c);
    if (!c.code)
        c.code = dnnl_convolution_backward_data_desc_init(&backward, dnnl_convolution_direct, &c.in,
                                                          &c.chosen, &c.out, c.strides, c.before,
                                                          c.behind);
    const binding bindings[] = {{DNNL_ARG_DIFF_SRC, c.in, d_in->data},
                                {DNNL_ARG_WEIGHTS, c.weights, weights},
                                {DNNL_ARG_DIFF_DST, c.out, d_out->data}};
    return kernel_make(processor, "convolution", c.code, &backward, &c.forward, bindings,
                       COUNT(bindings), made, error);
}

mgw_status nn_convolution_back_weights(nn_processor *processor, const nn_window *window,
                                       const nn_image *in, float *d_weights, float *d_bias,
                                       const nn_image *d_out, nn_kernel **made, mgw_error *error)
{
    convolution c;
    dnnl_convolution_desc_t backward;
    describe_convolution(window, in, d_out, d_bias, &c);
    if (!c.code)
        c.code = dnnl_convolution_backward_weights_desc_init(
            &backward, dnnl_convolution_direct, &c.in, &c.chosen, d_bias ? &c.bias : NULL, &c.out,
            c.strides, c.before, c.behind);
    const binding bindings[] = {{DNNL_ARG_SRC, c.in, in->data},
                                {DNNL_ARG_DIFF_WEIGHTS, c.weights, d_weights},
                                {DNNL_ARG_DIFF_BIAS, c.bias, d_bias},
                                {DNNL_ARG_DIFF_DST, c.out, d_out->data}};
    return kernel_make(processor, "convolution", c.code, &backward, &c.forward, bindings,
                       COUNT(bindings), made, error);
}

/* ---- Linear ---- */

typedef struct linear {
    layout in;
    layout out;
    layout weights; /* in our layout */
    layout chosen;  /* in the primitive's preferred layout */
    layout bias;
    dnnl_inner_product_desc_t forward;
    dnnl_status_t code;
} linear;

static void describe_linear(const nn_image *in, const nn_image *out, linear *l)
{
    *l = (linear){.in = image_layout(in),
                  .out = rows_layout(out),
                  .weights = weights_layout(in, out, in->height, in->width, dnnl_oihw),
                  .chosen = weights_layout(in, out, in->height, in->width, dnnl_format_tag_any),
                  .bias = vector_layout(out->channels)};
    l->code = dnnl_inner_product_forward_desc_init(&l->forward, dnnl_forward_training, &l->in,
                                                   &l->chosen, &l->bias, &l->out);
}

mgw_status nn_linear(nn_processor *processor, const nn_image *in, float *weights, float *bias,
                     const nn_image *out, nn_kernel **made, mgw_error *error)
{
    linear l;
    describe_linear(in, out, &l);
    const binding bindings[] = {{DNNL_ARG_SRC, l.in, in->data},
                                {DNNL_ARG_WEIGHTS, l.weights, weights},
                                {DNNL_ARG_BIAS, l.bias, bias},
                                {DNNL_ARG_DST, l.out, out->data}};
    return kernel_make(processor, "linear layer", l.code, &l.forward, NULL, bindings,
                       COUNT(bindings), made, error);
}

mgw_status nn_linear_back_data(nn_processor *processor, const nn_image *d_in, float *weights,
                               const nn_image *d_out, nn_kernel **made, mgw_error *error)
{
    linear l;
    dnnl_inner_product_desc_t backward;
    describe_linear(d_in, d_out, &l);
    if (!l.code)
        l.code = dnnl_inner_product_backward_data_desc_init(&backward, &l.in, &l.chosen, &l.out);
    const binding bindings[] = {{DNNL_ARG_DIFF_SRC, l.in, d_in->data},
                                {DNNL_ARG_WEIGHTS, l.weights, weights},
                                {DNNL_ARG_DIFF_DST, l.out, d_out->data}};
    return kernel_make(processor, "linear layer", l.code, &backward, &l.forward, bindings,
                       COUNT(bindings), made, error);
}

mgw_status nn_linear_back_weights(nn_processor *processor, const nn_image *in, float *d_weights,
                                  float *d_bias, const nn_image *d_out, nn_kernel **made,
                                  mgw_error *error)
{
    linear l;
    dnnl_inner_product_desc_t backward;
    describe_linear(in, d_out, &l);
    if (!l.code)
        l.code = dnnl_inner_product_backward_weights_desc_init(&backward, &l.in, &l.chosen, &l.bias,
                                                               &l.out);
    const binding bindings[] = {{DNNL_ARG_SRC, l.in, in->data},
                                {DNNL_ARG_DIFF_WEIGHTS, l.weights, d_weights},
                                {DNNL_ARG_DIFF_BIAS, l.bias, d_bias},
                                {DNNL_ARG_DIFF_DST, l.out, d_out->data}};
    return kernel_make(processor, "linear layer", l.code, &backward, &l.forward, bindings,
                       COUNT(bindings), made, error);
}

/* ---- Batch normalisation ---- */

static const unsigned affine = dnnl_use_scale | dnnl_use_shift;

mgw_status nn_normalise(nn_processor *processor, const nn_normal *normal, const nn_image *in,
                        const nn_image *out, nn_kernel **made, mgw_error *error)
{
    layout image = image_layout(in);
    layout channel = vector_layout(in->channels);
    dnnl_batch_normalization_desc_t operation;
    dnnl_status_t code = dnnl_batch_normalization_forward_desc_init(
        &operation, dnnl_forward_training, &image, normal->epsilon, dnnl_use_global_stats | affine);
    const binding bindings[] = {{DNNL_ARG_SRC, image, in->data},
                                {DNNL_ARG_MEAN, channel, normal->mean},
                                {DNNL_ARG_VARIANCE, channel, normal->variance},
                                {DNNL_ARG_SCALE, channel, normal->scale},
                                {DNNL_ARG_SHIFT, channel, normal->shift},
                                {DNNL_ARG_DST, image, out->data}};
    return kernel_make(processor, "batch normalisation", code, &operation, NULL, bindings,
                       COUNT(bindings), made, error);
}

mgw_status nn_normalise_back(nn_processor *processor, const nn_normal *normal, const nn_image *in,
                             const nn_image *d_out, const nn_image *d_in, float *d_scale,
                             float *d_shift, nn_kernel **made, mgw_error *error)
{
    layout image = image_layout(in);
    layout channel = vector_layout(in->channels);
    dnnl_batch_normalization_desc_t forward;
    dnnl_batch_normalization_desc_t operation;
    dnnl_status_t code = dnnl_batch_normalization_forward_desc_init(
        &forward, dnnl_forward_training, &image, normal->epsilon, affine);
    if (!code)
        code = dnnl_batch_normalization_backward_desc_init(&operation, dnnl_backward, &image,
                                                           &image, normal->epsilon, affine);
    const binding bindings[] = {{DNNL_ARG_SRC, image, in->data},
                                {DNNL_ARG_MEAN, channel, normal->mean},
                                {DNNL_ARG_VARIANCE, channel, normal->variance},
                                {DNNL_ARG_SCALE, channel, normal->scale},
                                {DNNL_ARG_SHIFT, channel, normal->shift},
                                {DNNL_ARG_DIFF_DST, image, d_out->data},
                                {DNNL_ARG_DIFF_SRC, image, d_in->data},
                                {DNNL_ARG_DIFF_SCALE, channel, d_scale},
                                {DNNL_ARG_DIFF_SHIFT, channel, d_shift}};
    return kernel_make(processor, "batch normalisation", code, &operation, &forward, bindings,
                       COUNT(bindings), made, error);
}

/* ---- ReLU: backward from what came out, so that forward may work in place ---- */

static const dnnl_alg_kind_t relu = dnnl_eltwise_relu_use_dst_for_bwd;

mgw_status nn_relu(nn_processor *processor, const nn_image *in, const nn_image *out,
                   nn_kernel **made, mgw_error *error)
{
    layout where = image_layout(in);
    dnnl_eltwise_desc_t operation;
    dnnl_status_t code =
        dnnl_eltwise_forward_desc_init(&operation, dnnl_forward_training, relu, &where, 0, 0);
    const binding bindings[] = {{DNNL_ARG_SRC, where, in->data}, {DNNL_ARG_DST, where, out->data}};
    return kernel_make(processor, "ReLU", code, &operation, NULL, bindings, COUNT(bindings), made,
                       error);
}

mgw_status nn_relu_back(nn_processor *processor, const nn_image *out, const nn_image *d_out,
                        const nn_image *d_in, nn_kernel **made, mgw_error *error)
{
    layout where = image_layout(out);
    dnnl_eltwise_desc_t forward;
    dnnl_eltwise_desc_t operation;
    dnnl_status_t code =
        dnnl_eltwise_forward_desc_init(&forward, dnnl_forward_training, relu, &where, 0, 0);
    if (!code)
        code = dnnl_eltwise_backward_desc_init(&operation, relu, &where, &where, 0, 0);
    const binding bindings[] = {{DNNL_ARG_DST, where, out->data},
                                {DNNL_ARG_DIFF_DST, where, d_out->data},
                                {DNNL_ARG_DIFF_SRC, where, d_in->data}};
    return kernel_make(processor, "ReLU", code, &operation, &forward, bindings, COUNT(bindings),
                       made, error);
}

/* ---- Pooling ---- */

typedef struct pooling {
    dnnl_dims_t strides;
    dnnl_dims_t window;
    dnnl_dims_t before;
    dnnl_dims_t behind;
    layout in;
    layout out;
    dnnl_alg_kind_t kind;
    dnnl_pooling_desc_t forward;
    dnnl_status_t code;
} pooling;

static void describe_pooling(nn_pooling kind, const nn_window *w, const nn_image *in,
                             const nn_image *out, pooling *p)
{
    static const dnnl_alg_kind_t kinds[] = {[NN_MAX] = dnnl_pooling_max,
                                            [NN_AVERAGE] = dnnl_pooling_avg_include_padding,
                                            [NN_AVERAGE_INSIDE] = dnnl_pooling_avg_exclude_padding};
    *p = (pooling){.strides = {w->stride, w->stride},
                   .window = {w->height, w->width},
                   .before = {w->pad_top, w->pad_left},
                   .behind = {w->pad_bottom, w->pad_right},
                   .in = image_layout(in),
                   .out = image_layout(out),
                   .kind = kinds[kind]};
    p->code = dnnl_pooling_forward_desc_init(&p->forward, dnnl_forward_training, p->kind, &p->in,
                                             &p->out, p->strides, p->window, p->before, p->behind);
}

mgw_status nn_pool(nn_processor *processor, nn_pooling kind, const nn_window *window,
                   const nn_image *in, const nn_image *out, nn_kernel **made, mgw_error *error)
{
    pooling p;
    describe_pooling(kind, window, in, out, &p);
    nn_kernel *kernel = kernel_begin(processor);
    mgw_status status =
        kernel ? kernel_check(p.code, "pooling", error) : mgw_fail_memory(error, "nn");
    if (!status)
        status = kernel_check(dnnl_primitive_desc_create(&kernel->description, &p.forward, NULL,
                                                         processor->engine, NULL),
                              "pooling", error);
    if (!status) {
        const layout *space =
            dnnl_primitive_desc_query_md(kernel->description, dnnl_query_workspace_md, 0);
        kernel->workspace = nn_allocate(dnnl_memory_desc_get_size(space) / sizeof(float) + 1);
        const binding bindings[] = {{DNNL_ARG_SRC, p.in, in->data},
                                    {DNNL_ARG_WORKSPACE, *space, kernel->workspace},
                                    {DNNL_ARG_DST, p.out, out->data}};
        status = kernel->workspace
                     ? kernel_complete(kernel, bindings, COUNT(bindings), "pooling", error)
                     : mgw_fail_memory(error, "pooling");
    }
    return kernel_finish(status, kernel, made);
}

mgw_status nn_pool_back(nn_processor *processor, nn_pooling kind, const nn_window *window,
                        nn_kernel *forward, const nn_image *d_in, const nn_image *d_out,
                        nn_kernel **made, mgw_error *error)
{
    pooling p;
    dnnl_pooling_desc_t backward;
    describe_pooling(kind, window, d_in, d_out, &p);
    if (!p.code)
        p.code = dnnl_pooling_backward_desc_init(&backward, p.kind, &p.in, &p.out, p.strides,
                                                 p.window, p.before, p.behind);
    const layout *space =
        dnnl_primitive_desc_query_md(forward->description, dnnl_query_workspace_md, 0);
    const binding bindings[] = {{DNNL_ARG_DIFF_SRC, p.in, d_in->data},
                                {DNNL_ARG_WORKSPACE, *space, forward->workspace},
                                {DNNL_ARG_DIFF_DST, p.out, d_out->data}};
    return kernel_make(processor, "pooling", p.code, &backward, &p.forward, bindings,
                       COUNT(bindings), made, error);
}

/* ---- Sums, channels together and apart ---- */

mgw_status nn_sum(nn_processor *processor, const nn_image *a, const nn_image *b,
                  const nn_image *out, nn_kernel **made, mgw_error *error)
{
    layout where = image_layout(out);
    dnnl_binary_desc_t operation;
    dnnl_status_t code = dnnl_binary_desc_init(&operation, dnnl_binary_add, &where, &where, &where);
    const binding bindings[] = {{DNNL_ARG_SRC_0, where, a->data},
                                {DNNL_ARG_SRC_1, where, b->data},
                                {DNNL_ARG_DST, where, out->data}};
    return kernel_make(processor, "sum", code, &operation, NULL, bindings, COUNT(bindings), made,
                       error);
}

mgw_status nn_concat(nn_processor *processor, const nn_image *const *in, int count,
                     const nn_image *out, nn_kernel **made, mgw_error *error)
{
    layout parts[NN_PARTS_MAX];
    binding bindings[NN_PARTS_MAX + 1];
    layout whole = image_layout(out);
    for (int i = 0; i < count; i++) {
        parts[i] = image_layout(in[i]);
        bindings[i] = (binding){DNNL_ARG_MULTIPLE_SRC + i, parts[i], in[i]->data};
    }
    bindings[count] = (binding){DNNL_ARG_DST, whole, out->data};
    nn_kernel *kernel = kernel_begin(processor);
    mgw_status status =
        kernel ? kernel_check(dnnl_concat_primitive_desc_create(&kernel->description, &whole, count,
                                                                1, parts, NULL, processor->engine),
                              "concat", error)
               : mgw_fail_memory(error, "concat");
    if (!status)
        status = kernel_complete(kernel, bindings, (size_t)count + 1, "concat", error);
    return kernel_finish(status, kernel, made);
}

mgw_status nn_slice(nn_processor *processor, const nn_image *in, int first_channel,
                    const nn_image *out, nn_kernel **made, mgw_error *error)
{
    layout whole = image_layout(in);
    binding from = {DNNL_ARG_FROM, whole, in->data};
    binding to = {DNNL_ARG_TO, image_layout(out), out->data};
    dnnl_dims_t sizes = {out->batch, out->channels, out->height, out->width};
    dnnl_dims_t offsets = {0, first_channel, 0, 0};
    nn_kernel *kernel = kernel_begin(processor);
    mgw_status status =
        kernel ? kernel_check(dnnl_memory_desc_init_submemory(&from.where, &whole, sizes, offsets),
                              "slice", error)
               : mgw_fail_memory(error, "slice");
    if (!status)
        status = kernel_reorder(kernel, &from, &to, error);
    return kernel_finish(status, kernel, made);
}

/* ---- Logarithm of softmax ---- */

mgw_status nn_log_softmax(nn_processor *processor, const nn_image *in, const nn_image *out,
                          nn_kernel **made, mgw_error *error)
{
    layout where = rows_layout(in);
    dnnl_logsoftmax_desc_t operation;
    dnnl_status_t code =
        dnnl_logsoftmax_forward_desc_init(&operation, dnnl_forward_training, &where, 1);
    const binding bindings[] = {{DNNL_ARG_SRC, where, in->data}, {DNNL_ARG_DST, where, out->data}};
    return kernel_make(processor, "softmax", code, &operation, NULL, bindings, COUNT(bindings),
                       made, error);
}

mgw_status nn_log_softmax_back(nn_processor *processor, const nn_image *out, const nn_image *d_out,
                               const nn_image *d_in, nn_kernel **made, mgw_error *error)
{
    layout where = rows_layout(out);
    dnnl_logsoftmax_desc_t forward;
    dnnl_logsoftmax_desc_t operation;
    dnnl_status_t code =
        dnnl_logsoftmax_forward_desc_init(&forward, dnnl_forward_training, &where, 1);
    if (!code)
        code = dnnl_logsoftmax_backward_desc_init(&operation, &where, &where, 1);
    const binding bindings[] = {{DNNL_ARG_DST, where, out->data},
                                {DNNL_ARG_DIFF_DST, where, d_out->data},
                                {DNNL_ARG_DIFF_SRC, where, d_in->data}};
    return kernel_make(processor, "softmax", code, &operation, &forward, bindings, COUNT(bindings),
                       made, error);
}
