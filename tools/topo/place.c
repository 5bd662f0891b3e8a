/* SPDX-License-Identifier: Apache-2.0
 *
 * place.c - `dualpipe topo place`: which GPU does whose work, and which route every byte takes.
 */
#include "command.h"
#include "commands.h"
#include "draw/parts.h"
#include "schedule_args.h"
#include "topo/topo.h"

#include <dualpipe/placement.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- which replicas mix ---------------------------------------------------------------------- */

/* For dp_placement_spec. Free pairs. */
struct place_mixing {
    struct dp_replica_pair *pairs;
    int count;
};

/* "0-2,1-3" */
static int read_pairs(const char *text, struct place_mixing *out)
{
    const char *at = text;

    for (int end = 0; *at; at += end) {
        struct dp_replica_pair *p = &out->pairs[out->count];
        if (sscanf(at, "%d-%d%n", &p->a, &p->b, &end) != 2 || (at[end] && at[end] != ','))
            return command_misused("--mixing %s: expected pairs of replicas such as 0-2,1-3, or none, "
                                   "or all-reduce", text);
        end += at[end] == ',';
        out->count++;
    }
    return 0;
}

/* Two swap; more exchange as a ring does, 2 (k - 1) / k of the parameters from each to the next. */
static void add_ring(int32_t k, struct place_mixing *out)
{
    for (int32_t i = 0; i < k && k > 1; i++)
        out->pairs[out->count++] = (struct dp_replica_pair){
            .a = i, .b = (i + 1) % k, .share = k == 2 ? 1 : 2.0 * (k - 1) / k, .one_way = true};
}

/* Pairs, "none" or "all-reduce". 0, else an EXIT_ value and the sentence has been printed; the caller
 * frees the pairs either way. */
static int place_read_mixing(const char *text, int32_t replicas, struct place_mixing *out)
{
    int status = 0;

    *out = (struct place_mixing){calloc(strlen(text) + (size_t)replicas + 1, sizeof(*out->pairs)), 0};
    if (!out->pairs)
        return command_broke("no memory for %zu characters of --mixing", strlen(text));
    if (!strcmp(text, "all-reduce"))
        add_ring(replicas, out);
    else if (strcmp(text, "none"))
        status = read_pairs(text, out);
    return status;
}

enum {
    TIME_LEN = 24,
    WORKERS_MAX = 1 << 20,
    MANY_WORKERS = 512 /* the search of so many takes seconds */
};

struct place_args {
    struct topo_args topo; /* first: for topo_run */
    struct schedule_args schedule;
    int64_t replicas, effort, seed, lines;
    double activation_bytes, gradient_bytes, parameter_bytes, offload_bytes;
    const char *gpus, *mixing;
    uint8_t traffic_class[DP_FLOW_KINDS];
};

/* ---- as text -------------------------------------------------------------------------------- */

struct report {
    const struct place_args *a;
    const struct dp_placement *p;
    const struct dp_topology *t;
    FILE *to;
};

static const char *name_worker(const struct report *r, int32_t worker, char out[TOPO_WORD])
{
    if (r->p->replicas == 1)
        snprintf(out, TOPO_WORD, "rank %" PRId32, worker % r->p->ranks);
    else
        snprintf(out, TOPO_WORD, "replica %" PRId32 " rank %" PRId32, worker / r->p->ranks,
                 worker % r->p->ranks);
    return out;
}

/* Says how many of a list are not shown. */
static bool is_enough(const struct report *r, int32_t shown, int32_t count)
{
    if (shown < r->a->lines)
        return false;
    fprintf(r->to, "  ... and %" PRId32 " more (--lines)\n", count - shown);
    return true;
}

static void put_workers(const struct report *r)
{
    const int32_t count = r->p->ranks * r->p->replicas;
    char name[TOPO_WORD], label[DP_TOPO_LABEL_LEN];

    fprintf(r->to, "\n  %-24s  %-14s  %-8s  %-14s  NICs\n", "worker", "GPU", "came as", "memory");
    for (int32_t i = 0; i < count && !is_enough(r, i, count); i++) {
        const struct dp_placed_worker *w = &r->p->workers[i];
        fprintf(r->to, "  %-24s  ", name_worker(r, i, name));
        fprintf(r->to, "%-14s  %-8" PRId32 "  ", dp_topology_label(r->t, w->gpu, label),
                w->came_as);
        fprintf(r->to, "%-14s  ",
                w->memory < 0 ? "-" : dp_topology_label(r->t, w->memory, label));
        for (int32_t k = 0; k < w->nic_count && k < 4; k++)
            fprintf(r->to, "%s%s", k ? ", " : "", topo_nic(r->t, w->nics[k], label));
        fputs(w->nic_count > 4 ? ", ...\n" : w->nic_count ? "\n" : "-\n", r->to);
    }
}

