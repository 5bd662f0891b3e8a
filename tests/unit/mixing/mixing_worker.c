/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing_worker.h"

static double curvature(int r, int i)
{
    return 0.25 + 0.5 * ((r + i) % RANKS);
}

static double minimum(int r, int i)
{
    return (r * 37 + i * 11) % 17 / 8.0 - 1;
}

double gradient_of_worker(int r, int i, double x)
{
    return curvature(r, i) * (x - minimum(r, i));
}

double get_value(const struct worker *w, int i)
{
    return w->float32 ? (double)((const float *)w->values[i / ELEMENTS].data)[i % ELEMENTS]
                      : ((const double *)w->values[i / ELEMENTS].data)[i % ELEMENTS];
}

static void add_gradient(struct worker *w, int i, double x)
{
    void *at = w->grads[i / ELEMENTS].data;

    if (w->float32)
        ((float *)at)[i % ELEMENTS] += (float)x;
    else
        ((double *)at)[i % ELEMENTS] += x;
}

void describe_worker(struct worker *w, struct dp_comm *comm, int bits)
{
    static const char *const names[PARAMETERS] = {"p0", "p1"};

    *w = (struct worker){.comm = comm, .shape = {ELEMENTS}, .float32 = bits == 32};
    for (int p = 0; p < PARAMETERS; p++) {
        w->values[p] = (DLTensor){.data = w->memory + p * ELEMENTS, .device = {kDLCPU, 0},
                                  .ndim = 1,
                                  .dtype = {bits == 16 ? kDLBfloat : kDLFloat, (uint8_t)bits, 1},
                                  .shape = w->shape};
        w->grads[p] = w->values[p];
        w->grads[p].data = w->gradient + p * ELEMENTS;
        w->parameters[p] =
            (struct dp_parameter){.name = names[p], .value = &w->values[p], .grad = &w->grads[p]};
    }
}

struct dp_mixer_config config_of_worker(struct worker *w, const struct job *job)
{
    return (struct dp_mixer_config){
        .parameters = w->parameters, .count = PARAMETERS,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD), .rate = WORKER_RATE, .graph = w->graph,
        .comm = w->comm, .bucket_bytes = 1, .factor = job->factor, .separate = true,
        .compression = job->compression, .staleness = job->staleness, .algorithm = job->algorithm,
        .local_steps = job->local_steps, .outer_rate = job->outer_rate,
        .outer_momentum = job->outer_momentum,
    };
}

int open_worker(struct worker *w, struct dp_comm *comm, const struct job *job)
{
    describe_worker(w, comm, job->float32 ? 32 : 64);
    int err = dp_graph_new(
        &(struct dp_graph_spec){.name = job->graph, .workers = dp_comm_size(comm), .local = 1}, &w->graph);
    const struct dp_mixer_config config = config_of_worker(w, job);
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

int iterate_worker(struct worker *w, double share)
{
    int err = dp_mixer_forward(w->mixer, true);

    for (int i = 0; i < TOTAL && !err; i++)
        add_gradient(w, i,
                     share * gradient_of_worker(dp_comm_rank(w->comm), i, get_value(w, i)));
    for (int p = PARAMETERS - 1; p >= 0 && !err; p--)
        err = dp_mixer_ready(w->mixer, p);
    return err ? err : dp_mixer_step(w->mixer);
}

void close_worker(struct worker *w)
{
    dp_mixer_free(w->mixer);
    dp_graph_free(w->graph);
}

int sum_over_workers(struct worker *w, int i, double *sum)
{
    double mine = get_value(w, i), all[RANKS];
    int err = dp_comm_allgather(w->comm, &mine, all, sizeof(mine));

    *sum = 0;
    for (int r = 0; r < RANKS; r++)
        *sum += all[r];
    return err;
}

static size_t bytes_of(const DLTensor *t)
{
    size_t bytes = t->dtype.bits / 8;

    for (int i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

int copy_worker_state(struct worker *from, struct worker *to)
{
    const struct dp_named_tensor *saved, *ours;
    int32_t saved_count, count;
    int err = dp_mixer_state(from->mixer, &saved, &saved_count);

    if (!err)
        err = dp_mixer_resume(to->mixer, saved[0].tensor.data, saved[0].tensor.shape[0]);
    if (!err)
        err = dp_mixer_state(to->mixer, &ours, &count);
    if (err || count != saved_count)
        return err ? err : -1;
    for (int32_t i = 0; i < count; i++)
        if (strcmp(ours[i].name, saved[i].name))
            return -1;
        else
            memcpy(ours[i].tensor.data, saved[i].tensor.data, bytes_of(&saved[i].tensor));
    memcpy(to->memory, from->memory, sizeof(from->memory));
    return 0;
}
