/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_check.c - what options go with each other, and what follows from them: schedule, ranks,
 * graph, sums, kernels. A refusal names options; what a program could get wrong as well the library
 * refuses.
 */
#include "train/settings.h"

#include "command.h"
#include "files.h"
#include "schedule_args.h"
#include "train/cuda/cuda_rank.h"

#include <dualpipe/comm.h>
#include <dualpipe/options.h>

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BLOCKS = 64, MOST_IMAGE_BYTES = 256 << 20, WHY = 1024 };

const char *const drawn_names[DRAWN] = {"--timeline", "--trace"};

/* ---- what was asked for ------------------------------------------------------------------------ */

static bool is_sequential(const struct settings *s)
{
    return !strcmp(s->schedule_name, "none");
}

static bool by_messages(const struct settings *s)
{
    return !strcmp(s->execution, "messages");
}

bool settings_sums(const struct settings *s)
{
    return !strcmp(s->mix, "all-reduce") || !strcmp(s->mix, "reduce-scatter");
}

const char *settings_drawn(const struct settings *s)
{
    for (int i = 0; i < DRAWN; i++)
        if (s->drawn[i])
            return drawn_names[i];
    return NULL;
}

bool settings_on_cuda(const struct settings *s)
{
    return strcmp(s->device, "cpu");
}

bool settings_by_nccl(const struct settings *s)
{
    return s->transport && !strcmp(s->transport, "nccl");
}

const char *settings_transport(const struct settings *s)
{
    return settings_by_nccl(s) ? NULL : s->transport;
}

int settings_processes(const struct settings *s)
{
    return (int)(s->how.schedule.ranks * s->how.replicas);
}

int settings_started(const struct settings *s)
{
    return settings_processes(s) + (int)s->spares;
}

bool settings_survives_as_pipeline(const struct settings *s)
{
    return s->how.survive && !(s->graph && is_sequential(s));
}

struct gpt_config settings_model(const struct settings *s)
{
    return (struct gpt_config){
        .layers = (int)s->layers,
        .width = (int)s->width,
        .heads = (int)s->heads,
        .context = (int)s->context,
        .batch = (int)(s->how.rows / s->how.microbatches),
        .dropout = (float)s->dropout,
        .seed = (uint64_t)s->how.seed,
        .tied = s->tied,
        .blocks = s->blocks.count ? s->blocks.items : NULL,
    };
}

/* false, and one line, unless number is a multiple of unit. */
static bool multiple(const char *name, int64_t number, int64_t unit, const char *unit_name)
{
    return !refuse_if(number % unit, "%s %d: expected a multiple of %d, %s", name, (int)number,
                      (int)unit, unit_name);
}

/* ---- the text, or the prompt ------------------------------------------------------------------- */

bool settings_take_files(struct settings *s, const struct operands *more)
{
    for (int i = 0; i < more->count; i++) {
        if (refuse_if(s->data.count == ARG_LIST_MAX,
                      "--data: expected at most %d files; put them together with cat", ARG_LIST_MAX))
            return false;
        s->data.items[s->data.count++] = more->items[i];
    }
    return !refuse_if(!s->data.count, "--data is missing: expected text to learn from, for instance "
                                      "--data /usr/share/common-licenses/GPL-3");
}

static bool check_prompt(const struct settings *s, const struct operands *files)
{
    const char *text = s->data.count ? s->data.items[0] : files->count ? files->items[0] : NULL;
    const char *output = s->how.checkpoint.folder ? "--save" : settings_drawn(s);

    return !(refuse_if(!s->resume,
                       "--prompt: expected --resume, the folder with the model that is to write") ||
             refuse_if(text, "--prompt with --data %s: expected one of them; the model learns nothing",
                       text) ||
             refuse_if(output, "--prompt with %s: expected one of them; no step is taken", output));
}

/* ---- the list of --file ------------------------------------------------------------------------ */

static bool has_kind(const struct dp_schedule *s, enum dp_op_kind kind)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == kind)
            return true;
    return false;
}