static void put_flow(const struct report *r, const struct dp_flow *f)
{
    char from[TOPO_WORD], to[TOPO_WORD], size[TOPO_WORD], label[DP_TOPO_LABEL_LEN];

    fprintf(r->to, "  %-10s  %s to %s, %s: ", dp_name(DP_NAMES_FLOW, f->kind),
            name_worker(r, f->from, from), name_worker(r, f->to, to),
            topo_size((uint64_t)f->bytes, size));
    fprintf(r->to, "%s", f->nic_from < 0 ? "?" : topo_nic(r->t, f->nic_from, label));
    fprintf(r->to, " to %s", f->nic_to < 0 ? "?" : topo_nic(r->t, f->nic_to, label));
    fprintf(r->to, " over %s\n",
            f->rail < 0 ? "the spine" : dp_topology_label(r->t, f->rail, label));
}

static void put_flows(const struct report *r)
{
    int32_t count = 0, shown = 0;

    for (int32_t i = 0; i < r->p->flow_count; i++)
        count += r->p->flows[i].class_ >= DP_TOPO_RAILED;
    if (count)
        fprintf(r->to, "\n  flows between hosts, in a step\n");
    for (int32_t i = 0; i < r->p->flow_count; i++) {
        if (r->p->flows[i].class_ < DP_TOPO_RAILED)
            continue;
        if (is_enough(r, shown, count))
            break;
        put_flow(r, &r->p->flows[i]);
        shown++;
    }
}

static void put_links(const struct report *r)
{
    char from[DP_TOPO_LABEL_LEN], to[DP_TOPO_LABEL_LEN], before[TIME_LEN], after[TIME_LEN];
    char link[TOPO_WORD];

    fprintf(r->to, "\n  %10s  %10s  link, busy in a step\n", "before", "after");
    for (int32_t i = 0; i < r->p->link_count && !is_enough(r, i, r->p->link_count); i++) {
        const struct dp_placed_link *l = &r->p->links[i];
        fprintf(r->to, "  %10s  %10s  %s to %s, %s\n",
                draw_time((int64_t)l->before_ns, before, TIME_LEN),
                draw_time((int64_t)l->after_ns, after, TIME_LEN),
                dp_topology_label(r->t, l->from, from), dp_topology_label(r->t, l->to, to),
                topo_link(&r->t->links[l->link], link));
    }
}

static bool has_mirrors(const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < dp_schedule_slot_count(s, rank); i++)
            if (dp_schedule_slot(s, rank, i)->mirror >= 0 &&
                dp_schedule_slot(s, rank, i)->mirror != rank)
                return true;
    return false;
}

/* Traffic that was not given is counted as nothing, which may be far from what a job sends. */
static void put_assumptions(const struct report *r, const struct dp_schedule *s)
{
    const bool no_parameters = !r->a->parameter_bytes && !r->a->schedule.forward_only;
    const struct {
        bool is_zero;
        const char *what;
    } all[] = {{no_parameters && has_mirrors(s), "sums with mirrors (--parameter-bytes)"},
               {no_parameters && r->p->replicas > 1, "mixing of replicas (--parameter-bytes)"},
               {!r->a->offload_bytes, "offload (--offload-bytes)"}};
    int count = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].is_zero)
            fprintf(r->to, "%s%s", count++ ? ", " : "assumed to be zero: ", all[i].what);
    if (count)
        fputc('\n', r->to);
    for (int32_t i = 0; i < r->t->note_count; i++)
        if (r->t->notes[i].kind == DP_TOPO_MISSING)
            fprintf(r->to, "not seen: %s\n", dp_topology_text(r->t, r->t->notes[i].text));
}

static void put_text(const struct report *r, const struct dp_schedule *s)
{
    char title[96], before[TIME_LEN], after[TIME_LEN];

    draw_title(s, title, sizeof(title));
    fprintf(r->to, "%s, %" PRId32 " replica%s: %s\n", title, r->p->replicas,
            r->p->replicas > 1 ? "s" : "",
            r->p->exact ? "the best of all orders" : "the best order that was found");
    fprintf(r->to, "the slowest link is busy for %s in every step, as the ranks came %s\n",
            draw_time((int64_t)r->p->after_ns, after, TIME_LEN),
            draw_time((int64_t)r->p->before_ns, before, TIME_LEN));
    fprintf(r->to,
            "(no step time: a step takes that long at least, and longer where it computes)\n");
    put_assumptions(r, s);
    put_workers(r);
    put_flows(r);
    if (r->p->link_count)
        put_links(r);
}

