/* SPDX-License-Identifier: Apache-2.0 */
#include "train/data.h"

#include "command.h"
#include "digest.h"
#include "files.h"
#include "train/gpt_layers.h"

#include <dualpipe/random.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CHUNKS = 10, HELD_OUT_SHARE = 10 };

/* Random numbers for windows are keyed by a place that no layer has. */
enum { WHERE_WINDOWS = 0xFFFF };

/* Held-out batches are drawn as if in steps that no training reaches. */
static const uint64_t held_out_step = UINT32_MAX - 1;

/* ---- reading ------------------------------------------------------------------------------- */

/* "-" is standard input. */
static bool add_file(const char *path, struct data *d)
{
    struct stat st;
    size_t len = 0;

    if (refuse_if(strcmp(path, "-") && !stat(path, &st) && S_ISCHR(st.st_mode),
                  "--data %s: a device, which may have no end; expected a file to read", path))
        return false;
    char *text = input_bytes(path, SIZE_MAX / 4, &len);
    uint8_t *all = text ? realloc(d->bytes, d->len + len + 1) : NULL;
    if (!refuse_if(!all, "--data %s: %s; expected a file to read", path, strerror(errno))) {
        memcpy(all + d->len, text, len);
        d->bytes = all;
        d->len += len;
    }
    free(text);
    return all;
}

/* ---- cutting ------------------------------------------------------------------------------- */

static bool cut(struct data *d)
{
    if (refuse_if(d->len < 2 * d->window, "--data: %zu bytes in all, expected at least %zu (context + 1 "
                  "to learn from and as many held out)", d->len, 2 * d->window))
        return false;
    d->chunks = d->len / (2 * HELD_OUT_SHARE * d->window);
    if (d->chunks < 1)
        d->chunks = 1;
    if (d->chunks > MAX_CHUNKS)
        d->chunks = MAX_CHUNKS;
    d->chunk_len = d->len / d->chunks;
    d->held_len = d->chunk_len / HELD_OUT_SHARE;
    if (d->held_len < d->window)
        d->held_len = d->window;
    return true;
}

bool data_open(const char *const *paths, size_t count, int context, uint64_t seed, struct data *data)
{
    struct data d = {.window = (size_t)context + 1, .seed = seed};
    bool good = true;

    for (size_t i = 0; good && i < count; i++)
        good = add_file(paths[i], &d);
    if (!good || !cut(&d)) {
        data_close(&d);
        return false;
    }
    d.digest = digest_bytes(DIGEST_BEGIN, d.bytes, d.len);
    *data = d;
    return true;
}

void data_close(struct data *data)
{
    free(data->bytes);
    *data = (struct data){0};
}

/* ---- drawing ------------------------------------------------------------------------------- */

static const uint8_t *draw_window(const struct data *d, enum data_part part, uint64_t step,
                                  uint32_t sequence)
{
    size_t train_len = d->chunk_len - d->held_len;
    size_t begin = part == DATA_TRAIN ? 0 : train_len;
    size_t places = (part == DATA_TRAIN ? train_len : d->held_len) - d->window + 1;
    uint32_t random[4];

    dp_random_block(dp_random_key(d->seed, step, WHERE_WINDOWS, sequence), 0, random);
    size_t chunk = random[0] % d->chunks;
    uint64_t place = ((uint64_t)random[1] << 32 | random[2]) % places;
    return d->bytes + chunk * d->chunk_len + begin + place;
}

void data_batch(const struct data *data, enum data_part part, uint64_t number, int sequences,
                struct batch *batch)
{
    size_t context = data->window - 1;
    uint64_t step = part == DATA_TRAIN ? number : held_out_step - number;

    for (int i = 0; i < sequences; i++) {
        const uint8_t *window = draw_window(data, part, step, (uint32_t)i);
        memcpy(batch->tokens + (size_t)i * context, window, context);
        memcpy(batch->labels + (size_t)i * context, window + 1, context);
    }
}

double data_entropy(const struct data *data)
{
    size_t counts[GPT_BYTES] = {0};
    double entropy = 0;

    for (size_t i = 0; i < data->len; i++)
        counts[data->bytes[i]]++;
    for (int b = 0; b < GPT_BYTES; b++)
        if (counts[b])
            entropy -= (double)counts[b] * log((double)counts[b] / (double)data->len);
    return entropy / (double)data->len;
}
