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

enum { WHY = 1024 };

/* A way of summing, or the name of a graph, as the trainer's options have it. */
static bool take_name(struct settings *s, char why[static WHY])
{
    int32_t count;
    const struct dp_option *o = dp_trainer_options(&count);

    while (strcmp(o->name, "mix"))
        o++;
    return dp_option_set(o, s->mix, &s->how, why, WHY);
}

/* why: it is no name. */
static int read_graph(const char *path, const char *why, struct dp_graph **out)
{
    const char *near = strstr(why, "; did you mean ");
    size_t len;
    char *text = input_read(path, INPUT_MOST, &len);

    if (!text)
        return command_misused("--mix %s: %s; expected all-reduce, reduce-scatter, a graph that "
                               "'dualpipe mix show --help' lists, or a file with one%s",
                               path, input_error(errno), near ? near : "");
    command_mute(true);
    int err = dp_graph_read(text, len, out);
    free(text);
    return command_read(path, err);
}

/* Replicas of a node. A launcher tells how many processes there are; of a replica that lies on
 * several nodes each node has one. 0: as the library finds it. */
static int find_local(const struct settings *s, int *local)
{
    const int ranks = s->how.schedule.ranks;
    struct dp_process process;
    int err = s->how.mixing.graph.local ? 0 : dp_process_from_env(&process);

    if (s->how.mixing.graph.local)
        *local = (int)s->how.mixing.graph.local;
    else if (!err && process.local_size > 0)
        *local = process.local_size % ranks ? 1 : process.local_size / ranks;
    else
        *local = ranks > 1;
    return err ? command_failed(err) : EXIT_OK;
}

static int no_node(const struct settings *s)
{
    return command_misused("--mix-local %d: expected --mix with the name of a graph, not %s",
                           (int)s->how.mixing.graph.local, s->mix);
}

static int make_graph(struct settings *s, struct dp_graph **out)
{
    int local, status;

    if ((status = find_local(s, &local)))
        return status;
    command_mute(true);
    int err = dp_graph_new(&(struct dp_graph_spec){.name = s->mix,
                                                   .workers = (int)s->how.replicas,
                                                   .local = local,
                                                   .seed = (uint64_t)s->how.seed},
                           out);
    command_mute(false);
    if (err == DP_EINVAL)
        return command_misused("--mix %s with -D %d: %s", s->mix, (int)s->how.replicas,
                               dp_last_error());
    if (!err && (*out)->local > 1)
        /* A checkpoint goes on with it, whatever the launcher says. */
        s->how.mixing.graph.local = (*out)->local;
    return err ? command_failed(err) : EXIT_OK;
}

static bool take_graph(struct settings *s, int *status)
{
    char why[WHY];
    const bool named = take_name(s, why), mixes = !named || s->how.sums == DP_SUMS_MIXING;

    if (s->how.mixing.graph.local && !(named && mixes))
        return *status = no_node(s), false;
    if (!mixes)
        return true;
    s->how.sums = s->how.replicas > 1 ? DP_SUMS_MIXING : DP_SUMS_ALL;
    *status = named ? make_graph(s, &s->graph) : read_graph(s->mix, why, &s->graph);
    if (*status)
        return false;
    if (s->graph->workers != s->how.replicas)
        *status =
            command_misused("--mix %s: a graph of %d workers, expected %d, the number of replicas "
                            "(-D)",
                            s->mix, s->graph->workers, (int)s->how.replicas);
    else if (dp_graph_check(s->graph, NULL))
        *status = command_failed(DP_EINVAL);
    return !*status;
}

const char *settings_compression(const struct settings *s)
{
    return s->how.mixing.compression ? "int8" : "none";
}