/* What no list can be trained with. */
static bool check_list(const struct settings *s)
{
    const struct dp_schedule *list = s->training;
    const bool is_whole = !list->forward_only && (has_kind(list, DP_OP_B) || has_kind(list, DP_OP_I));

    return !(
        refuse_if(!is_whole, "--file %s: no backward, expected a schedule of training steps", s->file) ||
        refuse_if(has_kind(list, DP_OP_REDUCE), "--file %s: has REDUCE, expected none; they are added "
                  "where gradients are complete", s->file) ||
        refuse_if(s->offload.text && (has_kind(list, DP_OP_RECOMPUTE) || has_kind(list, DP_OP_EVICT)),
                  "--offload with --file %s: has RECOMPUTE or EVICT, expected none; they are added "
                  "where the device's memory needs them", s->file) ||
        refuse_if(s->placement, "--placement with --file %s: expected one of them", s->file));
}

/* false, after one line, if the option was given another number than the list has. */
static bool take_number(const struct settings *s, const char *option, int32_t has, int32_t *member)
{
    if (refuse_if(*member && *member != has, "%s %d: expected %d, as in --file %s", option, *member, has,
                  s->file))
        return false;
    *member = has;
    return true;
}

static bool read_list(struct settings *s, int *status)
{
    const bool slack = s->how.schedule.slack;

    if (refuse_if(s->schedule_name || slack, "%s %s and --file %s: expected one of them",
                  slack ? "--slack" : "--schedule", slack ? "1" : s->schedule_name, s->file))
        return false;
    *status = schedule_file_read(s->file, &s->training);
    if (*status)
        return false;
    *status = EXIT_USAGE;
    s->schedule_name = dp_name(DP_NAMES_SCHEDULE, s->training->kind);
    return check_list(s) && take_number(s, "-P", s->training->ranks, &s->how.schedule.ranks) &&
           take_number(s, "-M", s->training->microbatches * s->how.replicas, &s->how.microbatches);
}

static bool take_list(struct settings *s, int *status)
{
    if (s->file)
        return read_list(s, status);
    if (!s->schedule_name)
        s->schedule_name = "dualpipe";
    if (!s->how.microbatches)
        s->how.microbatches = 8;
    return !(refuse_if(s->how.schedule.virtual_stages && strcmp(s->schedule_name, "interleaved"),
                       "--virtual-stages %d: expected --schedule interleaved",
                       (int)s->how.schedule.virtual_stages) ||
             refuse_if(s->how.schedule.slack && strncmp(s->schedule_name, "dualpipe", 8),
                       "--slack 1: expected --schedule dualpipe or dualpipev"));
}

/* ---- ranks ------------------------------------------------------------------------------------- */

/* One rank has nothing to be placed: asking for it is an error. */
static bool take_placement(struct settings *s, int *status)
{
    int err = 0;

    if (refuse_if(is_sequential(s) && s->placement,
                  "--placement: expected a schedule; --schedule none has one rank"))
        return false;
    if (s->placement)
        err = dp_assignment_load(s->placement, &s->assignment);
    else if (!is_sequential(s) && !s->file)
        err = dp_assignment_from_env(&s->assignment);
    if (err)
        *status = command_failed(err);
    return !err;
}

static bool take_ranks(struct settings *s, int world)
{
    const int replicas = (int)s->how.replicas;
    int32_t *ranks = &s->how.schedule.ranks;
    char of_replicas[64] = "";

    if (world > s->spares)
        world -= (int)s->spares;
    if (!*ranks)
        *ranks = world >= replicas  ? world / replicas
                 : s->assignment    ? s->assignment->ranks
                 : is_sequential(s) ? 1
                                    : 4;
    if (replicas > 1)
        snprintf(of_replicas, sizeof(of_replicas), " -D %d: %d processes", replicas,
                 settings_processes(s));
    return !(refuse_if(world && settings_processes(s) != world, "-P %d%s%s expected %d, the size of the "
                       "job that this %s was started in (WORLD_SIZE, or the launcher's)", *ranks,
                       of_replicas, replicas > 1 ? "," : ":", world, replicas > 1 ? "one" : "process") ||
             refuse_if(is_sequential(s) && *ranks != 1,
                       "-P %d: expected -P 1 with --schedule none, which has one rank", *ranks));
}

