/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/parameter.h>

#include "base/fail.h"
#include "base/sized.h"
#include "base/internal.h"
#include "base/tensor.h"

#include <stdlib.h>
#include <string.h>

static const char expected_types[] = "expected float32, float64, bfloat16 or float16";

static int check_value(const struct dp_parameter *p)
{
    char text[DP_TENSOR_TEXT];
    const DLTensor *t = p->value;
    const char *fault = t ? dp_tensor_fault(t) : "is NULL";

    if (fault)
        return dp_fail(DP_EINVAL, "parameter '%s': its value %s", p->name, fault);
    if (!dp_tensor_is_real(t))
        return dp_fail(DP_EINVAL, "parameter '%s': its value is %s, %s", p->name,
                       dp_tensor_text(t, text), expected_types);
    if (!dp_tensor_dense(t))
        return dp_fail(DP_EINVAL, "parameter '%s': its value has gaps between its elements, "
                       "expected one block of memory", p->name);
    return 0;
}

static int check_grad(const struct dp_parameter *p)
{
    char grad_text[DP_TENSOR_TEXT], text[DP_TENSOR_TEXT];
    const DLTensor *t = p->grad;
    const char *fault = t ? dp_tensor_fault(t) : "is NULL, which only a frozen parameter's may be";

    if (!t && p->flags & DP_PARAMETER_FROZEN)
        return 0;
    if (fault)
        return dp_fail(DP_EINVAL, "parameter '%s': its gradient %s", p->name, fault);
    if (!dp_tensor_is_real(t))
        return dp_fail(DP_EINVAL, "parameter '%s': its gradient is %s, %s", p->name,
                       dp_tensor_text(t, grad_text), expected_types);
    if (!dp_tensor_same_layout(t, p->value))
        return dp_fail(DP_EINVAL, "parameter '%s': its gradient is %s, expected the shape and "
                       "strides of its value, %s", p->name, dp_tensor_text(t, grad_text),
                       dp_tensor_text(p->value, text));
    if (t->device.device_type != p->value->device.device_type ||
        t->device.device_id != p->value->device.device_id)
        return dp_fail(DP_EINVAL, "parameter '%s': its gradient is on device %d:%d, its value on "
                       "%d:%d, expected the same", p->name, (int)t->device.device_type,
                       t->device.device_id, (int)p->value->device.device_type,
                       p->value->device.device_id);
    return 0;
}

static int check_one(const struct dp_parameter *p, int32_t index)
{
    const uint32_t known = DP_PARAMETER_FROZEN | DP_PARAMETER_NO_DECAY;
    int err;

    if (!p->name || !*p->name)
        return dp_fail(DP_EINVAL, "parameter %d has no name", index);
    if (p->flags & ~known)
        return dp_fail(DP_EINVAL, "parameter '%s': flags %#x, of which %#x are unknown", p->name,
                       p->flags, p->flags & ~known);
    DP_RESERVED(p, p->name);
    err = check_value(p);
    return err ? err : check_grad(p);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_distinct(const struct dp_parameter *parameters, int32_t count)
{
    const char **names = malloc(((size_t)count + 1) * sizeof(*names));
    int err = 0;

    if (!names)
        return dp_fail(DP_ENOMEM, "no memory for the names of %d parameters", count);
    for (int32_t i = 0; i < count; i++)
        names[i] = parameters[i].name;
    qsort(names, (size_t)count, sizeof(*names), compare_names);
    for (int32_t i = 1; i < count && !err; i++)
        if (!strcmp(names[i - 1], names[i]))
            err = dp_fail(DP_EINVAL, "two parameters are named '%s'", names[i]);
    free(names);
    return err;
}

static int check_tied(const struct dp_parameter *first, const struct dp_parameter *p)
{
    char text[DP_TENSOR_TEXT], first_text[DP_TENSOR_TEXT];

    if (dp_tensor_same_dtype(first->value, p->value) && dp_tensor_same_shape(first->value, p->value))
        return 0;
    return dp_fail(DP_EINVAL, "parameter '%s' is %s but tied to '%s', which is %s (group '%s')",
                   p->name, dp_tensor_text(p->value, text), first->name,
                   dp_tensor_text(first->value, first_text), p->tied);
}

/* Every tied parameter against the first one of its group. */
static int check_groups(const struct dp_parameter *parameters, int32_t count)
{
    int err = 0;

    for (int32_t i = 0; i < count && !err; i++) {
        int32_t first = 0;
        if (!parameters[i].tied)
            continue;
        while (!parameters[first].tied || strcmp(parameters[first].tied, parameters[i].tied))
            first++;
        err = check_tied(&parameters[first], &parameters[i]);
    }
    return err;
}

int dp_parameters_check(const struct dp_parameter *parameters, int32_t count)
{
    int err = 0;

    if (count < 0 || (count && !parameters))
        return dp_fail(DP_EINVAL, "parameters: a list of %d at %p", count, (const void *)parameters);
    for (int32_t i = 0; i < count && !err; i++)
        err = check_one(&parameters[i], i);
    if (!err)
        err = check_distinct(parameters, count);
    return err ? err : check_groups(parameters, count);
}