/* What can be said before any rank has started. */
static bool check_method(const struct settings *s)
{
    const bool local = s->how.mixing.algorithm == DP_MIXER_LOCAL_SGD;
    const char *sent = s->how.mixing.compression ? "--mix-compress"
                       : s->how.mixing.staleness  ? "--mix-staleness"
                                           : NULL;

    if (!local && (s->how.mixing.local_steps || s->how.mixing.outer_rate > 0 ||
                   s->how.mixing.outer_momentum > 0))
        command_misused("--local-steps, --outer-rate, --outer-momentum: expected --mix-algorithm "
                        "local-sgd");
    else if (s->how.mixing.outer_momentum >= 1)
        command_misused("--outer-momentum %g: expected a number below 1",
                        s->how.mixing.outer_momentum);
    else if (sent && !s->graph)
        command_misused("%s: expected --mix with a graph; replicas that sum their gradients do not "
                        "mix", sent);
    else if (!s->graph && s->how.mixing.factor > 0)
        command_misused("--mix-factor: expected --mix with a graph");
    else if (sent && s->how.mixing.algorithm)
        command_misused("%s: expected --mix-algorithm d-psgd, not %s", sent,
                        dp_mixer_algorithm_name(s->how.mixing.algorithm));
    else if (sent && s->graph->push_sum)
        command_misused("%s: expected a graph without push-sum, not %s", sent, s->graph->name);
    else if (s->how.mixing.compression && s->how.mixing.staleness)
        command_misused("--mix-compress and --mix-staleness: expected one of the two");
    else if (s->how.mixing.algorithm && !s->graph)
        command_misused("--mix-algorithm %s: expected --mix with a graph; replicas that sum their "
                        "gradients do not mix",
                        dp_mixer_algorithm_name(s->how.mixing.algorithm));
    else if (s->how.mixing.algorithm && s->graph->push_sum)
        command_misused("--mix-algorithm %s: expected a graph without push-sum, not %s",
                        dp_mixer_algorithm_name(s->how.mixing.algorithm), s->graph->name);
    else
        return true;
    return false;
}

bool settings_survives_as_pipeline(const struct settings *s)
{
    return s->how.survive && strcmp(s->schedule_name, "none");
}

/* Only DualPipe holds every stage twice. What a rank has beside its stages would be lost with it. */
static bool check_pipeline_survival(const struct settings *s)
{
    const char *expected = s->how.sums                ? "--mix all-reduce"
                           : s->placement             ? "no --placement"
                           : s->how.delay_update      ? "no --delay-update"
                           : s->checkpoint_stages.any ? "no --checkpoint-stages"
                           : settings_on_cuda(s)      ? "--device cpu"
                           : s->restarts              ? "--spare instead of --restart"
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
    if (!s->graph || s->how.replicas < 2)
        command_misused("--survive: expected -D 2 or more and --mix with a graph; replicas that sum "
                        "their gradients need each other");
    else if (s->spares)
        command_misused("--spare %d: expected a pipeline; replicas are started again, --restart",
                        (int)s->spares);
    else if (s->tied || s->offload.text || settings_on_cuda(s))
        command_misused("--survive: expected no %s with replicas that mix",
                        s->tied           ? "--tie-embeddings"
                        : s->offload.text ? "--offload"
                                          : "--device cuda");
    else if (s->how.checkpoint.folder)
        command_misused("--survive: expected no --save; a checkpoint has a state of every replica");
    else
        return true;
    return false;
}

static bool check_survival(const struct settings *s)
{
    if (!s->how.survive && s->restarts)
        return command_misused("--restart %d: expected --survive", (int)s->restarts), false;
    if (!s->how.survive && s->spares)
        return command_misused("--spare %d: expected --survive", (int)s->spares), false;
    if (!s->how.survive)
        return true;
    if (s->transport && !strcmp(s->transport, "mpi"))
        return command_misused("--survive: expected --transport auto, shm or tcp; MPI ends with the "
                               "first process that dies"),
               false;
    return settings_survives_as_pipeline(s) ? check_pipeline_survival(s) : check_mixing_survival(s);
}

static bool take_method(struct settings *s)
{
    if (!check_method(s))
        return false;
    if (s->how.mixing.algorithm != DP_MIXER_LOCAL_SGD)
        return true;
    if (!s->how.mixing.local_steps)
        s->how.mixing.local_steps = 8;
    if (!(s->how.mixing.outer_rate > 0))
        s->how.mixing.outer_rate = 1;
    return true;
}

bool settings_take_mix(struct settings *s, int *status)
{
    if (!take_graph(s, status))
        return false;
    *status = EXIT_USAGE; /* of what is wrong from here on */
    return check_survival(s) && take_method(s);
}
