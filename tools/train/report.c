/* SPDX-License-Identifier: Apache-2.0 */
#include "train/report.h"

#include "clock.h"
#include "command.h"

#include <jansson.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES = 10 }; /* elsewhere than on a terminal */
static const int64_t refresh_ns = 100000000; /* on a terminal */

/* Tokens, which are bytes, learned from per second since time `ns`, when `step` steps were done. */
static double tokens_per_second(const struct report *r, uint64_t done, int64_t ns, uint64_t step)
{
    double tokens = (double)(done - step) * (double)r->settings->how.rows *
                    (double)r->settings->model.context;

    return tokens / ((double)(now_ns() - ns) * 1e-9);
}

/* The steps that a checkpoint had done. */
static uint64_t first_of(const struct report *r)
{
    return r->settings->from.step;
}

bool report_due(const struct settings *s, uint64_t step)
{
    uint64_t steps = (uint64_t)s->steps, every = steps > LINES ? steps / LINES : 1;

    return step % every == 0 || step == steps;
}

/* ---- for programs -------------------------------------------------------------------------- */

static void set_number(json_t *object, const char *key, double value)
{
    if (isfinite(value))
        json_object_set_new(object, key, json_real(value));
    else if (!isnan(value)) /* JSON has no infinity */
        json_object_set_new(object, key, json_string(value > 0 ? "Infinity" : "-Infinity"));
}

static void set_rate(json_t *o, const struct report *r, uint64_t done)
{
    set_number(o, "tokens_per_second", tokens_per_second(r, done, r->start_ns, first_of(r)));
}

static void print_json(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
    putchar('\n');
    command_flush();
    json_decref(object);
}

/* The text of the steps before was another. */
static bool is_other_text(const struct settings *s, const struct data *data)
{
    return s->from.step && s->from.data && s->from.data != data->digest;
}

static void json_begin(const struct settings *s, const struct data *data, size_t param_count)
{
    json_t *o = json_pack(
        "{s:s, s:s, s:I, s:s, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "event",
        "begin", "model", s->model_name, "parameters", (json_int_t)param_count, "schedule",
        s->schedule_name, "ranks", (json_int_t)s->how.schedule.ranks, "replicas",
        (json_int_t)s->how.replicas, "mix", s->mix, "mix_algorithm",
        dp_name(DP_NAMES_MIXER, s->how.mixing.algorithm), "microbatches",
        (json_int_t)s->how.microbatches, "layers", (json_int_t)s->layers,
        "width", (json_int_t)s->width, "context", (json_int_t)s->context, "batch",
        (json_int_t)s->how.rows, "data_bytes", (json_int_t)data->len, "held_out_bytes",
        (json_int_t)(data->chunks * data->held_len), "unigram_entropy", data_entropy(data));

    if (s->from.step)
        json_object_set_new(o, "resumed_step", json_integer((json_int_t)s->from.step));
    if (is_other_text(s, data))
        json_object_set_new(o, "other_data", json_true());
    print_json(o);
}

/* A checkpoint after `step` steps has been written: every so often, and at the end. */
static void json_saved(const struct settings *s, uint64_t step)
{
    print_json(json_pack("{s:s, s:I, s:o}", "event", "save", "step", (json_int_t)step, "path",
                         json_sprintf("%s/step-%06" PRIu64, s->how.checkpoint.folder, step)));
}

static bool is_saved(const struct settings *s, uint64_t step)
{
    const uint64_t every = s->how.checkpoint.every;

    return s->how.checkpoint.folder && every && step % every == 0;
}

static void json_progress(const struct report *r, const struct progress *p)
{
    json_t *o = json_pack("{s:s, s:I}", "event", "step", "step", (json_int_t)p->step);

    set_number(o, "loss", p->result.loss);
    set_number(o, "norm", p->result.norm);
    set_number(o, "rate", p->result.rate);
    set_number(o, "held_out", p->held_out);
    set_number(o, "bubble", p->bubble);
    set_rate(o, r, p->step);
    print_json(o);
    if (is_saved(r->settings, p->step))
        json_saved(r->settings, p->step);
}

/* Text as a JSON string: as it is if it is UTF-8, else as if it were Latin-1. */
static json_t *json_text(const uint8_t *text, size_t len)
{
    json_t *string = json_stringn((const char *)text, len);
    if (string || !len)
        return string;

    char *utf8 = malloc(2 * len);
    size_t used = 0;
    for (size_t i = 0; utf8 && i < len; i++) {
        if (text[i] >= 0x80)
            utf8[used++] = (char)(0xC0 | text[i] >> 6);
        utf8[used++] = (char)(text[i] >= 0x80 ? 0x80 | (text[i] & 0x3F) : text[i]);
    }
    string = json_stringn(utf8, used);
    free(utf8);
    return string;
}

