/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - what the command line of `dualpipe train` asks for, checked as far as it can be
 * before any rank has started.
 */
#ifndef DP_TRAIN_SETTINGS_H
#define DP_TRAIN_SETTINGS_H

#include "args.h"
#include "files.h"
#include "train/gpt_layers.h"

#include <dualpipe/assignment.h>
#include <dualpipe/checkpoint.h>
#include <dualpipe/mixing.h>
#include <dualpipe/schedule.h>
#include <dualpipe/trainer.h>

/* ---- words ------------------------------------------------------------------------------------- */

/* Options as one writes them, "--layers=8", each malloc'ed: what a checkpoint or a plan says, which
 * stands for what the command line leaves out. */
enum { WORDS_MOST = 64, VALUE_LEN = 8192 };
struct word_list {
    int count;
    char *items[WORDS_MOST];
};

/* false: no memory, or too many. */
bool word_list_add(struct word_list *list, const char *name, const char *value);
/* What the words say of an option, "" of a flag; NULL: nothing. */
const char *word_list_find(const struct word_list *list, const char *name);
/* A command line with them before what was given, malloc'ed, which shares the texts; NULL: no memory. */
char **word_list_before(const struct word_list *list, int *argc, char **argv);
void word_list_fini(struct word_list *list);

/* What a checkpoint says of the run that it is of: how many steps were done, and the options that the
 * numbers depend on.
 *
 *      {"program": "dualpipe train", "step": 20, "options": ["--layers=8", "--width=64", ...],
 *       "layout": ["--schedule=dualpipe", "--ranks=4", ...]}
 *
 * The layout is that of the run which wrote it; the one which goes on has the same, unless its command
 * line says otherwise. */
struct resume {
    char path[CHECKPOINT_PATH]; /* of the index, or the file; "": none */
    uint64_t step;              /* done */
    char version[32];           /* of the program that wrote it */
    uint64_t data;              /* digest of the text that was learned from; 0: not known */
    struct word_list words, held; /* held: of these those that the command line leaves a place for */
};

/* What a checkpoint says of its run, without `path`. false: another program's. */
bool resume_take(const struct dp_checkpoint *c, struct resume *out);

/* ---- values of options ----------------------------------------------------------------------- */

/* A list of numbers: blocks of each stage, or the stages that --checkpoint recomputes. Zeroed: nothing
 * was said. */
enum { NUMBERS_MOST = 4096, BLOCK_LIST_MAX = 1024 };
struct number_list {
    int count;
    int32_t items[NUMBERS_MOST];
};

/* Which parts of a model live on the host: the value of --offload. */
struct offload_parts {
    const char *text; /* as it was given; NULL: none */
    bool params, activations, optimizer;
    char folder[1024]; /* for the optimizer's state; "": it is in memory */
};

/* --buffers auto; a number is 2 or more, and 0 means auto, too. */
enum { BUFFERS_AUTO = -1 };

/* Files that the last step is drawn into: --timeline, --trace. */
enum { DRAWN = 2 };
extern const char *const drawn_names[DRAWN];

/* ---- settings -------------------------------------------------------------------------------- */

struct settings {
    struct arg_list data;
    const char *execution, *schedule_name, *transport, *placement, *mix, *model_name, *resume, *prompt,
        *file, *device, *dtype, *kernels;
    struct dp_trainer_config how; /* what OF_TRAINER sets */
    int64_t layers, width, heads, context, steps, eval_every;
    int64_t sample, port, restarts, spares;
    double dropout, device_memory, temperature;
    struct offload_parts offload;
    struct number_list checkpoint_stages, blocks;
    const char *plan, *stat_dir, *drawn[DRAWN];
    bool any_order, json, tied, no_graphs;

    /* What follows from these. */
    struct gpt_config model;
    struct resume from;       /* step 0: from the beginning */
    struct word_list planned; /* of --plan */
    struct {
        char **with_plan, **with_saved; /* command lines with the words of these; NULL: none */
    } lines;
    const void *image;      /* of kernels, on CUDA */
    void *kernels_read;     /* that of --kernels */
    struct dp_graph *graph; /* replicas mix by it; NULL: their gradients are summed */
    struct dp_schedule *training; /* NULL: sequential */
    struct dp_assignment *assignment; /* NULL: ranks as they come */
};

