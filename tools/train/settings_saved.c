/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_saved.c - the options about saved state: where it goes, and which options of a run hold
 * for the run that goes on from it.
 */
#include "train/settings.h"

#include "command.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- writing ------------------------------------------------------------------------------- */

/* The folder, or the one that it will be made in. */
static bool check_folder(const struct settings *s)
{
    char parent[4096];
    struct stat there;

    if (s->save_every && !s->save) {
        command_misused("--save-every %d: expected --save, the folder for checkpoints",
                        (int)s->save_every);
        return false;
    }
    if (!s->save)
        return true;
    const bool exists = !stat(s->save, &there);
    snprintf(parent, sizeof(parent), "%s", s->save);
    if (exists && !S_ISDIR(there.st_mode))
        errno = ENOTDIR;
    else if (!access(exists ? s->save : dirname(parent), W_OK | X_OK))
        return true;
    command_misused("--save %s: %s; expected a folder that can be written", s->save,
                    strerror(errno));
    return false;
}

/* What is in flight between replicas that mix belongs to their layout. */
static bool check_mixing(const struct settings *s)
{
    if (s->kind != DATA_PARALLEL_MIX || (!s->save && !s->resume))
        return true;
    command_misused("%s with --mix %s: expected --mix all-reduce or reduce-scatter; replicas that "
                    "mix their weights are not one model that could be saved",
                    s->save ? "--save" : "--resume", s->mix);
    return false;
}

/* Running statistics are no parameters, and not in a checkpoint yet. */
static bool check_kind(const struct settings *s)
{
    if (!strcmp(s->model_name, "gpt") || (!s->save && !s->resume))
        return true;
    command_misused("%s with --model %s: expected --model gpt; the running statistics of batch "
                    "normalisation are not saved", s->save ? "--save" : "--resume", s->model_name);
    return false;
}

bool settings_check_save(const struct settings *s)
{
    return check_folder(s) && check_mixing(s) && check_kind(s);
}

/* What the numbers of a run depend on; the first few also say which tensors there are. */
enum { SHAPES = 4 };
static const char *const kept[] = {
    "layers", "width",  "heads", "context", "batch",   "microbatches", "steps",        "seed",
    "lr",     "warmup", "decay", "clip",    "dropout", "any-order",    "order-blocks", NULL,
};

char *settings_text(const struct settings *s, uint64_t step)
{
    return resume_text(settings_usage.groups, kept, s, step);
}

bool settings_save_due(const struct settings *s, uint64_t step)
{
    return s->save &&
           (step == (uint64_t)s->steps || (s->save_every && step % (uint64_t)s->save_every == 0));
}

/* ---- going on ------------------------------------------------------------------------------ */

static bool same_model(const struct settings *s, const struct settings *was)
{
    const int64_t now[SHAPES] = {s->layers, s->width, s->heads, s->context};
    const int64_t then[SHAPES] = {was->layers, was->width, was->heads, was->context};

    for (int i = 0; i < SHAPES; i++)
        if (now[i] != then[i]) {
            command_misused("--%s %d: expected %d, as the model in %s has it", kept[i], (int)now[i],
                            (int)then[i], s->from.path);
            return false;
        }
    return true;
}

/* The words of the checkpoint come first, so that the command line's replace them. */
static bool parse_again(struct settings *s, int argc, char **argv, struct operands *files,
                        int *status)
{
    struct settings was = {0};
    struct resume *from = malloc(sizeof(*from));
    const int more = s->from.word_count;
    char **words = calloc((size_t)argc + (size_t)more + 1, sizeof(*words));
    bool good = from && words;

    if (good) {
        *from = s->from;
        words[0] = argv[0];
        for (int i = 0; i < more; i++)
            words[1 + i] = from->words[i];
        good = args_parse(&settings_usage, 1 + more, words, &was, files, status);
        memcpy(words + 1 + more, argv + 1, (size_t)(argc - 1) * sizeof(*words));
        *s = (struct settings){0};
        good = good && args_parse(&settings_usage, argc + more, words, s, files, status);
        s->from = *from;
        /* The operands are at the end of words, which ends here. */
        memcpy(argv + argc - files->count, files->items, (size_t)files->count * sizeof(*argv));
        files->items = argv + argc - files->count;
        *status = good ? EXIT_USAGE : *status;
        good = good && same_model(s, &was);
    } else {
        *status = command_broke("--resume: out of memory");
    }
    free(words);
    free(from);
    return good;
}

bool settings_resume(struct settings *s, int argc, char **argv, struct operands *files, int *status)
{
    if (!s->resume)
        return true;
    *status = resume_read(s->resume, &s->from);
    if (*status || !parse_again(s, argc, argv, files, status))
        return false;
    if ((uint64_t)s->steps > s->from.step)
        return true;
    *status = command_misused("--steps %d: expected more than the %d that are done in %s",
                              (int)s->steps, (int)s->from.step, s->from.path);
    return false;
}