static bool check_order(const struct settings *s)
{
    const enum dp_recompute recompute = s->how.schedule.recompute;

    return !(refuse_if(is_sequential(s) && recompute, "--checkpoint %s: expected a schedule; --schedule "
                       "none recomputes nothing", dp_name(DP_NAMES_RECOMPUTE, recompute)) ||
             refuse_if(s->checkpoint_stages.count && !recompute,
                       "--checkpoint-stages: expected --checkpoint except_last or always") ||
             refuse_if(s->how.fixed_order && s->any_order,
                       "--fixed-order and --any-order: expected one of them") ||
             refuse_if(by_messages(s) && strcmp(s->schedule_name, "async"),
                       "--execution messages: expected --schedule async") ||
             refuse_if(s->how.order_blocks & (s->how.order_blocks - 1),
                       "--order-blocks %d: expected a power of two", (int)s->how.order_blocks));
}

/* A plan's stages were measured, and their bytes counted, on the CPU and with all parameters apart. */
static bool check_plan(const struct settings *s)
{
    const bool offloads = s->offload.text && !word_list_find(&s->planned, "offload");
    const char *other = offloads              ? "--offload"
                        : s->tied             ? "--tie-embeddings"
                        : settings_on_cuda(s) ? "--device cuda"
                        : s->file             ? "--file"
                                              : NULL;

    return !refuse_if(s->planned.count && other,
                      "--plan with %s: expected one of them; no plan was made with it", other);
}

/* ---- what computes ----------------------------------------------------------------------------- */

bool settings_is_cuda(const char *device)
{
    const size_t digits = strncmp(device, "cuda:", 5) ? 0 : strspn(device + 5, "0123456789");

    return !strcmp(device, "cuda") || (digits > 0 && digits < 5 && !device[5 + digits]);
}

bool settings_take_image(const char *device, const char *file, const void **image, void **read)
{
    size_t len;

    if (file) {
        *image = *read = input_read(file, MOST_IMAGE_BYTES, &len);
        return *image; /* or it has said why not */
    }
    *image = cuda_image;
    return !refuse_if(!*image, "--device %s: this program was built without kernels, because configure "
                      "found no nvcc; install one (CUDA Toolkit 12 or 13), configure and make again, or "
                      "give --kernels FILE", device);
}

static bool take_device(struct settings *s)
{
    const bool offloads_less = s->offload.text && (!s->offload.params || s->how.offload.kept_share > 0);
    const int depth = (int)(s->width / s->heads);

    if (!settings_on_cuda(s))
        return !(
            refuse_if(strcmp(s->dtype, "f32") && (!is_sequential(s) || s->how.replicas > 1 || s->tied),
                      "--dtype %s: expected --device cuda, or --schedule none with one replica, without "
                      "--tie-embeddings", s->dtype) ||
            refuse_if(s->kernels, "--kernels: expected --device cuda") ||
            refuse_if(s->no_graphs, "--no-graphs: expected --device cuda") ||
            refuse_if(settings_by_nccl(s),
                      "--transport nccl: expected --device cuda; it sends from GPU to GPU"));
    if (refuse_if(!settings_is_cuda(s->device), "--device %s: expected cpu, cuda or cuda:N",
                  s->device) ||
        refuse_if(offloads_less, "--offload with --device %s: expected params among them, and no "
                  "--device-share", s->device) ||
        refuse_if(settings_by_nccl(s) && by_messages(s),
                  "--transport nccl: expected --execution list; its messages have no tags") ||
        refuse_if(depth > ATTENTION_DEPTH, "--width %d --heads %d: a head is %d wide, expected at most "
                  "%d on %s", (int)s->width, (int)s->heads, depth, ATTENTION_DEPTH, s->device))
        return false;
    s->any_order = !s->how.fixed_order;
    return settings_take_image(s->device, s->kernels, &s->image, &s->kernels_read);
}

