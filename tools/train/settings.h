/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - what the command line of `dualpipe train` asks for, checked as far as it can be
 * before any rank has started.
 */
#ifndef DP_TRAIN_SETTINGS_H
#define DP_TRAIN_SETTINGS_H

#include "args.h"
#include "checkpoint/find.h"
#include "train/gpt_layers.h"
#include "train/plan_file.h"

#include <dualpipe/assignment.h>
#include <dualpipe/checkpoint.h>
#include <dualpipe/mixing.h>
#include <dualpipe/schedule.h>
#include <dualpipe/trainer.h>

/* ---- what a checkpoint says of the run that it is of ----------------------------------------- */

/* How many steps were done, and the options that the numbers depend on. Those stand for the ones that
 * the command line leaves out.
 *
 *      {"program": "dualpipe train", "step": 20, "options": ["--layers=8", "--width=64", ...],
 *       "layout": ["--schedule=dualpipe", "--ranks=4", ...]}
 *
 * The layout is that of the run which wrote it; the one which goes on has the same, unless its command
 * line says otherwise. */
enum { RESUME_WORDS = 48, RESUME_WORD = 256 };

struct resume {
    char path[CHECKPOINT_PATH]; /* of the index, or the file; "": none */
    uint64_t step;              /* done */
    char version[32];           /* of the program that wrote it */
    uint64_t data;              /* digest of the text that was learned from; 0: not known */
    int word_count;
    char words[RESUME_WORDS][RESUME_WORD]; /* "--layers=8" */
};

/* What a checkpoint says of its run, without `path`. false: another program's. */
bool resume_take(const struct dp_checkpoint *c, struct resume *out);

/* ---- values of options ----------------------------------------------------------------------- */

/* Which stages --checkpoint recomputes: --checkpoint-stages. */
enum { STAGE_SET_MAX = 4096 };

/* Zeroed: nothing was said, so all stages. */
struct stage_set {
    bool any;
    int last; /* the largest of them */
    bool has[STAGE_SET_MAX];
};

/* "0,3,5-7", for ARG_PARSE. */
bool stage_set_parse(const char *text, void *member, char *why, size_t why_len);

/* The RECOMPUTEs of a schedule for training. Errors of dp_schedule_add_recomputes. */
int recompute_add(struct dp_schedule *s, enum dp_recompute mode, const struct stage_set *stages);

/* Which parts of a model live on the host: the value of --offload. */
struct offload_parts {
    const char *text; /* as it was given; NULL: none */
    bool params, activations, optimizer;
    char folder[1024]; /* for the optimizer's state; "": it is in memory */
};

/* A list of names, of which optimizer may have "=FOLDER", with commas between them, into a struct
 * offload_parts: for ARG_PARSE. */
bool offload_parts_parse(const char *text, void *member, char *why, size_t why_len);

/* "auto", which becomes BUFFERS_AUTO, or a number from 2 on, into an int32_t: for ARG_PARSE. 0: nothing
 * was said, which means auto, too. */
enum { BUFFERS_AUTO = -1 };
bool offload_buffers_parse(const char *text, void *member, char *why, size_t why_len);

/* Files that the last step is drawn into: --timeline, --trace. */
enum { DRAWN = 2 };
extern const char *const drawn_names[DRAWN];

/* ---- settings -------------------------------------------------------------------------------- */

struct settings {
    struct arg_list data;
    const char *execution, *schedule_name, *transport, *placement, *mix,
        *model_name, *resume, *prompt, *file, *device, *dtype, *kernels;
    struct dp_trainer_config how; /* what OF_TRAINER sets */
    int64_t layers, width, heads, context, steps, eval_every;
    int64_t sample, port, restarts, spares;
    double dropout, device_memory, temperature;
    struct offload_parts offload;
    struct stage_set checkpoint_stages;
    struct block_list blocks;
    const char *plan, *stat_dir, *drawn[DRAWN];
    bool any_order, json, tied, no_graphs;

    /* What follows from these. */
    struct gpt_config model;
    struct resume from;     /* step 0: from the beginning */
    struct plan_file *planned; /* of --plan, whose words the strings above may be; NULL: none */
    struct resume *parsed;  /* a copy of it, whose words the strings above may be; NULL: none */
    const void *image;      /* of kernels, on CUDA */
    void *kernels_read;     /* that of --kernels */
    struct dp_graph *graph; /* replicas mix by it; NULL: their gradients are summed */
    struct dp_schedule *training; /* NULL: sequential */
    struct dp_assignment *assignment; /* NULL: ranks as they come */
};

/* The command line, into *s. `world` is the number of ranks that were started from outside, 0 if
 * none were. false: the command is over, with *status, and one line has said why. The caller ends
 * with settings_fini. */
bool settings_parse(int argc, char **argv, int world, struct settings *s, int *status);
void settings_fini(struct settings *s);

/* --mix-compress, as it was given. */
const char *settings_compression(const struct settings *s);
/* A part of it: what follows from --mix and --mix-algorithm. */
bool settings_take_mix(struct settings *s, int *status);
/* The options, for settings_saved.c. */
extern const struct usage settings_usage;
/* Go on from the checkpoint of --resume, if there is one: parse again, its options before those of
 * the command line. As settings_parse. */
bool settings_resume(struct settings *s, int argc, char **argv, int world, struct operands *files,
                     int *status);
/* The options of a checkpoint alone. false, after one line: this version does not have them. */
bool settings_of_words(const struct resume *from, struct settings *out);
/* The model of options that were parsed. */
struct gpt_config settings_model(const struct settings *s);
/* What --mix says is that replicas sum their gradients. */
bool settings_sums(const struct settings *s);
/* The text of an option's value, "" of a flag, or NULL: nothing was said. Not of lists but --blocks. */
const char *settings_value(const struct settings *s, const char *name, char out[static RESUME_WORD]);
/* For command_explain, of options that a mistake names and that were not typed: where they are from. */
struct restored {
    const struct resume *from;
    int argc;
    char **argv;
};
void settings_explain(void *restored, const char *line, char *more, size_t room);
/* false, after one line: what goes with --prompt is not there, or what does not is. */
bool settings_check_prompt(const struct settings *s, const struct operands *files);
/* false, after one line: what --save and --resume ask for cannot be. */
bool settings_check_save(const struct settings *s);
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
/* false, after one line: --device, --dtype and --kernels do not go with the rest. */
bool settings_take_device(struct settings *s);
/* What a checkpoint after `step` steps says of the run, malloc'ed; NULL: no memory. */
char *settings_text(const struct settings *s, uint64_t step, uint64_t data);
/* Is a checkpoint written after this step? */
bool settings_save_due(const struct settings *s, uint64_t step);

/* Processes of the job: the pipeline ranks of all replicas. */
int settings_processes(const struct settings *s);
/* And those that wait to take the place of one that dies. */
int settings_started(const struct settings *s);
/* Which ranks survive: those of a pipeline, not replicas that mix. */
bool settings_survives_as_pipeline(const struct settings *s);

#endif
