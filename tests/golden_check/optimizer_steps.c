/* SPDX-License-Identifier: Apache-2.0
 *
 * optimizer_steps.c - steps of Adam, AdamW and SGD.
 */
#include "golden_check/golden.h"

#include <dualpipe/optimizer.h>

#include <math.h>
#include <string.h>

static bool is_decent_adam(const json_t *value)
{
    return golden_all_have(value, KEYS("opt", "accum_iter", "grads", "params"));
}

enum { ADAM_MAX = 256 };

/* A list of numbers; their count, or 0 if it is none or has too many. */
static size_t numbers(const json_t *list, double *out)
{
    size_t i, count = json_array_size(list);
    const json_t *number;

    if (count > ADAM_MAX)
        return 0;
    json_array_foreach(list, i, number) {
        if (!json_is_number(number))
            return 0;
        out[i] = json_number_value(number);
    }
    return count;
}

static bool adam_kind(const char *name, enum dp_optimizer_kind *out)
{
    static const char *const names[] = {"SGD", "Adam", "AdamW", "AccumAdam", "AccumAdamW"};

    for (int i = 0; name && i < DP_OPTIMIZER_KINDS; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum dp_optimizer_kind)i;
            return true;
        }
    return false;
}

/* All steps of one record. Differences of a few units in the last place of the largest value that
 * the parameter had are none; exact counts those that are the same bits. */
static bool replay_adam(struct golden *g, size_t index, const json_t *record,
                        struct dp_optimizer *optimizer, double *x, double *grads, size_t count,
                        size_t *exact, size_t *total)
{
    const json_t *all_grads = json_object_get(record, "grads");
    const json_t *all_params = json_object_get(record, "params");
    double expected[ADAM_MAX], largest[ADAM_MAX];

    for (size_t i = 0; i < count; i++)
        largest[i] = fmax(fabs(x[i]), 0x1p-10);
    if (!json_array_size(all_grads) || json_array_size(all_grads) != json_array_size(all_params))
        return FAIL(g, "record %zu: not as many gradients as parameters", index);
    for (size_t t = 0; t < json_array_size(all_grads); t++) {
        if (numbers(json_array_get(all_grads, t), grads) != count ||
            numbers(json_array_get(all_params, t), expected) != count)
            return FAIL(g, "record %zu, step %zu: not %zu numbers", index, t, count);
        if (dp_optimizer_step(optimizer, &(struct dp_optimizer_step){
                                             .rate = golden_number(record, "lr"), .scale = 1}))
            return FAIL(g, "record %zu: %s", index, dp_last_error());
        for (size_t i = 0; i < count; i++) {
            largest[i] = fmax(largest[i], fabs(expected[i]));
            if (!(fabs(x[i] - expected[i]) <= 8 * 0x1p-53 * largest[i]))
                return FAIL(g, "record %zu, step %zu: parameter %zu is %.17g by us, %.17g there",
                            index, t, i, x[i], expected[i]);
            *exact += x[i] == expected[i];
            *total += 1;
        }
    }
    return true;
}

static bool check_adam_record(struct golden *g, size_t index, const json_t *record,
                              size_t *exact, size_t *total)
{
    double x[ADAM_MAX], grads[ADAM_MAX];
    const json_t *betas = json_object_get(record, "betas");
    int64_t count = (int64_t)numbers(json_object_get(record, "p0"), x);
    DLTensor value = {.data = x, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1},
                      .shape = &count};
    DLTensor grad = value;
    const struct dp_parameter parameter = {.name = "p", .value = &value, .grad = &grad};
    struct dp_optimizer_config config;
    struct dp_optimizer *optimizer;
    enum dp_optimizer_kind kind;
    bool right;

    grad.data = grads;
    if (!count || !adam_kind(golden_string(record, "opt"), &kind))
        return FAIL(g, "record %zu: an optimizer that is not known here, or no p0", index);
    config = dp_optimizer_defaults(kind);
    config.beta1 = json_number_value(json_array_get(betas, 0));
    config.beta2 = json_number_value(json_array_get(betas, 1));
    config.epsilon = golden_number(record, "eps");
    config.weight_decay = golden_number(record, "weight_decay");
    config.accumulation = (int32_t)golden_number(record, "accum_iter");
    if (dp_optimizer_new(&config, &parameter, 1, &optimizer))
        return FAIL(g, "record %zu: %s", index, dp_last_error());
    right = replay_adam(g, index, record, optimizer, x, grads, (size_t)count, exact, total);
    dp_optimizer_free(optimizer);
    return right;
}

static bool check_decent_adam(struct golden *g)
{
    size_t i, exact = 0, total = 0;
    const json_t *record;

    json_array_foreach(g->value, i, record)
        if (!check_adam_record(g, i, record, &exact, &total))
            return false;
    return PASS(g, "all %zu records; of %zu numbers %zu to the last bit",
                json_array_size(g->value), total, exact);
}

const struct golden_kind golden_optimizer_steps = {is_decent_adam, check_decent_adam};