/* ---- replicas ---------------------------------------------------------------------------------- */

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

    *local = (int)s->how.mixing.graph.local;
    if (*local)
        return 0;
    const int err = dp_process_from_env(&process);
    if (!err && process.local_size > 0)
        *local = process.local_size % ranks ? 1 : process.local_size / ranks;
    else
        *local = ranks > 1;
    return err;
}

static int make_graph(struct settings *s)
{
    int local, err = find_local(s, &local);

    if (err)
        return command_failed(err);
    command_mute(true);
    err = dp_graph_new(&(struct dp_graph_spec){.name = s->mix,
                                               .workers = (int)s->how.replicas,
                                               .local = local,
                                               .seed = (uint64_t)s->how.seed},
                       &s->graph);
    command_mute(false);
    if (err == DP_EINVAL)
        return command_misused("--mix %s with -D %d: %s", s->mix, (int)s->how.replicas, dp_last_error());
    if (!err && s->graph->local > 1)
        /* A checkpoint goes on with it, whatever the launcher says. */
        s->how.mixing.graph.local = s->graph->local;
    return err ? command_failed(err) : EXIT_OK;
}

static bool take_graph(struct settings *s, int *status)
{
    char why[WHY];
    const bool named = take_name(s, why), mixes = !named || s->how.sums == DP_SUMS_MIXING;
    const int local = s->how.mixing.graph.local, replicas = (int)s->how.replicas;

    if (refuse_if(local && !(named && mixes),
                  "--mix-local %d: expected --mix with the name of a graph, not %s", local, s->mix))
        return false;
    if (!mixes)
        return true;
    s->how.sums = replicas > 1 ? DP_SUMS_MIXING : DP_SUMS_ALL;
    *status = named ? make_graph(s) : read_graph(s->mix, why, &s->graph);
    if (*status)
        return false;
    *status = EXIT_USAGE;
    if (refuse_if(s->graph->workers != replicas, "--mix %s: a graph of %d workers, expected %d, the "
                  "number of replicas (-D)", s->mix, s->graph->workers, replicas))
        return false;
    return !dp_graph_check(s->graph, NULL) || (*status = command_failed(DP_EINVAL), false);
}

/* How they mix; *status may be that of local SGD, which has defaults. */
static bool take_method(struct settings *s)
{
    __typeof__(s->how.mixing) *m = &s->how.mixing;
    const bool local = m->algorithm == DP_MIXER_LOCAL_SGD, push_sum = s->graph && s->graph->push_sum;
    const char *sent = m->compression ? "--mix-compress" : m->staleness ? "--mix-staleness" : NULL;
    const char *graph = s->graph ? s->graph->name : "", *name = dp_name(DP_NAMES_MIXER, m->algorithm);

    if (refuse_if(!local && (m->local_steps || m->outer_rate > 0 || m->outer_momentum > 0),
                  "--local-steps, --outer-rate, --outer-momentum: expected --mix-algorithm local-sgd") ||
        refuse_if(m->outer_momentum >= 1, "--outer-momentum %g: expected a number below 1",
                  m->outer_momentum) ||
        refuse_if(sent && !s->graph, "%s: expected --mix with a graph; replicas that sum their "
                  "gradients do not mix", sent) ||
        refuse_if(!s->graph && m->factor > 0, "--mix-factor: expected --mix with a graph") ||
        refuse_if(sent && m->algorithm, "%s: expected --mix-algorithm d-psgd, not %s", sent, name) ||
        refuse_if(sent && push_sum, "%s: expected a graph without push-sum, not %s", sent, graph) ||
        refuse_if(m->compression && m->staleness,
                  "--mix-compress and --mix-staleness: expected one of the two") ||
        refuse_if(m->algorithm && !s->graph, "--mix-algorithm %s: expected --mix with a graph; replicas "
                  "that sum their gradients do not mix", name) ||
        refuse_if(m->algorithm && push_sum, "--mix-algorithm %s: expected a graph without push-sum, not "
                  "%s", name, graph))
        return false;
    if (local && !m->local_steps)
        m->local_steps = 8;
    if (local && !(m->outer_rate > 0))
        m->outer_rate = 1;
    return true;
}

