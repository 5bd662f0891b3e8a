/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_optimizer.c - an optimizer whose state is in a file. A step sweeps over it in parts, three of
 * which are in memory: one is read, one is computed, one is written.
 *
 *      part i       read ---- update into copies ---- write ---- take the copies
 *      part i+1              read ---- update ...
 *
 * The file has room for the state twice: a part is read from one place and written to the other, and
 * only when it is there does the parameter take its new value. So a failure loses nothing, and the step
 * can be repeated: parts that are done are left out.
 */
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE, mkostemp */
#include "base/internal.h"
#include "base/sized.h"
#include "offload/disk_optimizer.h"

#include "base/bind.h"
#include "base/fail.h"
#include "base/tensor.h"
#include "offload/file_io.h"
#include "optimizer/update.h"
#include <dualpipe/memory.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096, BUFFERS = DPO_IO_SLOTS, ARRAYS = DP_STATES + 1, DEFAULT_CHUNK = 1 << 20 };
_Static_assert((int)ARRAYS <= (int)DPO_IO_PIECES, "a part is read at once");
static const int64_t deadline_ns = INT64_C(600) * 1000000000;

struct member {
    const struct dp_parameter *p;
    struct dp_optimizer_group group;
    size_t count, real, value; /* elements; bytes of one in the state, in the parameter */
    int arrays;                /* states, and the master of a 16-bit value */
    size_t base, region;       /* in the file: [2][arrays] regions */
    int64_t step;
    uint8_t place; /* of its parts, between steps */
    bool fresh;    /* its state is still zero, and its master the value */
};

struct part {
    struct member *member;
    size_t first, count;
    bool done; /* in the step under way */
};

struct buffer {
    struct dp_offload_optimizer *o;
    struct part *part; /* NULL: idle */
    char *memory, *arrays[ARRAYS], *value;
    bool written; /* on its way down; otherwise up */
};

struct dp_offload_optimizer {
    struct dp_optimizer_config config;
    char *folder;
    int file;
    size_t bytes, chunk;
    char *map;
    bool exposed; /* the map may have been written */
    struct dpo_io *io;
    struct buffer buffers[BUFFERS];
    struct dp_parameter *list; /* the caller's, copied */
    struct member *members;
    int32_t member_count;
    struct part *parts;
    size_t part_count;
    bool partial; /* some parts have taken a step which others have not */
    struct dp_optimizer_step step;
    struct dp_named_tensor *state;
    char *names;
};