/* What was at work in all steps, and how much of what could be done at the same time was: 1, if nothing
 * waited but for the part that took the most. */
struct overlap {
    double done, share; /* share of the time of all steps that could be hidden */
    const char *limited_by;
    double limit_share; /* how long that was at work, of the time of all steps */
};

static struct overlap overlap_of(const struct dp_trainer_offload *f)
{
    static const char *const names[] = {"compute", "copies to the device", "copies from the device"};
    const double steps = fmax(1, (double)f->steps_ns), took = (double)f->steps_ns;
    const double busy[] = {took - (double)f->wait_ns, (double)f->up_ns, (double)f->down_ns};
    struct overlap o = {1, 0, names[0], 0};
    double sum = 0, most = 0;

    for (int i = 0; i < 3; i++) {
        sum += busy[i];
        if (busy[i] >= most)
            o.limited_by = names[i];
        most = fmax(most, busy[i]);
    }
    if (sum > most)
        o.done = fmax(0, (sum - fmax(took, most)) / (sum - most));
    o.share = (sum - most) / steps;
    o.limit_share = most / steps;
    return o;
}

static json_t *json_offload(const struct dp_trainer_offload *f)
{
    const struct overlap o = overlap_of(f);

    return json_pack("{s:I, s:I, s:I, s:b, s:f, s:I, s:f, s:s, s:f}", "sets", (json_int_t)f->sets,
                     "evicted", (json_int_t)f->evicted, "recomputed", (json_int_t)f->recomputed,
                     "params_on_host", f->streamed, "kept_share", f->kept, "device_bytes",
                     (json_int_t)f->device_bytes, "overlap", o.done, "limited_by", o.limited_by,
                     "limit_share", o.limit_share);
}

/* By rank, what the pipeline, the stages and the optimizer have asked for. */
static json_t *json_held(const struct summary *m)
{
    json_t *list = json_array();

    for (int rank = 0; rank < m->memory_count; rank++)
        json_array_append_new(list, json_integer((json_int_t)m->memory[rank].held_bytes));
    return list;
}

static void json_end(const struct report *r, const struct summary *m)
{
    const struct settings *s = r->settings;
    if (s->how.checkpoint.folder && !is_saved(s, (uint64_t)s->steps))
        json_saved(s, (uint64_t)s->steps);
    json_t *o = json_pack("{s:s, s:I, s:I}", "event", "end", "steps", (json_int_t)s->steps,
                          "skipped", (json_int_t)m->skipped);

    set_number(o, "first_loss", m->first_loss);
    set_number(o, "last_loss", m->last_loss);
    set_number(o, "held_out", m->held_out);
    set_number(o, "seconds", (double)(now_ns() - r->start_ns) * 1e-9);
    set_rate(o, r, (uint64_t)s->steps);
    set_number(o, "bubble", m->step.bubble);
    set_number(o, "step_ms", m->step.step_ms);
    set_number(o, "simulated_ms", m->step.simulated_ms);
    set_number(o, "memory_bytes", m->memory_bytes);
    if (s->training && !s->offload.params && !s->offload.optimizer && !settings_on_cuda(s))
        json_object_set_new(o, "rank_bytes", json_held(m));
    if (s->offload.text)
        json_object_set_new(o, "offload", json_offload(&m->offload));
    for (int i = 0; i < DRAWN; i++)
        if (s->drawn[i] && !m->step.unwritten[i])
            json_object_set_new(o, drawn_names[i] + 2, json_string(s->drawn[i]));
    json_object_set_new(o, "sample", json_text(m->sample, m->sample_len));
    print_json(o);
}

/* ---- lines for people, no wider than the terminal or COLUMNS says ---------------------------- */

/* What stands before a line: its subject. Lines that are folded go on below the rest. */
enum { LINE_INDENT = 10 };

/* Print text that ends with a newline to standard output, folded between words. */
DP_PRINTF(1, 2) static void put_line(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    text[strcspn(text, "\n")] = '\0';
    fold_line(stdout, text, 0, LINE_INDENT);
}

/* A line that the next one overwrites, cut off where it would not fit. */
static void print_in_place(const char *text)
{
    /* A terminal goes on to the next line behind its last column. */
    printf("\r\033[K%.*s", fold_columns(stdout, 0) - 1, text);
}

/* Bytes that a model has made. What a terminal would not print as text appears as a dot. indent: spaces
 * before all lines but the first, which are folded; 0: lines are as the model made them. */
