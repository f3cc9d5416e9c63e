/* The callbacks of a running network, and when its parameters may change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/models.h"
#include "nn/program.h"
#include "nn/random.h"

typedef struct run {
    nn_net *net;
    nn_processor *processor;
    nn_program *program;
    float **gradients;
    bool spoils; /* every parameter, as soon as its gradient is told */
    unsigned told;
    unsigned fails_at; /* needed so often: a failure */
} run;

static void open_run(run *r, const char *model)
{
    *r = (run){.fails_at = UINT32_MAX};
    const nn_model *m = nn_model_find(model);
    int size = m->size <= 32 ? m->size : 64;
    assert_int_equal(nn_model_build(m, 2, m->channels, size, 10, &r->net, NULL), MGW_OK);
    nn_initialise(r->net, 1);
    r->gradients = calloc((size_t)r->net->parameter_count, sizeof *r->gradients);
    for (int i = 0; i < r->net->parameter_count; i++) {
        const nn_parameter *p = &r->net->parameters[i];
        r->gradients[p->tensor] = nn_allocate(p->count);
    }
    assert_int_equal(nn_processor_create(1, &r->processor, NULL), MGW_OK);
    assert_int_equal(nn_program_create(r->processor, r->net, r->gradients, &r->program, NULL),
                     MGW_OK);
    nn_random random = nn_random_of(2, 2);
    float *images = nn_program_images(r->program);
    for (size_t i = 0; i < nn_image_count(&r->net->layers[0].shape); i++)
        images[i] = (float)nn_random_normal(&random);
}

static void close_run(run *r)
{
    nn_program_destroy(r->program);
    nn_processor_destroy(r->processor);
    for (int i = 0; i < r->net->parameter_count; i++)
        free(r->gradients[i]);
    free((void *)r->gradients);
    nn_net_destroy(r->net);
}

static void spoil(void *context, unsigned tensor)
{
    run *r = context;
    r->told++;
    for (int i = 0; r->spoils && i < r->net->parameter_count; i++)
        if (r->net->parameters[i].tensor == tensor)
            memset(r->net->parameters[i].data, 0x7f, r->net->parameters[i].count * sizeof(float));
}

static void run_once(run *r)
{
    const int labels[] = {3, 7};
    assert_int_equal(nn_forward(r->program, labels, 2, true, NULL, NULL, NULL), MGW_OK);
    assert_int_equal(nn_backward(r->program, spoil, r, NULL), MGW_OK);
    assert_int_equal(r->told, r->net->parameter_count);
}

static bool same_gradients(const run *a, const run *b)
{
    bool same = true;
    for (int i = 0; i < a->net->parameter_count; i++) {
        const nn_parameter *p = &a->net->parameters[i];
        same = same &&
               !memcmp(a->gradients[p->tensor], b->gradients[p->tensor], p->count * sizeof(float));
    }
    return same;
}

/* Updating parameters during the backward pass must not affect the rest of the computation. */
static void test_parameters_may_change_when_they_are_told(void **state)
{
    (void)state;
    static const char *const models[] = {"lenet5", "resnet20", "googlenet"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int beside = 0; beside < 2; beside++) {
            run plain;
            run spoilt;
            open_run(&plain, models[m]);
            open_run(&spoilt, models[m]);
            spoilt.spoils = true;
            if (beside)
                nn_change_beside(spoilt.program);
            run_once(&plain);
            run_once(&spoilt);
            assert_int_equal(same_gradients(&plain, &spoilt), beside); /* else it could not tell */
            close_run(&plain);
            close_run(&spoilt);
        }
}

/* Spoils all parameters before, and gives each back when it is needed. */
typedef struct keeper {
    run *run;
    float **kept; /* by tensor */
} keeper;

static mgw_status give_back(void *context, unsigned tensor, mgw_error *error)
{
    keeper *k = context;
    if (k->run->told++ == k->run->fails_at) {
        mgw_error_record(error, MGW_ERR_PEER, "rank 1 has died");
        return MGW_ERR_PEER;
    }
    for (int i = 0; i < k->run->net->parameter_count; i++) {
        nn_parameter *p = &k->run->net->parameters[i];
        if (p->tensor == tensor)
            memcpy(p->data, k->kept[tensor], p->count * sizeof *p->data);
    }
    return MGW_OK;
}

static void test_parameters_are_waited_for_before_they_are_used(void **state)
{
    (void)state;
    run plain;
    run late;
    open_run(&plain, "resnet20");
    open_run(&late, "resnet20");
    run_once(&plain);
    keeper k = {&late, calloc((size_t)late.net->parameter_count, sizeof(float *))};
    for (int i = 0; i < late.net->parameter_count; i++) {
        nn_parameter *p = &late.net->parameters[i];
        k.kept[p->tensor] = nn_allocate(p->count);
        memcpy(k.kept[p->tensor], p->data, p->count * sizeof *p->data);
        memset(p->data, 0x7f, p->count * sizeof *p->data);
    }
    nn_watch_forward(late.program, give_back, &k);
    const int labels[] = {3, 7};
    assert_int_equal(nn_forward(late.program, labels, 2, true, NULL, NULL, NULL), MGW_OK);
    assert_int_equal(late.told, late.net->parameter_count);
    assert_int_equal(nn_backward(late.program, NULL, NULL, NULL), MGW_OK);
    assert_true(same_gradients(&plain, &late));
    late.told = 0;
    late.fails_at = 5;
    mgw_error error;
    assert_int_equal(nn_forward(late.program, labels, 2, true, NULL, NULL, &error), MGW_ERR_PEER);
    assert_string_equal(error.message, "rank 1 has died");
    assert_int_equal(late.told, 6);
    for (int i = 0; i < late.net->parameter_count; i++)
        free(k.kept[i]);
    free((void *)k.kept);
    close_run(&plain);
    close_run(&late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_may_change_when_they_are_told),
        cmocka_unit_test(test_parameters_are_waited_for_before_they_are_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
