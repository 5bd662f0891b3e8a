/* SPDX-License-Identifier: Apache-2.0
 *
 * optimizer.c - `dp-bench optimizer`: a step of AdamW over float32 parameters, alone and with
 * mixing in the same sweep, against the limit of memory and against separate sweeps, in turns over the
 * same arrays.
 */
#include "bench/bench.h"
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <dualpipe/optimizer.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64 };

struct values {
    struct bench_options common;
    int64_t elements, threads;
};

/* Eight at a time, so that every sweep here is made of vector instructions whatever the compiler does
 * with loops. */
typedef float lanes __attribute__((vector_size(32)));
enum { LANES = 8 };

struct rig {
    size_t count; /* elements, a multiple of LANES */
    int threads;
    lanes *x, *g, *c, *t; /* parameter, gradient, communication buffer, scratch */
    lanes *m, *v;         /* the optimizer's moments */
    float zero;           /* which the compiler does not know */
    int64_t shape[1];
    DLTensor value, grad; /* of x and g; the optimizer looks at them in every step */
    struct dp_optimizer *optimizer;
};

/* ---- the ways ---------------------------------------------------------------------------------- */

static const double keep = 0.5, take = 1, put = 0.5, rate = 1e-4;

/* Elements of a part, in lanes. */
struct part {
    struct rig *rig;
    void (*way)(struct rig *rig, size_t first, size_t end);
    size_t first, end;
    int32_t index;
};

/* What the update reads and writes, with next to no arithmetic. */
static void limit_update(struct rig *r, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        lanes g = r->zero * r->g[i];
        r->x[i] += g;
        r->m[i] += g;
        r->v[i] += g;
    }
}

static void limit_mixed(struct rig *r, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        lanes g = r->zero * r->g[i];
        r->x[i] += g;
        r->m[i] += g;
        r->v[i] += g;
        r->c[i] += g;
    }
}

static void mix(struct rig *r, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        r->x[i] = (float)keep * r->x[i] + (float)take * r->c[i];
}

static void copy_out(struct rig *r, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        r->c[i] = (float)put * r->x[i];
}

#define SWEEP(statement)                                                                           \
    for (size_t i = first; i < end; i++)                                                           \
        statement

/* One sweep an operation, as frameworks do that have no kernel for all of it: these are the operations
 * of Decent-DP and of torch's AdamW on lists of tensors, but for the square root, which is a copy. */
static void by_operation(struct rig *r, size_t first, size_t end)
{
    lanes *x = r->x, *g = r->g, *c = r->c, *t = r->t, *m = r->m, *v = r->v;
    const float z = r->zero;

    SWEEP(x[i] *= 0.5f + z);
    SWEEP(x[i] += (1 + z) * c[i]);
    SWEEP(x[i] *= 1 - z);
    SWEEP(m[i] += (0.1f + z) * (g[i] - m[i]));
    SWEEP(v[i] *= 0.999f + z);
    SWEEP(v[i] += (0.001f + z) * g[i] * g[i]);
    SWEEP(t[i] = v[i]);
    SWEEP(t[i] *= 1 + z);
    SWEEP(t[i] += 1e-8f + z);
    SWEEP(x[i] -= z * m[i] / t[i]);
    SWEEP(c[i] = x[i]);
    SWEEP(c[i] *= 0.5f + z);
}

static void *run_part(void *arg)
{
    const struct part *p = arg;

    if (p->way)
        p->way(p->rig, p->first, p->end);
    else
        dp_optimizer_run(p->rig->optimizer, p->index, p->rig->threads);
    return NULL;
}

