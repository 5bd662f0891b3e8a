/* SPDX-License-Identifier: Apache-2.0 */
#include "base/internal.h"
#include "cmocka_all.h"

#include <dualpipe/parameter.h>

static const DLDataType float32 = {kDLFloat, 32, 1}, float64 = {kDLFloat, 64, 1};
static const DLDataType bfloat16 = {kDLBfloat, 16, 1}, int32 = {kDLInt, 32, 1};
static float memory[4][24];

/* Two parameters of 2 x 3 x 4, the second one in bfloat16 beside a float32 gradient, and one frozen. */
struct list {
    int64_t shape[3], strides[3];
    DLTensor values[3], grads[3];
    struct dp_parameter p[3];
};

static void make(struct list *l)
{
    *l = (struct list){.shape = {2, 3, 4}, .strides = {12, 1, 3}};
    for (int i = 0; i < 3; i++) {
        l->values[i] = (DLTensor){.data = memory[i], .device = {kDLCPU, 0}, .ndim = 3,
                                  .dtype = i == 1 ? bfloat16 : float32, .shape = l->shape};
        l->grads[i] = l->values[i];
        l->grads[i].dtype = float32;
        l->p[i] = (struct dp_parameter){.name = (const char *[]){"a", "b", "c"}[i],
                                        .value = &l->values[i], .grad = &l->grads[i]};
    }
    l->p[2].flags = DP_PARAMETER_FROZEN;
    l->p[2].grad = NULL;
}

CASE(a_sound_list_passes_and_is_counted)
{
    struct list l;

    make(&l);
    assert_int_equal(dp_parameters_check(l.p, 3), 0);
    assert_int_equal(dp_parameters_check(NULL, 0), 0);
    assert_int_equal(dp_parameter_elements(&l.p[1]), 24);
}

CASE(any_order_of_the_dimensions_passes_if_nothing_is_left_out)
{
    struct list l;

    make(&l);
    l.values[0].strides = l.grads[0].strides = l.strides;
    assert_int_equal(dp_parameters_check(l.p, 3), 0);
    l.strides[0] = 24;
    expect_error(dp_parameters_check(l.p, 3), DP_EINVAL, "'a': its value has gaps");
}

static void no_name(struct list *l) { l->p[1].name = ""; }
static void same_name(struct list *l) { l->p[2].name = "a"; }
static void unknown_flag(struct list *l) { l->p[1].flags = 12; }
static void no_value(struct list *l) { l->p[1].value = NULL; }
static void integers(struct list *l) { l->values[1].dtype = int32; }
static void integer_grad(struct list *l) { l->grads[1].dtype = int32; }
static void no_grad(struct list *l) { l->p[1].grad = NULL; }
static void no_data(struct list *l) { l->values[1].data = NULL; }
static void other_shape(struct list *l) { l->grads[1].ndim = 2; }
static void other_strides(struct list *l) { l->grads[1].strides = l->strides; }
static void other_device(struct list *l) { l->grads[1].device.device_type = kDLCUDA; }

static void other_type_tied(struct list *l)
{
    l->p[0].tied = l->p[1].tied = "table";
}

CASE(errors_name_the_parameter)
{
    static const struct {
        void (*spoil)(struct list *l);
        const char *says;
    } cases[] = {
        {no_name, "parameter 1 has no name"},
        {same_name, "two parameters are named 'a'"},
        {unknown_flag, "'b': flags 0xc, of which 0xc are unknown"},
        {no_value, "'b': its value is NULL"},
        {integers, "'b': its value is int32[2, 3, 4], expected float32"},
        {integer_grad, "'b': its gradient is int32[2, 3, 4], expected float32"},
        {no_grad, "'b': its gradient is NULL, which only a frozen parameter's may be"},
        {no_data, "'b': its value has elements but no data"},
        {other_shape, "'b': its gradient is float32[2, 3], expected the shape"},
        {other_strides, "'b': its gradient is float32[2, 3, 4], expected the shape and strides"},
        {other_device, "'b': its gradient is on device 2:0, its value on 1:0"},
        {other_type_tied, "'b' is bfloat16[2, 3, 4] but tied to 'a', which is float32[2, 3, 4]"},
    };
    struct list l;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make(&l);
        cases[i].spoil(&l);
        assert_int_equal(dp_parameters_check(l.p, 3), DP_EINVAL);
        if (!strstr(dp_last_error(), cases[i].says))
            fail_msg("says\n    %s\ninstead of\n    %s", dp_last_error(), cases[i].says);
    }
    assert_int_equal(dp_parameters_check(NULL, 2), DP_EINVAL);
    assert_int_equal(dp_parameters_check(l.p, -1), DP_EINVAL);
}

CASE(a_gradient_may_have_another_type_than_its_value)
{
    struct list l;

    make(&l);
    l.grads[0].dtype = float64;
    l.grads[1].dtype = bfloat16;
    assert_int_equal(dp_parameters_check(l.p, 3), 0);
}