/* What becomes of an option beside what it sets. */
enum settings_mark {
    KEPT = 1,     /* the numbers depend on it: a checkpoint has it */
    LAYOUT = 2,   /* they do not, unless replicas mix their weights; it has it, too */
    MODEL = 4,    /* it cannot be another one in a run that goes on, */
    MIXES = 8,    /* or not of replicas that mix, since what is in flight belongs to their layout */
    COMPARED = 16, /* ranks that were started apart from each other must have the same */
    PLANNED = 32,  /* a plan decides it, or is a plan of it */
    OFFLOADED = 64 /* and these, where it offloads */
};

/* The command line, into *s. `world` is the number of ranks that were started from outside, 0 if
 * none were. false: the command is over, with *status, and one line has said why. The caller ends
 * with settings_fini. */
bool settings_parse(int argc, char **argv, int world, struct settings *s, int *status);
void settings_fini(struct settings *s);

extern const struct usage settings_usage;
/* What an option is called, and what becomes of it (enum settings_mark). */
struct setting {
    int number;
    const char *name;
    char letter;
    unsigned marks;
};
/* The option number i; false: there are fewer. */
bool settings_option(int i, struct setting *out);
/* The text of an option's value, "" of a flag, into out[VALUE_LEN]; false: nothing was said. Not of
 * lists but --blocks. 17 digits tell every double from its neighbours. */
bool settings_value(const struct setting *option, const struct settings *s, int digits, char *out);

/* settings_check.c: check what was parsed, and find what follows from it. As settings_parse. */
bool settings_check(struct settings *s, const struct operands *files, int world, int *status);
/* Files that are operands are more of --data. false, after one line: there are none, or too many. */
bool settings_take_files(struct settings *s, const struct operands *more);
/* The model of options that were parsed. */
struct gpt_config settings_model(const struct settings *s);
/* What --mix says is that replicas sum their gradients. */
bool settings_sums(const struct settings *s);
/* The first option that asks for a drawing; NULL: none does. */
const char *settings_drawn(const struct settings *s);
/* What computes is a GPU. */
bool settings_on_cuda(const struct settings *s);
/* Messages of the pipeline go from GPU to GPU. */
bool settings_by_nccl(const struct settings *s);
/* How ranks find each other, and send what no GPU sends; NULL: auto. */
const char *settings_transport(const struct settings *s);
/* "cuda" or "cuda:N". */
bool settings_is_cuda(const char *device);
/* *image: the kernels of a file, read to *read, which is the caller's to free; or with NULL those built
 * in. false, after one line: there are none. */
bool settings_take_image(const char *device, const char *file, const void **image, void **read);
/* Processes of the job: the pipeline ranks of all replicas. */
int settings_processes(const struct settings *s);
/* And those that wait to take the place of one that dies. */
int settings_started(const struct settings *s);
/* Which ranks survive: those of a pipeline, not replicas that mix. */
bool settings_survives_as_pipeline(const struct settings *s);

/* settings_saved.c: go on from the checkpoint of --resume, if there is one: parse again, its options
 * before those of the command line. As settings_parse. */
bool settings_resume(struct settings *s, int argc, char **argv, int world, struct operands *files,
                     int *status);
/* No option with one of these marks differs from what `was` has: else false, after one line, "--layers
 * 4: expected 6, `as` `path``why`". */
bool settings_same(const struct settings *s, const struct settings *was, unsigned marks, const char *as,
                   const char *path, const char *why);
/* The options of a checkpoint alone. false, after one line: this version does not have them. */
bool settings_of_words(const struct resume *from, struct settings *out);
/* For command_explain, of options that a mistake names and that were not typed: where they are from. */
struct restored {
    const struct resume *from;
    int argc;
    char **argv;
};
void settings_explain(void *restored, const char *line, char *more, size_t room);
/* What a checkpoint says of the run beside the step, malloc'ed; NULL: no memory. */
char *settings_text(const struct settings *s, uint64_t data);

/* plan_file.c: what `dualpipe plan` writes and --plan takes, options by their names:
 *
 *      {"program": "dualpipe plan", "schedule": "zbv", "ranks": 2, "microbatches": 8,
 *       "checkpoint": "never", "blocks": [2, 2, 3, 1], "layers": 8, "width": 64, "heads": 4,
 *       "context": 64, "batch": 16, "step_ns": 12345678, "rank_bytes": [1000000, 1100000]}
 *
 * step_ns and rank_bytes are what was predicted; nothing depends on them. Read its words: 0, else an
 * EXIT_ value after one line that names the member which is wrong. */
int plan_file_read(const char *path, struct word_list *out);
/* Write one, of settings that are complete. 0 or DP_EIO, DP_ENOMEM. */
int plan_file_write(FILE *to, const struct settings *s, int64_t step_ns, const size_t *rank_bytes);

#endif