static size_t round_up(size_t n)
{
    return (n + BLOCK - 1) / BLOCK * BLOCK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static size_t offset_of(const struct member *m, int place, int array)
{
    return m->base + (size_t)(place * m->arrays + array) * m->region;
}

/* 0, or the errno with which the system refuses direct I/O. Some file systems that lie on others let it
 * be set and refuse the first read. */
static int set_direct(int file)
{
    if (fcntl(file, F_SETFL, O_DIRECT))
        return errno;
    void *block = aligned_alloc(BLOCK, BLOCK);
    int error = !block ? ENOMEM : pread(file, block, BLOCK, 0) < 0 ? errno : 0;
    free(block);
    if (error)
        fcntl(file, F_SETFL, 0);
    return error;
}

static int open_file(struct dp_offload_optimizer *o)
{
    char path[4096];

    o->file = open(o->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (o->file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        snprintf(path, sizeof(path), "%s/dualpipe-optimizer-XXXXXX", o->folder);
        o->file = mkostemp(path, O_CLOEXEC);
        if (o->file >= 0)
            unlink(path); /* nothing is left when the process ends, however it does */
    }
    if (o->file < 0)
        return dp_fail(DP_EIO, "optimizer state in %s: %s; expected a folder that can be written",
                       o->folder, strerror(errno));
    int error = posix_fallocate(o->file, 0, (off_t)o->bytes);
    if (error)
        return dp_fail(DP_EIO, "optimizer state in %s: no room for %zu bytes: %s", o->folder,
                       o->bytes, strerror(error));
    o->map = mmap(NULL, o->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, o->file, 0);
    if (o->map == MAP_FAILED) {
        o->map = NULL;
        return dp_fail(DP_EIO, "optimizer state in %s: cannot map its file: %s", o->folder,
                       strerror(errno));
    }
    error = set_direct(o->file);
    if (error)
        dp_log(DP_LOG_WARN, "optimizer state in %s: direct I/O is refused (%s); it goes through the "
               "page cache", o->folder, strerror(error));
    return 0;
}

/* ---- a part ---------------------------------------------------------------------------------- */

static int slot_of(const struct buffer *b)
{
    return (int)(b - b->o->buffers);
}

static int queue(struct buffer *b, bool write)
{
    const struct member *m = b->part->member;
    size_t bytes = round_up(b->part->count * m->real), first = b->part->first * m->real;
    struct dpo_io_piece pieces[ARRAYS];

    b->written = write;
    for (int i = 0; i < m->arrays; i++)
        pieces[i] = (struct dpo_io_piece){
            b->arrays[i], bytes, offset_of(m, write ? !m->place : m->place, i) + first};
    return dpo_io_begin(b->o->io, slot_of(b), write, pieces, m->arrays);
}

static int wait_for(struct buffer *b)
{
    const char *what = b->written ? "write" : "read";
    struct dpo_io_result result;
    int err = dpo_io_wait(b->o->io, slot_of(b), deadline_ns, &result);

    if (!err && (result.error || result.ended))
        err = dp_fail(DP_EIO, "optimizer state in %s: a %s of '%s' failed: %s; nothing is lost, the "
                      "step can be repeated", b->o->folder, what, b->part->member->p->name,
                      result.error ? strerror(result.error) : "the file ends early");
    return err;
}

/* The state that a member has before its first step. */
static void begin_state(struct buffer *b)
{
    const struct member *m = b->part->member;
    int states = dp_optimizer_states(&b->o->config);

    for (int i = 0; i < states; i++)
        memset(b->arrays[i], 0, b->part->count * m->real);
    if (m->arrays > states)
        dp_real_load(m->p->value->dtype, b->part->count, b->value, b->arrays[states], false);
}

static void compute(struct buffer *b)
{
    const struct dp_offload_optimizer *o = b->o;
    const struct part *part = b->part;
    const struct member *m = part->member;
    const int states = dp_optimizer_states(&o->config);
    const struct dp_numbers numbers = dp_numbers_of(&o->config, &m->group, &o->step, m->step);
    struct dp_optimizer_step step = o->step;
    struct dp_update_range r = {
        .count = part->count,
        .value_type = m->p->value->dtype,
        .grad_type = m->p->grad->dtype,
        .value = b->value,
        .grad = (char *)dp_tensor_address(m->p->grad) +
                part->first * dp_real_bytes(m->p->grad->dtype),
        .master = m->arrays > states ? (float *)b->arrays[states] : NULL,
    };

    memcpy(b->value, (char *)dp_tensor_address(m->p->value) + part->first * m->value,
           part->count * m->value);
    if (m->fresh)
        begin_state(b);
    for (int i = 0; i < states; i++)
        r.state[i] = b->arrays[i];
    step.zero_grads = false;
    dp_update_range(&o->config, &numbers, &step, &r);
}

/* Its state is in the file. */
static void take(struct buffer *b)
{
    const struct part *part = b->part;
    const struct member *m = part->member;
    size_t grad = dp_real_bytes(m->p->grad->dtype);

    memcpy((char *)dp_tensor_address(m->p->value) + part->first * m->value, b->value,
           part->count * m->value);
    if (b->o->step.zero_grads)
        memset((char *)dp_tensor_address(m->p->grad) + part->first * grad, 0, part->count * grad);
    b->part->done = true;
}

/* The buffer is idle after it. */
static int settle(struct buffer *b)
{
    int err = b->part ? wait_for(b) : 0;

    if (!err && b->part && b->written)
        take(b);
    b->part = NULL;
    return err;
}

static int begin_part(struct buffer *b, struct part *part)
{
    int err = settle(b);

    if (err || !part)
        return err;
    b->part = part;
    return queue(b, false);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static struct part *next_part(struct dp_offload_optimizer *o, size_t *at)
{
    while (*at < o->part_count && o->parts[*at].done)
        ++*at;
    return *at < o->part_count ? &o->parts[(*at)++] : NULL;
}

static int sweep(struct dp_offload_optimizer *o)
{
    size_t at = 0;
    struct part *next = next_part(o, &at);
    int err = begin_part(&o->buffers[0], next);

    for (size_t i = 0; next && !err; i++) {
        struct buffer *b = &o->buffers[i % BUFFERS];
        next = next_part(o, &at);
        err = begin_part(&o->buffers[(i + 1) % BUFFERS], next);
        if (!err) {
            err = wait_for(b);
            if (err)
                b->part = NULL; /* has been read in vain */
        }
        if (!err) {
            compute(b);
            err = queue(b, true);
        }
    }
    for (int i = 0; i < BUFFERS; i++) {
        int other = settle(&o->buffers[i]);
        err = err ? err : other;
    }
    return err;
}

static void begin_step(struct dp_offload_optimizer *o)
{
    for (int32_t i = 0; i < o->member_count && !o->partial; i++)
        o->members[i].step++;
    for (size_t i = 0; i < o->part_count && !o->partial; i++)
        o->parts[i].done = false;
    o->partial = true;
}

static void end_step(struct dp_offload_optimizer *o)
{
    for (int32_t i = 0; i < o->member_count; i++) {
        o->members[i].place = !o->members[i].place;
        o->members[i].fresh = false;
    }
    o->partial = false;
}

int dp_offload_optimizer_step_sized(struct dp_offload_optimizer *o,
                                    const struct dp_optimizer_step *step, size_t size)
{
    DP_TAKE(dp_optimizer_step, step, size);
    int err = dp_optimizer_step_check(step);

    if (err)
        return err;
    if (step->mix || step->skip || step->present)
        return dp_fail(DP_EUNSUPPORTED, "optimizer state in %s: neither mixes nor skips a step or a "
                       "parameter", o->folder);
    if (o->exposed && msync(o->map, o->bytes, MS_SYNC))
        return dp_fail(DP_EIO, "optimizer state in %s: %s", o->folder, strerror(errno));
    o->exposed = false;
    o->step = *step;
    begin_step(o);
    err = sweep(o);
    if (!err)
        end_step(o);
    return err;
}

/* ---- state ----------------------------------------------------------------------------------- */

static void set_tensor(struct dp_named_tensor *t, const DLTensor *like, void *data, DLDataType type)
{
    if (like)
        t->tensor = *like;
    else
        t->tensor = (DLTensor){.ndim = 0};
    t->tensor.data = data;
    t->tensor.byte_offset = 0;
    t->tensor.dtype = type;
    t->tensor.device = (DLDevice){kDLCPU, 0};
}

/* Where there was no step yet the file is empty. */
static void expose(struct dp_offload_optimizer *o, struct member *m, struct dp_named_tensor **at)
{
    const DLDataType whole = {kDLInt, 64, 1}, single = {kDLFloat, 32, 1};
    const int states = dp_optimizer_states(&o->config);

    set_tensor((*at)++, NULL, &m->step, whole);
    for (int i = 0; i < m->arrays; i++) {
        char *data = o->map + offset_of(m, m->place, i);
        if (m->fresh && i < states)
            memset(data, 0, m->count * m->real);
        else if (m->fresh)
            dp_real_load(m->p->value->dtype, m->count, dp_tensor_address(m->p->value), data, false);
        set_tensor((*at)++, m->p->value, data, m->real == 8 ? m->p->value->dtype : single);
    }
    m->fresh = false;
}

int32_t dp_offload_optimizer_state_count(const struct dp_offload_optimizer *o)
{
    int32_t count = 0;

    for (int32_t i = 0; i < o->member_count; i++)
        count += 1 + o->members[i].arrays;
    return count;
}

int dp_offload_optimizer_state(struct dp_offload_optimizer *o, const struct dp_named_tensor **out)
{
    struct dp_named_tensor *at = o->state;

    if (o->partial)
        return dp_fail(DP_ESTATE, "optimizer state in %s: a step has failed; expected it to be "
                       "repeated first", o->folder);
    o->exposed = true;
    for (int32_t i = 0; i < o->member_count; i++)
        expose(o, &o->members[i], &at);
    *out = o->state;
    return 0;
}

static int name_state(struct dp_offload_optimizer *o)
{
    int32_t count = dp_offload_optimizer_state_count(o);
    size_t bytes = 1;

    for (int32_t i = 0; i < o->member_count; i++)
        bytes += (strlen(o->members[i].p->name) + sizeof("/accumulated")) * (ARRAYS + 1);
    o->state = calloc((size_t)count + 1, sizeof(*o->state));
    o->names = malloc(bytes);
    if (!o->state || !o->names)
        return dp_fail(DP_ENOMEM, "no memory for the names of %d tensors", count);
    struct dp_named_tensor *t = o->state;
    char *name = o->names;
    for (int32_t i = 0; i < o->member_count; i++)
        for (int k = -1; k < o->members[i].arrays; k++) {
            (t++)->name = name;
            name += 1 + sprintf(name, "%s/%s", o->members[i].p->name,
                                k < 0 ? "step" : dp_optimizer_state_name(&o->config, k));
        }
    return 0;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static int add_member(struct dp_offload_optimizer *o, const struct dp_parameter *p, int32_t index)
{
    struct member *m = &o->members[o->member_count];

    if (p->flags & DP_PARAMETER_FROZEN)
        return 0;
    if (!dp_tensor_on_host(p->value) || !dp_tensor_on_host(p->grad))
        return dp_fail(DP_EUNSUPPORTED, "parameter '%s' is not in host memory", p->name);
    *m = (struct member){
        .p = p,
        .group = dp_optimizer_group_at(&o->config, dp_optimizer_group_of(&o->config, p, index)),
        .count = (size_t)dp_parameter_elements(p),
        .real = p->value->dtype.bits == 64 ? 8 : 4,
        .value = dp_real_bytes(p->value->dtype),
        .arrays = dp_optimizer_states(&o->config) + (p->value->dtype.bits == 16),
        .base = o->bytes,
        .fresh = true,
    };
    m->region = round_up(m->count * m->real);
    o->bytes += 2 * (size_t)m->arrays * m->region;
    o->part_count += (m->count * m->real + o->chunk - 1) / o->chunk;
    o->member_count++;
    return 0;
}

static int make_parts(struct dp_offload_optimizer *o)
{
    struct part *part = o->parts = calloc(o->part_count + 1, sizeof(*o->parts));

    if (!part)
        return dp_fail(DP_ENOMEM, "no memory for %zu parts", o->part_count);
    for (int32_t i = 0; i < o->member_count; i++) {
        struct member *m = &o->members[i];
        const size_t most = o->chunk / m->real;
        for (size_t first = 0; first < m->count; first += most)
            *part++ = (struct part){m, first, m->count - first < most ? m->count - first : most,
                                    false};
    }
    return 0;
}

/* Where the parameters are, to which the update copies from here. */
static int node_of_values(const struct dp_offload_optimizer *o)
{
    const struct member *m = &o->members[0];

    return dp_memory_numa_node(dp_tensor_address(m->p->value), m->count * m->value);
}

/* Beside the parameters, if the system lets memory be placed. */
static int make_buffer(struct dp_offload_optimizer *o, struct buffer *b, int node)
{
    b->o = o;
    b->memory = aligned_alloc(BLOCK, (ARRAYS + 1) * o->chunk);
    if (!b->memory)
        return dp_fail(DP_ENOMEM, "no memory for parts of %zu bytes", o->chunk);
    if (node >= 0)
        (void)dp_prefer_memory_at(b->memory, (ARRAYS + 1) * o->chunk, node);
    memset(b->memory, 0, (ARRAYS + 1) * o->chunk); /* what is written behind a part's end is known */
    for (int i = 0; i < ARRAYS; i++)
        b->arrays[i] = b->memory + (size_t)i * o->chunk;
    b->value = b->memory + ARRAYS * o->chunk;
    return 0;
}

static int build(struct dp_offload_optimizer *o, const struct dp_offload_optimizer_config *config,
                 const struct dp_parameter *parameters, int32_t count)
{
    int err = 0;

    o->folder = strdup(config->folder);
    o->members = calloc((size_t)count + 1, sizeof(*o->members));
    o->list = calloc((size_t)count + 1, sizeof(*o->list));
    if (!o->folder || !o->members || !o->list)
        return dp_fail(DP_ENOMEM, "no memory for an optimizer of %d parameters", count);
    memcpy(o->list, parameters, (size_t)count * sizeof(*o->list));
    for (int32_t i = 0; i < count && !err; i++)
        err = add_member(o, &o->list[i], i);
    if (!err && !o->bytes)
        return dp_fail(DP_EINVAL, "optimizer state in %s: there is none", o->folder);
    if (!err)
        err = make_parts(o);
    if (!err)
        err = name_state(o);
    if (!err)
        err = open_file(o);
    const int node = err ? -1 : node_of_values(o);
    for (int i = 0; i < BUFFERS && !err; i++)
        err = make_buffer(o, &o->buffers[i], node);
    if (!err)
        err = dpo_io_new(o->file, config->threads, dpo_disk_node(o), "optimizer state in a file",
                         &o->io);
    return err;
}

int dp_offload_optimizer_new_sized(const struct dp_offload_optimizer_config *config,
                                   const struct dp_parameter *parameters, int32_t count,
                                   struct dp_offload_optimizer **out, size_t size)
{
    DP_TAKE(dp_offload_optimizer_config, config, size);
    int err = dp_parameters_check(parameters, count);

    if (!err)
        err = dp_optimizer_config_check(&config->optimizer, parameters, count);
    if (!err && !config->folder)
        err = dp_fail(DP_EINVAL, "optimizer state in a file: expected a folder");
    if (err)
        return err;
    struct dp_offload_optimizer *o = calloc(1, sizeof(*o));
    if (!o)
        return dp_fail(DP_ENOMEM, "no memory for an optimizer");
    o->file = -1;
    o->config = config->optimizer;
    o->chunk = round_up(config->chunk_bytes ? config->chunk_bytes : DEFAULT_CHUNK);
    err = build(o, config, parameters, count);
    o->config.groups = NULL; /* the caller's, and copied by now */
    o->config.group_of = NULL;
    if (err)
        dp_offload_optimizer_free(o);
    else
        *out = o;
    return err;
}

void dp_offload_optimizer_free(struct dp_offload_optimizer *o)
{
    if (!o)
        return;
    dpo_io_free(o->io);
    for (int i = 0; i < BUFFERS; i++)
        free(o->buffers[i].memory);
    if (o->map)
        munmap(o->map, o->bytes);
    if (o->file >= 0)
        close(o->file);
    free(o->folder);
    free(o->list);
    free(o->members);
    free(o->parts);
    free(o->state);
    free(o->names);
    free(o);
}

bool dpo_disk_is_uring(const struct dp_offload_optimizer *o)
{
    return dpo_io_is_uring(o->io);
}

struct dp_device *dpo_disk_device(const struct dp_offload_optimizer *o)
{
    return dpo_io_device(o->io);
}

int dpo_disk_node(const struct dp_offload_optimizer *o)
{
    return dp_memory_numa_node(o->buffers[0].memory, (ARRAYS + 1) * o->chunk);
}

int dpo_disk_file(const struct dp_offload_optimizer *o)
{
    return o->file;
}