/* DualPipe and replicas hold every stage twice. What a rank has beside its stages would be lost. */
static bool check_pipeline_survival(const struct settings *s)
{
    const char *expected = s->graph                     ? "--mix all-reduce or reduce-scatter"
                           : s->placement               ? "no --placement"
                           : s->how.delay_update        ? "no --delay-update"
                           : s->checkpoint_stages.count ? "no --checkpoint-stages"
                           : settings_on_cuda(s)        ? "--device cpu"
                           : s->restarts                ? "--spare instead of --restart"
                                                        : NULL;

    return !(refuse_if(s->file, "--survive: expected no --file") ||
             refuse_if(s->how.replicas < 2 && strcmp(s->schedule_name, "dualpipe"),
                       "--survive: expected -D 2 or more, or --schedule dualpipe, whose mirrors hold "
                       "the stages of a rank that dies") ||
             refuse_if(expected, "--survive with a pipeline: expected %s", expected));
}

/* Of replicas that mix each is one rank: a part of a pipeline would die with it. */
static bool check_mixing_survival(const struct settings *s)
{
    const char *other = s->tied               ? "--tie-embeddings"
                        : s->offload.text     ? "--offload"
                        : settings_on_cuda(s) ? "--device cuda"
                                              : NULL;

    return !(refuse_if(s->how.replicas < 2, "--survive: expected -D 2 or more") ||
             refuse_if(s->spares, "--spare %d: expected a pipeline; replicas are started again, "
                       "--restart", (int)s->spares) ||
             refuse_if(other, "--survive: expected no %s with replicas that mix", other) ||
             refuse_if(s->how.checkpoint.folder,
                       "--survive: expected no --save; a checkpoint has a state of every replica"));
}

static bool check_survival(const struct settings *s)
{
    if (!s->how.survive)
        return !(refuse_if(s->restarts, "--restart %d: expected --survive", (int)s->restarts) ||
                 refuse_if(s->spares, "--spare %d: expected --survive", (int)s->spares));
    return !refuse_if(s->transport && !strcmp(s->transport, "mpi"), "--survive: expected --transport "
                      "auto, shm or tcp; MPI ends with the first process that dies") &&
           (settings_survives_as_pipeline(s) ? check_pipeline_survival(s) : check_mixing_survival(s));
}

static bool take_replicas(struct settings *s, int *status)
{
    if (refuse_if(s->how.replicas > 1 && s->assignment, "-D %d: expected -D 1 with a placement, which "
                  "is of one replica", (int)s->how.replicas) ||
        !multiple("-M", s->how.microbatches, s->how.replicas, "the number of replicas (-D)") ||
        !take_graph(s, status) || !check_survival(s) || !take_method(s))
        return false;
    if (settings_processes(s) == 1)
        s->how.sums = DP_SUMS_ALL;
    return true;
}

/* Every stream of every replica whose gradients are summed holds whole blocks of the fixed order. */
static bool take_order_blocks(struct settings *s)
{
    const int streams = s->training ? s->training->streams : 1;
    const int replicas = s->graph || s->any_order ? 1 : s->how.replicas, least = streams * replicas;

    if (!s->how.order_blocks)
        s->how.order_blocks = least > 2 ? least : 2;
    return !(refuse_if(replicas & (replicas - 1) || least > MAX_BLOCKS, "-D %d: expected a power of two "
                       "up to %d, or --any-order: sums over other numbers of replicas have no fixed "
                       "order", replicas, MAX_BLOCKS / streams) ||
             refuse_if(s->how.order_blocks < least, "--order-blocks %d: expected at least %d, one for "
                       "each stream (%d) of each replica (%d)", s->how.order_blocks, least, streams,
                       replicas));
}

/* ---- what may be elsewhere, and late ----------------------------------------------------------- */