/* ---- the spec ------------------------------------------------------------------------------- */

static int find_gpus(const struct dp_topology *t, const char *names, int32_t *gpus, int32_t workers)
{
    char *copy = strdup(names), *rest = copy;
    int32_t count = 0;
    int err = copy ? 0 : DP_ENOMEM;

    for (char *name; !err && (name = strsep(&rest, ",")); count++)
        if (count < workers)
            err = dp_topology_find(t, name, &gpus[count]);
    free(copy);
    if (err || count == workers)
        return err;
    command_misused("--gpus: %" PRId32 " names, expected %" PRId32 ", one for each worker", count,
                    workers);
    return DP_EINVAL;
}

static void print_progress(void *user, double done)
{
    fprintf(stderr, "\rplacing %" PRId64 " workers: %.0f %%", *(const int64_t *)user, 100 * done);
    fflush(stderr);
}

static int write_placement(const struct place_args *a, const struct dp_placement_spec *spec,
                           const struct dp_topology *t, FILE *to)
{
    struct dp_placement *p;
    char *text;
    size_t len;
    int err = dp_placement_new(spec, &p);

    if (spec->progress)
        fputs("\r\x1b[K", stderr);
    if (err)
        return err;
    if (!strcmp(a->topo.format, "text")) {
        put_text(&(struct report){a, p, t, to}, spec->schedule);
    } else if (!(err = dp_placement_write(p, t, &text, &len))) {
        fwrite(text, 1, len, to);
        free(text);
    }
    dp_placement_free(p);
    return err ? err : topo_finish(to);
}

static int place_ranks(const struct place_args *a, const struct dp_schedule *s,
                       const struct dp_topology *t, FILE *to)
{
    struct place_mixing mixing = {0};
    int64_t workers = a->replicas * s->ranks;
    int32_t *gpus = a->gpus && workers <= WORKERS_MAX ? malloc((size_t)workers * sizeof(*gpus)) : NULL;
    struct dp_placement_spec spec = {
        .topology = t,
        .schedule = s,
        .replicas = (int)a->replicas,
        .activation_bytes = a->activation_bytes,
        .gradient_bytes = a->gradient_bytes,
        .parameter_bytes = a->parameter_bytes,
        .offload_bytes = a->offload_bytes,
        .progress = workers >= MANY_WORKERS && isatty(STDERR_FILENO) ? print_progress : NULL,
        .progress_user = &workers,
        .gpus = gpus,
        .effort = (long)a->effort,
        .seed = (uint64_t)a->seed,
    };
    memcpy(spec.traffic_class, a->traffic_class, sizeof(spec.traffic_class));
    int err = gpus ? find_gpus(t, a->gpus, gpus, (int32_t)workers) : 0; /* too many: refused below */

    if (!err && a->mixing && place_read_mixing(a->mixing, (int)a->replicas, &mixing))
        err = DP_EINVAL;
    spec.mixing = mixing.pairs;
    spec.mixing_count = mixing.count;
    if (!err)
        err = write_placement(a, &spec, t, to);
    free(mixing.pairs);
    free(gpus);
    return err;
}