static void print_bytes(const uint8_t *text, size_t len, int indent)
{
    const int columns = indent ? fold_columns(stdout, indent) : INT_MAX;
    int used = indent;

    for (size_t i = 0; i < len; i++) {
        const bool plain = text[i] >= ' ' && text[i] < 0x7F;
        if (text[i] == '\n' || used >= columns)
            used = printf("\n%*s", indent, "") - 1;
        if (text[i] == '\n')
            continue;
        putchar(plain ? text[i] : '.');
        used++;
    }
}

/* ---- for people ---------------------------------------------------------------------------- */

static void text_model(const struct settings *s, const struct data *data, size_t param_count)
{
    const struct gpt_config *c = &s->model;

    put_line("model     %d blocks of width %d, %d heads, context %d: %zu parameters\n", c->layers,
             c->width, c->heads, c->context, param_count);
    put_line("data      %zu bytes, %zu of them held out; a guess by frequency costs %.3f nats a "
             "byte\n", data->len, data->chunks * data->held_len, data_entropy(data));
}

static void text_begin(const struct settings *s, const struct data *data, size_t param_count)
{
    text_model(s, data, param_count);
    put_line("schedule  %s on %d rank%s, %d micro-batches of %d x %d bytes a step\n",
             s->schedule_name, s->how.schedule.ranks, s->how.schedule.ranks > 1 ? "s" : "",
             s->how.microbatches, s->model.batch, s->model.context);
    if (s->how.replicas > 1 && s->graph)
        put_line("replicas  %d, which mix their weights by %s in %d round%s (%s%s%s)\n",
                 (int)s->how.replicas, s->graph->name, s->graph->period,
                 s->graph->period > 1 ? "s" : "", dp_name(DP_NAMES_MIXER, s->how.mixing.algorithm),
                 s->how.mixing.compression ? ", sent as " : "",
                 s->how.mixing.compression ? "int8" : "");
    else if (s->how.replicas > 1)
        put_line("replicas  %d, whose gradients are summed%s\n", (int)s->how.replicas,
                 s->how.sums == DP_SUMS_SHARDS ? "; each has a share of the optimizer's state" : "");
    if (s->assignment)
        put_line("placement %s: a rank for each process\n", s->assignment->name);
    if (s->from.step)
        put_line("resumed   after %" PRIu64 " steps, from %s%s\n", s->from.step, s->from.path,
                 is_other_text(s, data) ? "; they learned from another text than --data" : "");
    command_flush();
}

static const char *time_left(const struct report *r, uint64_t done, char *out, size_t len)
{
    double per_step = (double)(now_ns() - r->start_ns) * 1e-9 / (double)(done - first_of(r));
    uint64_t left = (uint64_t)(per_step * (double)((uint64_t)r->settings->steps - done) + 0.5);

    snprintf(out, len, "%" PRIu64 ":%02" PRIu64, left / 60, left % 60);
    return out;
}

static void text_progress(struct report *r, const struct progress *p)
{
    char left[32], held_out[32] = "", bubble[32] = "", line[256];

    if (!isnan(r->held_out))
        snprintf(held_out, sizeof(held_out), "  held-out %.3f", r->held_out);
    if (!isnan(r->bubble))
        snprintf(bubble, sizeof(bubble), "  bubble %.0f %%", 100 * r->bubble);
    snprintf(line, sizeof(line),
             "step %*" PRIu64 "/%" PRId64 "  loss %.3f%s  %.1fk tokens/s%s  %s left",
             snprintf(NULL, 0, "%" PRId64, r->settings->steps), p->step, r->settings->steps,
             p->result.loss, held_out,
             1e-3 * tokens_per_second(r, p->step, r->shown_ns, r->shown_step), bubble,
             time_left(r, p->step, left, sizeof(left)));
    if (r->terminal)
        print_in_place(line);
    else
        put_line("%s\n", line);
    command_flush();
    r->shown_ns = now_ns();
    r->shown_step = p->step;
}

static void print_sample(const uint8_t *text, size_t len)
{
    printf("%-*s", LINE_INDENT, "sample");
    print_bytes(text, len, LINE_INDENT);
    putchar('\n');
}

static void text_offload(const struct report *r, const struct dp_trainer_offload *f)
{
    const double mib = 1024.0 * 1024;
    const struct overlap o = overlap_of(f);
    char overlap[80] = "there is little to hide", kept[80] = "";

    if (f->kept > 0 && f->streamed)
        snprintf(kept, sizeof(kept), ", %.0f %% of the parameters always", 100 * f->kept);
    put_line("offload   activations of %" PRId64 " micro-batches in stages: %" PRId64
             " on the host, %" PRId64 " recomputed%s%s; %.1f of %.1f MiB of a device\n",
             f->sets, f->evicted, f->recomputed, f->streamed ? "; parameters in passing" : "", kept,
             (double)f->device_bytes / mib, r->settings->device_memory / mib);
    if (o.share > 0.02)
        snprintf(overlap, sizeof(overlap), "%.0f %% of the %.0f %% of a step that can be hidden",
                 100 * o.done, 100 * o.share);
    put_line("overlap   %s; limited by %s, at work for %.0f %% of a step\n", overlap, o.limited_by,
             100 * o.limit_share);
}