/* All of it by all threads; way NULL: the optimizer's step. */
static void run(struct rig *r, void (*way)(struct rig *rig, size_t first, size_t end))
{
    const size_t all = r->count / LANES, parts = (size_t)r->threads;
    struct part list[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = {false};

    for (size_t i = 0; i < parts; i++) {
        list[i] = (struct part){r, way, all * i / parts, all * (i + 1) / parts, (int32_t)i};
        started[i] = i && !pthread_create(&threads[i], NULL, run_part, &list[i]);
    }
    for (size_t i = 0; i < parts; i++)
        if (!started[i])
            run_part(&list[i]);
    for (size_t i = 0; i < parts; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
}

/* ---- a sample ---------------------------------------------------------------------------------- */

enum { UPDATE, UPDATE_LIMIT, UPDATE_RATIO, MIXED, MIXED_LIMIT, APART, BY_OPERATION, MIXED_RATIO,
       APART_RATIO, OPERATION_RATIO, FIGURES };

static int step(struct rig *r, const struct dp_optimizer_mix *mixing)
{
    return dp_optimizer_begin(r->optimizer, &(struct dp_optimizer_step){.rate = rate, .scale = 1,
                                                                        .mix = mixing});
}

static double ms_since(int64_t began)
{
    return (double)(now_ns() - began) / 1e6;
}

static double time_way(struct rig *r, void (*way)(struct rig *rig, size_t first, size_t end))
{
    int64_t began = now_ns();

    run(r, way);
    return ms_since(began);
}

static int take_turns(struct rig *r, double *figures)
{
    void *const buffers[] = {r->c};
    const struct dp_optimizer_mix mixing = {keep, take, put, buffers};
    int64_t began = now_ns();
    int err = step(r, NULL);

    if (err)
        return err;
    run(r, NULL);
    figures[UPDATE] = ms_since(began);
    figures[UPDATE_LIMIT] = time_way(r, limit_update);
    began = now_ns();
    err = step(r, &mixing);
    if (err)
        return err;
    run(r, NULL);
    figures[MIXED] = ms_since(began);
    figures[MIXED_LIMIT] = time_way(r, limit_mixed);
    began = now_ns();
    run(r, mix);
    err = step(r, NULL);
    if (err)
        return err;
    run(r, NULL);
    run(r, copy_out);
    figures[APART] = ms_since(began);
    figures[BY_OPERATION] = time_way(r, by_operation);
    return 0;
}

/* Each way in turn, at least five times, and the best of each: what disturbs one turn does not disturb
 * all of them alike. */
static int sample(void *user, double *figures)
{
    struct rig *r = user;
    int64_t began = now_ns();
    double turn[FIGURES];
    int err;

    for (int turns = 0; turns < 5 || now_ns() < began + INT64_C(100000000); turns++) {
        err = take_turns(r, turn);
        if (err)
            return command_failed(err);
        for (int i = 0; i < FIGURES; i++)
            figures[i] = turns && figures[i] < turn[i] ? figures[i] : turn[i];
    }
    figures[UPDATE_RATIO] = figures[UPDATE_LIMIT] / figures[UPDATE];
    figures[MIXED_RATIO] = figures[MIXED_LIMIT] / figures[MIXED];
    figures[APART_RATIO] = figures[APART] / figures[MIXED];
    figures[OPERATION_RATIO] = figures[BY_OPERATION] / figures[MIXED];
    return 0;
}

/* ---- the command ------------------------------------------------------------------------------- */

static lanes *new_array(size_t count, float value)
{
    float *a = aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096);

    for (size_t i = 0; a && i < count; i++)
        a[i] = value;
    return (lanes *)(void *)a;
}

/* The moments are known by their names in the state. */
static lanes *moment(const struct dp_optimizer *o, const char *name)
{
    const struct dp_named_tensor *list = dp_optimizer_state(o);

    for (int32_t i = 0; i < dp_optimizer_state_count(o); i++)
        if (!strcmp(list[i].name, name))
            return list[i].tensor.data;
    return NULL;
}

static int open_rig(struct rig *r)
{
    const struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    int err;

    r->x = new_array(r->count, 0.5f);
    r->g = new_array(r->count, 0.01f);
    r->c = new_array(r->count, 0.25f);
    r->t = new_array(r->count, 0);
    if (!r->x || !r->g || !r->c || !r->t)
        return command_broke("no memory for %zu parameters", r->count);
    r->shape[0] = (int64_t)r->count;
    r->value = r->grad = (DLTensor){.data = r->x, .device = {kDLCPU, 0}, .ndim = 1,
                                    .dtype = {kDLFloat, 32, 1}, .shape = r->shape};
    r->grad.data = r->g;
    const struct dp_parameter p = {.name = "w", .value = &r->value, .grad = &r->grad};
    err = dp_optimizer_new(&config, &p, 1, &r->optimizer);
    if (err)
        return command_failed(err);
    r->m = moment(r->optimizer, "w/mean");
    r->v = moment(r->optimizer, "w/square");
    return EXIT_OK;
}

static void close_rig(struct rig *r)
{
    dp_optimizer_free(r->optimizer);
    free(r->x);
    free(r->g);
    free(r->c);
    free(r->t);
}

static int measure(const struct values *v)
{
    struct rig rig = {.count = (size_t)v->elements / LANES * LANES, .threads = (int)v->threads};
    struct bench_case c = {.sample = sample, .user = &rig, .figure_count = FIGURES, .figures = {
        [UPDATE] = {.what = "AdamW", .unit = "ms"},
        [UPDATE_LIMIT] = {.what = "  the same memory, no arithmetic", .unit = "ms"},
        [UPDATE_RATIO] = {.what = "  limit over AdamW", .unit = "x", .target = 0.85,
                          .target_is_floor = true},
        [MIXED] = {.what = "mixing, AdamW, copy out: one sweep", .unit = "ms"},
        [MIXED_LIMIT] = {.what = "  the same memory, no arithmetic", .unit = "ms"},
        [APART] = {.what = "  three sweeps", .unit = "ms"},
        [BY_OPERATION] = {.what = "  a sweep for each operation", .unit = "ms"},
        [MIXED_RATIO] = {.what = "  limit over one sweep", .unit = "x", .target_is_floor = true},
        [APART_RATIO] = {.what = "  three sweeps over one", .unit = "x", .target_is_floor = true},
        [OPERATION_RATIO] = {.what = "  a sweep for each over one", .unit = "x", .target = 3,
                             .target_is_floor = true},
    }};
    char title[80];
    int status = open_rig(&rig);

    snprintf(title, sizeof(title), "%zu float32 parameters, %d thread%s", rig.count, rig.threads,
             rig.threads > 1 ? "s" : "");
    if (!status && bench_run(&c, 1, &v->common))
        status = EXIT_FAILED;
    if (!status)
        bench_report(title, &c, 1, &v->common);
    close_rig(&rig);
    return status;
}

static const struct arg args[] = {
    {"elements", 0, "N", "parameters", ARG_INT, .offset = offsetof(struct values, elements),
     .fallback = "16777216", .min = 1024, .max = 1 << 30},
    {"threads", 0, "N", "threads that share a step", ARG_INT,
     .offset = offsetof(struct values, threads), .fallback = "1", .min = 1, .max = MAX_THREADS},
};

int run_bench_optimizer(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench optimizer",
        .about = "A step of AdamW, alone and with mixing in the same sweep, against the limit of\n"
                 "memory and against separate sweeps.",
        .groups = groups,
        .examples = "  dp-bench optimizer\n"
                    "  dp-bench optimizer --threads 2 --json\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return measure(&v);
}
