/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_mix.c - how replicas become one model: --mix, --mix-algorithm and what goes with it.
 */
#include "train/settings.h"

#include "command.h"
#include "files.h"

#include <dualpipe/comm.h>
#include <dualpipe/options.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool names_a_graph(const char *name)
{
    for (int i = 0; dp_graph_name(i); i++)
        if (!strcmp(name, dp_graph_name(i)))
            return true;
    return false;
}

static int no_such_way(const char *mix, int error)
{
    enum { MOST = 64 };
    const char *names[MOST] = {"all-reduce", "reduce-scatter"};
    size_t count = 2;

    for (; count < MOST && dp_graph_name((int)count - 2); count++)
        names[count] = dp_graph_name((int)count - 2);
    const char *near = dp_nearest(mix, names, count);
    return command_misused("--mix %s: %s; expected all-reduce, reduce-scatter, a graph that "
                           "'dualpipe mix show --help' lists, or a file with one%s%s%s",
                           mix, input_error(error), near ? "; did you mean " : "", near ? near : "",
                           near ? "?" : "");
}

static int read_graph(const char *path, struct dp_graph **out)
{
    size_t len;
    char *text = input_read(path, INPUT_MOST, &len);

    if (!text)
        return no_such_way(path, errno);
    command_mute(true);
    int err = dp_graph_read(text, len, out);
    free(text);
    return command_read(path, err);
}

/* Replicas of a node. A launcher tells how many processes there are; of a replica that lies on
 * several nodes each node has one. 0: as the library finds it. */
static int find_local(const struct settings *s, int *local)
{
    struct dp_process process;
    int err = s->mix_local ? 0 : dp_process_from_env(&process);

    if (s->mix_local)
        *local = (int)s->mix_local;
    else if (!err && process.local_size > 0)
        *local = process.local_size % s->ranks ? 1 : process.local_size / (int)s->ranks;
    else
        *local = s->ranks > 1;
    return err ? command_failed(err) : EXIT_OK;
}

static int no_node(const struct settings *s)
{
    return command_misused("--mix-local %d: expected --mix with the name of a graph, not %s",
                           (int)s->mix_local, s->mix);
}

static int make_graph(struct settings *s, struct dp_graph **out)
{
    int local, status;

    if (!names_a_graph(s->mix) && s->mix_local)
        return no_node(s);
    if (!names_a_graph(s->mix))
        return read_graph(s->mix, out);
    if ((status = find_local(s, &local)))
        return status;
    command_mute(true);
    int err = dp_graph_new(&(struct dp_graph_spec){.name = s->mix,
                                                   .workers = (int)s->replicas,
                                                   .local = local,
                                                   .seed = (uint64_t)s->seed},
                           out);
    command_mute(false);
    if (err == DP_EINVAL)
        return command_misused("--mix %s with -D %d: %s", s->mix, (int)s->replicas, dp_last_error());
    if (!err && (*out)->local > 1)
        s->mix_local = (*out)->local; /* a checkpoint goes on with it, whatever the launcher says */
    return err ? command_failed(err) : EXIT_OK;
}

static bool take_graph(struct settings *s, int *status)
{
    if (!strcmp(s->mix, "all-reduce") || !strcmp(s->mix, "reduce-scatter")) {
        if (s->mix_local)
            return *status = no_node(s), false;
        const bool shared = !strcmp(s->mix, "reduce-scatter");
        s->kind = shared            ? DATA_PARALLEL_SHARD
                  : s->replicas > 1 ? DATA_PARALLEL_SUM
                                    : DATA_PARALLEL_NONE;
        return true;
    }
    s->kind = s->replicas > 1 ? DATA_PARALLEL_MIX : DATA_PARALLEL_NONE;
    *status = make_graph(s, &s->graph);
    if (*status)
        return false;
    if (s->graph->workers != s->replicas)
        *status =
            command_misused("--mix %s: a graph of %d workers, expected %d, the number of replicas "
                            "(-D)",
                            s->mix, s->graph->workers, (int)s->replicas);
    else if (dp_graph_check(s->graph, NULL))
        *status = command_failed(DP_EINVAL);
    return !*status;
}