static const char *const opened_with[DRAWN] = {"", " (open it in ui.perfetto.dev)"};

static void text_end(const struct report *r, const struct summary *m)
{
    const struct settings *s = r->settings;

    if (r->terminal)
        putchar('\n');
    put_line("done      %" PRIu64 " steps in %.1f s, %.1fk tokens/s\n",
             (uint64_t)s->steps - first_of(r), (double)(now_ns() - r->start_ns) * 1e-9,
             tokens_per_second(r, (uint64_t)s->steps, r->start_ns, first_of(r)) * 1e-3);
    put_line("loss      %.4f at first, %.4f at last, %.4f held out (nats a byte)\n", m->first_loss,
             m->last_loss, m->held_out);
    if (m->skipped)
        put_line("skipped   %" PRIu64 " steps, whose gradient was not finite\n", m->skipped);
    if (!isnan(m->step.bubble))
        put_line(
            "bubble    %.0f %% of the last step, which took %.1f ms; simulated with the same op "
            "times %.1f ms\n",
            100 * m->step.bubble, m->step.step_ms, m->step.simulated_ms);
    put_line("memory    %.0f MiB at most, on rank %d\n", m->memory_bytes / (1024 * 1024),
             (int)m->memory_rank);
    if (s->offload.text)
        text_offload(r, &m->offload);
    if (s->how.checkpoint.folder)
        put_line("saved     %s/step-%06" PRId64 "\n", s->how.checkpoint.folder, s->steps);
    for (int i = 0; i < DRAWN; i++)
        if (s->drawn[i] && !m->step.unwritten[i])
            put_line("%-9s %s%s\n", drawn_names[i] + 2, s->drawn[i], opened_with[i]);
    if (m->sample_len)
        print_sample(m->sample, m->sample_len);
}

/* ---- either -------------------------------------------------------------------------------- */

void report_begin(struct report *r, const struct settings *s, const struct data *data, bool shown)
{
    size_t param_count = gpt_parameter_count(&s->model);

    *r = (struct report){
        .settings = s,
        .terminal = !s->json && isatty(STDOUT_FILENO),
        .held_out = NAN,
        .bubble = NAN,
        .start_ns = now_ns(),
        .shown_ns = now_ns(),
        .shown_step = s->from.step,
    };
    if (shown && s->json)
        json_begin(s, data, param_count);
    else if (shown)
        text_begin(s, data, param_count);
}

void report_progress(struct report *r, const struct progress *p)
{
    if (!isnan(p->held_out))
        r->held_out = p->held_out;
    if (!isnan(p->bubble))
        r->bubble = p->bubble;
    if (r->settings->json)
        json_progress(r, p);
    else if (r->terminal ? now_ns() - r->shown_ns >= refresh_ns || report_due(r->settings, p->step)
                         : report_due(r->settings, p->step))
        text_progress(r, p);
}

void report_slow(struct report *r, uint64_t step, const struct dp_slow *slow, bool begun)
{
    char text[160];

    dp_slow_text(slow, text, sizeof(text));
    if (r->settings->json) {
        print_json(json_pack("{s:s, s:I, s:s, s:i, s:i, s:f, s:f, s:s}", "event",
                             begun ? "slow" : "slow_end", "step", (json_int_t)step, "what",
                             slow->kind == DP_SLOW_LINK ? "link" : "compute", "rank", slow->rank,
                             "peer", slow->peer, "ms", slow->ns * 1e-6, "others_ms",
                             slow->others_ns * 1e-6, "text", text));
        return;
    }
    if (r->terminal)
        putchar('\n');
    put_line("slow      %s step %" PRIu64 ": %s\n", begun ? "since" : "no longer at", step, text);
    command_flush();
}

void report_sample(const struct settings *s, const uint8_t *text, size_t len)
{
    if (s->json) {
        print_json(json_pack("{s:s, s:I, s:o, s:o}", "event", "sample", "step",
                             (json_int_t)s->from.step, "prompt",
                             json_text((const uint8_t *)s->prompt, strlen(s->prompt)), "sample",
                             json_text(text, len)));
        return;
    }
    fputs(s->prompt, stdout);
    print_bytes(text, len, 0);
    putchar('\n');
}

void report_end(struct report *r, const struct summary *summary)
{
    if (r->settings->json)
        json_end(r, summary);
    else
        text_end(r, summary);
}