static int place(const void *values, const struct operands *operands, const struct dp_topology *t,
                 FILE *to)
{
    struct place_args a = *(const struct place_args *)values;
    struct dp_schedule *s;

    if (a.topo.convert)
        return topo_convert(a.topo.convert, to);
    a.schedule.outline = true;
    if (schedule_load(&a.schedule, operands, &s))
        return DP_EINVAL;
    int err = place_ranks(&a, s, t, to);
    dp_schedule_free(s);
    return err;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int find_kind(const char *name, size_t len)
{
    int kind = 0;

    while (kind < DP_FLOW_OFFLOAD &&
           (strlen(dp_name(DP_NAMES_FLOW, (enum dp_flow_kind)kind)) != len ||
            strncmp(dp_name(DP_NAMES_FLOW, (enum dp_flow_kind)kind), name, len)))
        kind++;
    return kind;
}

/* "activation=104,mirror=8" */
static bool parse_classes(const char *text, void *member, char *why, size_t why_len)
{
    uint8_t *classes = member;

    while (*text) {
        const size_t len = strcspn(text, "=");
        const int kind = find_kind(text, len);
        char *end;
        long number = text[len] ? strtol(text + len + 1, &end, 10) : -1;
        if (kind == DP_FLOW_OFFLOAD || number < 0 || number > 255 || end == text + len + 1 ||
            (*end && *end != ',')) {
            snprintf(why, why_len, "KIND=N such as activation=104,mirror=8, with the kinds "
                                   "activation, gradient, mirror and mixing, and N from 0 to 255");
            return false;
        }
        classes[kind] = (uint8_t)number;
        text = end + (*end == ',');
    }
    return true;
}

#define AT(member) .offset = offsetof(struct place_args, member)

static const struct arg schedule_rows[] = {
    {"ranks", 'P', "N", "pipeline ranks (default 4)", ARG_INT, AT(schedule.ranks), .min = 1,
     .max = 65536},
    {"microbatches", 'M', "N", "micro-batches of a step (default 2 x ranks)", ARG_INT,
     AT(schedule.microbatches), .min = 1, .max = 1 << 20},
    {"forward-only", 0, NULL, "no backward: evaluation", ARG_FLAG, AT(schedule.forward_only)},
    {"file", 0, "FILE", "your own schedule instead of KIND (- for stdin)", ARG_STRING,
     AT(schedule.file)},
    {"replicas", 'D', "N", "copies of the pipeline", ARG_INT, AT(replicas), .fallback = "1",
     .min = 1, .max = 1 << 20},
    {"gpus", 0, "LIST", "GPUs in the order in which ranks come: gpu0,gpu2,... (default: as listed)",
     ARG_STRING, AT(gpus)},
};
static const struct arg traffic_rows[] = {
    {"activation-bytes", 0, "SIZE", "of a micro-batch, from stage to stage", ARG_BYTES,
     AT(activation_bytes), .fallback = "16MiB"},
    {"gradient-bytes", 0, "SIZE", "of a micro-batch, back (default: as an activation)", ARG_BYTES,
     AT(gradient_bytes)},
    {"parameter-bytes", 0, "SIZE", "of a stage: between its mirrors, and between replicas",
     ARG_BYTES, AT(parameter_bytes), .fallback = "0"},
    {"offload-bytes", 0, "SIZE", "that a GPU sends to host memory in a step, and gets back",
     ARG_BYTES, AT(offload_bytes), .fallback = "0"},
    {"mixing", 0, "WHICH",
     "replicas that mix: 0-2,1-3, none or all-reduce (default: a ring)", ARG_STRING, AT(mixing)},
    {"traffic-class", 0, "KIND=N,...", "of RDMA, for flows of a kind between hosts: activation=104",
     ARG_PARSE, AT(traffic_class), .parse = parse_classes},
};
static const char *const formats[] = {"text", "assignment", NULL};
static const struct arg search_rows[] = {
    {"effort", 0, "N", "swaps that the search tries; 0: by the number of workers", ARG_INT,
     AT(effort), .fallback = "0", .max = 1e9},
    {"seed", 0, "N", "of the search", ARG_INT, AT(seed), .fallback = "0", .max = 1e15},
    {"format", 'f', NULL, "what to write; assignment is what others read", ARG_CHOICE, AT(topo.format),
     .fallback = "text", .choices = formats},
    {"convert", 0, "FILE", "instead: a placement as JSON, of an older release, as assignment",
     ARG_STRING, AT(topo.convert)},
    {"lines", 0, "N", "of each list, as text", ARG_INT, AT(lines), .fallback = "16", .min = 1,
     .max = 1e9},
};

int run_topo_place(int argc, char **argv)
{
    const struct arg_group groups[] = {
        ARG_GROUP("what is placed", schedule_rows), ARG_GROUP("what travels in a step", traffic_rows),
        topo_source_group, ARG_GROUP("search and output", search_rows), {0}
    };
    const struct usage usage = {
        .command = "dualpipe topo place", .operands = "[KIND]", .operand_choices = schedule_kinds(),
        .max_operands = 1, .groups = groups,
        .about = "Say which GPU holds which pipeline rank of which replica, the NICs and rails of\n"
                 "what goes between hosts, and the NUMA nodes of pinned buffers, so that the\n"
                 "slowest link of a step is least loaded. Up to 8 workers all orders are tried;\n"
                 "for more, the best that is found is never worse than the order of the ranks.",
        .examples = "  dualpipe topo place dualpipe -P 8 -M 20\n"
                    "  dualpipe topo place 1f1b -P 8 -D 4 --parameter-bytes 2GB \\\n"
                    "      --synthetic 'dgx-h100 host:4' -f assignment -o placement.txt\n"
                    "  dualpipe topo place dualpipe -P 4 -D 2 --offload-bytes 4GB \\\n"
                    "      --synthetic hgx-a100\n",
    };
    static struct place_args a;

    return topo_run(&usage, argc, argv, &a, place);
}