static bool check_offload(const struct settings *s)
{
    const struct offload_parts *o = &s->offload;
    const char *other = s->how.sums                         ? "--mix all-reduce"
                        : settings_on_cuda(s) && !o->params ? "--device cpu, or --offload params"
                                                            : NULL;

    return !(refuse_if(o->text && is_sequential(s) && !o->params, "--offload: expected params among "
                       "them with --schedule none, where the others go with the parameters") ||
             refuse_if(o->activations && by_messages(s), "--offload activations: expected --execution "
                       "list; what is evicted is chosen for one order of ops") ||
             refuse_if(o->text && s->how.schedule.recompute, "--offload with --checkpoint %s: expected "
                       "--checkpoint never; with --offload activations as many are recomputed as the "
                       "device's memory needs",
                       dp_name(DP_NAMES_RECOMPUTE, s->how.schedule.recompute)) ||
             refuse_if(o->folder[0] && s->how.sums, "--offload optimizer=%s: expected --mix all-reduce",
                       o->folder) ||
             refuse_if(o->text && !(s->device_memory > 0), "--offload: expected --device-memory, what "
                       "may be on the device, for instance --device-memory 64M") ||
             refuse_if(s->how.offload.layers && !(o->params && is_sequential(s)),
                       "--buffers: expected --offload params and --schedule none") ||
             refuse_if(s->how.offload.kept_share > 0 && !o->params,
                       "--device-share: expected --offload params") ||
             refuse_if(s->device_memory > 0 && !o->text, "--device-memory: expected --offload params, "
                       "or there is nothing that could be elsewhere") ||
             refuse_if(s->how.delay_update && other, "--delay-update: expected %s; optimizers on the "
                       "host are delayed that have all gradients", other));
}

/* ---- the schedule and its stages --------------------------------------------------------------- */

static bool is_wanted(void *user, const struct dp_slot *slot, int32_t mb)
{
    const struct settings *s = user;
    const int32_t last = s->how.schedule.recompute == DP_RECOMPUTE_EXCEPT_LAST;

    for (int i = 0; i < s->checkpoint_stages.count; i++)
        if (s->checkpoint_stages.items[i] == slot->stage)
            return mb < s->training->mb_per_stream - last;
    return !s->checkpoint_stages.count && mb < s->training->mb_per_stream - last;
}

/* Of a list all is there but what is computed again, and REDUCEs. Messages that drive the ranks carry no
 * REDUCE out: sums then come after the step. */
static int build_list(struct settings *s)
{
    const bool sums = s->how.replicas > 1 || s->how.sums == DP_SUMS_SHARDS;
    const bool sums_early = sums && settings_processes(s) > 1 && !by_messages(s);
    struct dp_schedule_spec spec = {.ranks = s->how.schedule.ranks,
                                    .microbatches = s->how.microbatches / s->how.replicas,
                                    .virtual_stages = s->how.schedule.virtual_stages,
                                    .slack = s->how.schedule.slack,
                                    .mirror_reduce = true,
                                    .reduce_all = sums_early};
    struct dp_finding finding;
    int *map = NULL;
    int err = s->file ? dp_schedule_check(s->training, NULL, &finding)
                      : dp_schedule_kind_parse(s->schedule_name, &spec.kind);

    if (!err && s->assignment && !s->file) {
        map = calloc((size_t)spec.ranks, sizeof(*map));
        err = map ? dp_assignment_check(s->assignment, 1, spec.ranks) : DP_ENOMEM;
        if (!err)
            err = dp_assignment_map(s->assignment, 0, map);
        spec.rank_map = map;
    }
    if (!err && !s->file)
        err = dp_schedule_new(&spec, &s->training);
    if (!err && s->how.schedule.recompute)
        err = dp_schedule_add_recomputes(s->training, is_wanted, s);
    if (!err && s->file && sums_early)
        err = dp_schedule_add_all_reduces(s->training);
    else if (!err && s->file && s->training->streams > 1)
        err = dp_schedule_add_reduces(s->training);
    free(map);
    return err;
}