/* What can be said before any rank has started. */
static bool check_method(const struct settings *s)
{
    const bool local = s->method.algorithm == DP_MIXER_LOCAL_SGD;
    const char *sent = s->method.compression ? "--mix-compress"
                       : s->mix_staleness  ? "--mix-staleness"
                                           : NULL;

    if (!local && (s->local_steps || s->outer_rate > 0 || s->outer_momentum > 0))
        command_misused("--local-steps, --outer-rate, --outer-momentum: expected --mix-algorithm "
                        "local-sgd");
    else if (sent && !s->graph)
        command_misused("%s: expected --mix with a graph; replicas that sum their gradients do not "
                        "mix", sent);
    else if (!s->graph && s->mix_factor > 0)
        command_misused("--mix-factor: expected --mix with a graph");
    else if (sent && s->method.algorithm)
        command_misused("%s: expected --mix-algorithm d-psgd, not %s", sent, s->mix_algorithm);
    else if (sent && s->graph->push_sum)
        command_misused("%s: expected a graph without push-sum, not %s", sent, s->graph->name);
    else if (s->method.compression && s->mix_staleness)
        command_misused("--mix-compress and --mix-staleness: expected one of the two");
    else if (s->method.algorithm && !s->graph)
        command_misused("--mix-algorithm %s: expected --mix with a graph; replicas that sum their "
                        "gradients do not mix",
                        s->mix_algorithm);
    else if (s->method.algorithm && s->graph->push_sum)
        command_misused("--mix-algorithm %s: expected a graph without push-sum, not %s",
                        s->mix_algorithm, s->graph->name);
    else
        return true;
    return false;
}

bool settings_survives_as_pipeline(const struct settings *s)
{
    return s->survive && strcmp(s->schedule_name, "none");
}

/* Only DualPipe holds every stage twice. What a rank has beside its stages would be lost with it. */
static bool check_pipeline_survival(const struct settings *s)
{
    const char *expected = s->kind > DATA_PARALLEL_SUM   ? "--mix all-reduce"
                           : s->placement                ? "no --placement"
                           : s->offload.any              ? "no --offload"
                           : s->late                     ? "no --delay-update"
                           : s->checkpoint_stages.any    ? "no --checkpoint-stages"
                           : settings_on_cuda(s)         ? "--device cpu"
                           : s->restarts                 ? "--spare instead of --restart"
                                                         : NULL;

    if (s->file || strcmp(s->schedule_name, "dualpipe"))
        command_misused("--survive: expected --schedule dualpipe, whose mirrors hold the stages of a "
                        "rank that dies; or none, for replicas that mix");
    else if (expected)
        command_misused("--survive with a pipeline: expected %s", expected);
    else
        return true;
    return false;
}

/* Of replicas that mix each is one rank: a part of a pipeline would die with it. */
static bool check_mixing_survival(const struct settings *s)
{
    if (!s->graph || s->replicas < 2)
        command_misused("--survive: expected -D 2 or more and --mix with a graph; replicas that sum "
                        "their gradients need each other");
    else if (s->spares)
        command_misused("--spare %d: expected a pipeline; replicas are started again, --restart",
                        (int)s->spares);
    else if (s->save)
        command_misused("--survive: expected no --save; a checkpoint has a state of every replica");
    else
        return true;
    return false;
}

static bool check_survival(const struct settings *s)
{
    if (!s->survive && s->restarts)
        return command_misused("--restart %d: expected --survive", (int)s->restarts), false;
    if (!s->survive && s->spares)
        return command_misused("--spare %d: expected --survive", (int)s->spares), false;
    if (!s->survive)
        return true;
    if (s->transport && !strcmp(s->transport, "mpi"))
        return command_misused("--survive: expected --transport auto, shm or tcp; MPI ends with the "
                               "first process that dies"),
               false;
    return settings_survives_as_pipeline(s) ? check_pipeline_survival(s) : check_mixing_survival(s);
}

static bool take_method(struct settings *s)
{
    while (strcmp(s->mix_algorithm, dp_mixer_algorithm_name(s->method.algorithm)))
        s->method.algorithm++;
    if (strcmp(s->mix_compress, "none"))
        s->method.compression = DP_COMPRESSION_INT8;
    if (!check_method(s))
        return false;
    s->method.factor = s->mix_factor;
    s->method.staleness = (int32_t)s->mix_staleness;
    if (s->method.algorithm != DP_MIXER_LOCAL_SGD)
        return true;
    s->method.local_steps = s->local_steps ? (int32_t)s->local_steps : 8;
    s->method.outer_rate = s->outer_rate > 0 ? s->outer_rate : 1;
    s->method.outer_momentum = s->outer_momentum;
    return true;
}

bool settings_take_mix(struct settings *s, int *status)
{
    if (!take_graph(s, status))
        return false;
    *status = EXIT_USAGE; /* of what is wrong from here on */
    return check_survival(s) && take_method(s);
}
