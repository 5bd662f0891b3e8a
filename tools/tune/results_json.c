/* SPDX-License-Identifier: Apache-2.0
 *
 * results_json.c - what NCCL's tests write with -J: {"args": ["./all_reduce_perf", ...], "env":
 * ["NCCL_ALGO=Ring", ...], "config": {"nthreads": 1, "ngpus": 1, "devices": [{"hostname": ...}]},
 * "results": [{"size": 1024, "out_of_place": {"time": 24.3, "nwrong": 0}, "in_place": ...}]}
 */
#include "command.h"
#include "tune/results.h"

#include <jansson.h>

#include <stdio.h>
#include <string.h>

enum { OF_A_PROCESS_MAX = 1 << 16 }; /* threads, or GPUs */

static int read_environment(const json_t *env, struct tune_run *run)
{
    int status = 0;
    size_t i;
    const json_t *entry;
    char name[64];

    json_array_foreach (env, i, entry) {
        const char *text = json_string_value(entry), *equals = text ? strchr(text, '=') : NULL;
        if (!equals || (size_t)(equals - text) >= sizeof(name) || status)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
        status = tune_run_variable(run, name, equals + 1);
    }
    return status;
}

static const char *host_of(const json_t *devices, size_t i)
{
    const char *name = json_string_value(json_object_get(json_array_get(devices, i), "hostname"));

    return name ? name : "";
}

static bool is_new_host(const json_t *devices, size_t device)
{
    bool is_new = true;

    for (size_t i = 0; i < device && is_new; i++)
        is_new = strcmp(host_of(devices, device), host_of(devices, i));
    return is_new;
}

static int64_t number_of(const json_t *config, const char *key)
{
    json_int_t number = json_integer_value(json_object_get(config, key));

    return number > 0 && number <= OF_A_PROCESS_MAX ? number : 1;
}

/* One device is listed of every process, which has a rank for each of its threads and GPUs. */
static int read_config(const json_t *config, struct tune_run *run)
{
    const json_t *devices = json_object_get(config, "devices");
    int64_t ranks = (int64_t)json_array_size(devices), nodes = 0;

    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *device = json_array_get(devices, i);
        if (json_integer_value(json_object_get(device, "group")))
            return command_misused(
                "%s: a rank is in another group, expected all in one communicator", run->path);
        nodes += is_new_host(devices, i);
    }
    if (!run->ranks)
        run->ranks = ranks * number_of(config, "nthreads") * number_of(config, "ngpus");
    if (!run->nodes)
        run->nodes = nodes;
    return 0;
}

/* false: this half was not measured. */
static bool read_time(const json_t *half, double *us, double *wrong)
{
    const json_t *time = json_object_get(half, "time");

    if (!time)
        time = json_object_get(half, "cpu_time");
    *us = json_number_value(time);
    *wrong = json_number_value(json_object_get(half, "nwrong"));
    return *us > 0;
}

static int read_result(const json_t *result, struct tune_run *run, struct tune_results *r)
{
    static const char *const halves[] = {"out_of_place", "in_place"};
    const json_t *size = json_object_get(result, "size");
    double sum = 0, us, wrong;
    int times = 0;

    for (int i = 0; i < 2; i++) {
        if (!read_time(json_object_get(result, halves[i]), &us, &wrong))
            continue;
        if (wrong > 0)
            return command_misused("%s: %g results of size %lld are wrong, expected none",
                                   run->path, wrong, (long long)json_integer_value(size));
        sum += us;
        times++;
    }
    if (!json_is_integer(size) || !times)
        return command_misused("%s: a result without size or time, expected both", run->path);
    return tune_run_add(
        run,
        &(struct tune_row){.bytes = json_integer_value(size),
                           .us = sum / times,
                           .type = json_string_value(json_object_get(result, "type")),
                           .op = json_string_value(json_object_get(result, "redop"))},
        r);
}

static int read_all(const json_t *all, struct tune_run *run, struct tune_results *r)
{
    const json_t *results = json_object_get(all, "results");
    const char *program = json_string_value(json_array_get(json_object_get(all, "args"), 0));
    int status = read_environment(json_object_get(all, "env"), run);
    size_t i;
    const json_t *result;

    if (program)
        tune_run_program(run, program);
    status = status ? status : read_config(json_object_get(all, "config"), run);
    if (!json_is_array(results))
        return command_misused("%s: no \"results\", expected what NCCL's tests write with -J",
                               run->path);
    json_array_foreach (results, i, result)
        status = status ? status : read_result(result, run, r);
    return status;
}

int tune_read_json(const char *text, size_t len, struct tune_run *run, struct tune_results *r)
{
    json_error_t error;
    json_t *all = json_loadb(text, len, 0, &error);

    if (!all)
        return command_misused("%s:%d: %s", run->path, error.line, error.text);
    int status = read_all(all, run, r);
    json_decref(all);
    return status;
}