static bool build_schedule(struct settings *s, int *status)
{
    int last = 0;

    if (is_sequential(s))
        return true;
    const int err = build_list(s);
    if (err)
        return *status = command_failed(err), false;
    for (int i = 0; i < s->checkpoint_stages.count; i++)
        if (s->checkpoint_stages.items[i] > last)
            last = s->checkpoint_stages.items[i];
    return !refuse_if(last >= s->training->stages, "--checkpoint-stages: stage %d, expected 0 to %d of "
                      "this schedule", last, s->training->stages - 1);
}

static bool check_blocks(const struct settings *s, int stages)
{
    const struct number_list *blocks = &s->blocks;
    int sum = 0, empty = 0; /* a stage between the first and the last that has none */

    if (!blocks->count)
        return multiple("--layers", s->layers, stages, "the number of stages");
    for (int i = 0; i < blocks->count; i++) {
        sum += blocks->items[i];
        if (i && i < blocks->count - 1 && !blocks->items[i])
            empty = i;
    }
    return !(refuse_if(is_sequential(s) || s->graph,
                       "--blocks: expected a schedule, and replicas that sum their gradients") ||
             refuse_if(blocks->count != stages, "--blocks: %d numbers, expected %d, one for each stage",
                       blocks->count, stages) ||
             refuse_if(empty, "--blocks: 0 for stage %d, expected 1 or more between the first and the "
                       "last", empty) ||
             refuse_if(sum != s->layers, "--blocks: %d blocks together, expected %d, the number of "
                       "--layers", sum, (int)s->layers));
}

static bool check_model(const struct settings *s)
{
    return multiple("--width", s->width, s->heads, "the number of --heads") &&
           multiple("--batch", s->how.rows, s->how.microbatches, "the number of micro-batches (-M)") &&
           check_blocks(s, s->training ? s->training->stages : 1);
}

/* ---- what is written --------------------------------------------------------------------------- */

/* Whether `path` can be written, found out without writing. */
static bool check_output(const char *option, const char *path)
{
    char parent[CHECKPOINT_PATH];
    struct stat there;

    if (!path)
        return true;
    if (refuse_if(!strcmp(path, "-"), "%s -: expected a file; standard output is for the steps", option))
        return false;
    const bool exists = !stat(path, &there);
    if (exists && S_ISDIR(there.st_mode))
        errno = EISDIR;
    else if (!exists && snprintf(parent, sizeof(parent), "%s", path) >= (int)sizeof(parent))
        errno = ENAMETOOLONG;
    else if (exists ? !access(path, W_OK) : !access(dirname(parent), W_OK | X_OK))
        return true;
    command_misused("%s %s: %s; expected a file that can be written", option, path, strerror(errno));
    return false;
}

static bool check_outputs(const struct settings *s)
{
    bool good = !refuse_if(is_sequential(s) && settings_drawn(s), "%s: expected a schedule; with "
                           "--schedule none there is no pipeline to see", settings_drawn(s));

    for (int i = 0; i < DRAWN && good; i++)
        good = check_output(drawn_names[i], s->drawn[i]);
    return good;
}

/* The folder of --save is looked at when it is locked. */
static bool check_folders(const struct settings *s)
{
    const char *state = s->offload.folder;
    const bool is_refused = *state && access(state, W_OK | X_OK);

    return !(refuse_if(s->how.checkpoint.every && !s->how.checkpoint.folder, "--save-every %d: expected "
                       "--save, the folder for checkpoints", (int)s->how.checkpoint.every) ||
             refuse_if(is_refused, "--offload optimizer=%s: %s; expected a folder that can be written",
                       state, strerror(errno)));
}

/* ---- all of it --------------------------------------------------------------------------------- */

bool settings_check(struct settings *s, const struct operands *files, int world, int *status)
{
    *status = EXIT_USAGE;
    if (s->prompt)
        return check_prompt(s, files);
    return check_plan(s) && take_list(s, status) && settings_take_files(s, files) &&
           take_placement(s, status) && take_ranks(s, world) && check_order(s) && check_outputs(s) &&
           take_device(s) && take_replicas(s, status) && check_offload(s) &&
           build_schedule(s, status) && check_model(s) && take_order_blocks(s) && check_folders(s);
}
