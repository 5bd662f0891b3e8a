/* SPDX-License-Identifier: Apache-2.0
 *
 * An optimizer whose state is in a file gives the bits of one whose state is in memory; after what goes
 * wrong with the file, too; through io_uring and by threads.
 */
#include "config.h"

#include "cmocka_all.h"

#include "base/clock.h"
#include "offload/disk_optimizer.h"
#include "scratch.h"

#include <dualpipe/checkpoint.h>

#include <fcntl.h>
#include <sys/resource.h>

enum { LISTS = 2, PARAMETERS = 4, LONGEST = 9000 };
static const int64_t lengths[PARAMETERS] = {9000, 1, 1024, 4097};

static char folder[SCRATCH_LEN];
static bool threads;

/* The same parameters twice. */
struct rig {
    float values[LISTS][PARAMETERS][LONGEST], grads[LISTS][PARAMETERS][LONGEST];
    int64_t shapes[PARAMETERS];
    DLTensor tensors[LISTS][PARAMETERS][2];
    struct dp_parameter list[LISTS][PARAMETERS];
    struct dp_optimizer *memory;
    struct dp_offload_optimizer *file;
};

static void fill_grads(struct rig *rig, int step)
{
    srand48(step);
    for (int p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < lengths[p]; i++)
            rig->grads[0][p][i] = rig->grads[1][p][i] = (float)(drand48() - 0.5);
}

static void list_parameters(struct rig *rig, DLDataType type)
{
    static const char *const names[PARAMETERS] = {"long", "one", "even", "odd"};

    for (int l = 0; l < LISTS; l++)
        for (int p = 0; p < PARAMETERS; p++) {
            DLTensor *t = rig->tensors[l][p];
            rig->shapes[p] = lengths[p];
            t[0] = (DLTensor){rig->values[l][p], {kDLCPU, 0}, 1, type, &rig->shapes[p], NULL, 0};
            t[1] = (DLTensor){rig->grads[l][p], {kDLCPU, 0}, 1, {kDLFloat, 32, 1},
                              &rig->shapes[p], NULL, 0};
            rig->list[l][p] = (struct dp_parameter){
                .name = names[p], .value = &t[0], .grad = &t[1],
                .flags = p == 1 ? DP_PARAMETER_NO_DECAY : 0};
        }
}

static struct rig *begin(enum dp_optimizer_kind kind, DLDataType type)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct dp_optimizer_config config = dp_optimizer_defaults(kind);
    const struct dp_offload_optimizer_config in_file = {
        .optimizer = config, .folder = folder, .chunk_bytes = 4096, .threads = threads};

    assert_non_null(rig);
    list_parameters(rig, type);
    for (int p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < lengths[p] && type.bits == 32; i++)
            rig->values[0][p][i] = rig->values[1][p][i] = (float)(i % 7) - 3;
    assert_int_equal(dp_optimizer_new(&config, rig->list[0], PARAMETERS, &rig->memory), 0);
    assert_int_equal(dp_offload_optimizer_new(&in_file, rig->list[1], PARAMETERS, &rig->file), 0);
    return rig;
}

static void end(struct rig *rig)
{
    dp_optimizer_free(rig->memory);
    dp_offload_optimizer_free(rig->file);
    free(rig);
}

static const struct dp_optimizer_step some = {.rate = 0.01, .scale = 0.5, .zero_grads = true};

static void expect_equal(struct rig *rig)
{
    assert_memory_equal(rig->values[0], rig->values[1], sizeof(rig->values[0]));
    assert_memory_equal(rig->grads[0], rig->grads[1], sizeof(rig->grads[0]));
}

static void step_both(struct rig *rig, int step)
{
    fill_grads(rig, step);
    assert_int_equal(dp_optimizer_step(rig->memory, &some), 0);
    assert_int_equal(dp_offload_optimizer_step(rig->file, &some), 0);
    expect_equal(rig);
}

static void expect_equal_state(struct rig *rig)
{
    const struct dp_named_tensor *a = dp_optimizer_state(rig->memory), *b;

    assert_int_equal(dp_offload_optimizer_state(rig->file, &b), 0);
    assert_int_equal(dp_offload_optimizer_state_count(rig->file),
                     dp_optimizer_state_count(rig->memory));
    for (int32_t i = 0; i < dp_optimizer_state_count(rig->memory); i++) {
        assert_string_equal(a[i].name, b[i].name);
        size_t count = a[i].tensor.ndim ? (size_t)a[i].tensor.shape[0] : 1;
        assert_memory_equal(a[i].tensor.data, b[i].tensor.data,
                            count * a[i].tensor.dtype.bits / 8);
    }
}

CASE(every_kind_gives_the_bits_of_memory)
{
    static const DLDataType types[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}};
    static const enum dp_optimizer_kind kinds[] = {DP_OPTIMIZER_ADAM, DP_OPTIMIZER_ADAMW,
                                                   DP_OPTIMIZER_ACCUM_ADAMW};

    for (size_t k = 0; k < 3; k++)
        for (int type = 0; type < 2; type++) {
            struct rig *rig = begin(kinds[k], types[type]);
            expect_equal_state(rig);
            for (int step = 0; step < 6; step++)
                step_both(rig, step);
            expect_equal_state(rig);
            step_both(rig, 6);
            end(rig);
        }
}

/* What a checkpoint has, into one that is new. */
CASE(state_that_is_read_back_goes_on)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});
    const struct dp_named_tensor *to, *from = dp_optimizer_state(rig->memory);
    const struct dp_offload_optimizer_config again = {
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW), .folder = folder,
        .threads = threads};

    for (int step = 0; step < 3; step++)
        step_both(rig, step);
    dp_offload_optimizer_free(rig->file);
    assert_int_equal(dp_offload_optimizer_new(&again, rig->list[1], PARAMETERS, &rig->file), 0);
    assert_int_equal(dp_offload_optimizer_state(rig->file, &to), 0);
    for (int32_t i = 0; i < dp_optimizer_state_count(rig->memory); i++) {
        size_t count = from[i].tensor.ndim ? (size_t)from[i].tensor.shape[0] : 1;
        memcpy(to[i].tensor.data, from[i].tensor.data, count * from[i].tensor.dtype.bits / 8);
    }
    step_both(rig, 3);
    expect_equal_state(rig);
    end(rig);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Writes behind a place fail; so some parts are done and others not. */
CASE(a_write_that_fails_loses_nothing)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});
    const struct dp_named_tensor *tensors;

    signal(SIGXFSZ, SIG_IGN);
    for (int step = 0; step < 4; step++) {
        fill_grads(rig, step);
        assert_int_equal(dp_optimizer_step(rig->memory, &some), 0);
        limit_files(16384 + 40960 * (rlim_t)step);
        int err = dp_offload_optimizer_step(rig->file, &some);
        limit_files(RLIM_INFINITY);
        expect_error(err, DP_EIO, "File too large");
        assert_non_null(strstr(dp_last_error(), "can be repeated"));
        assert_int_equal(dp_offload_optimizer_state(rig->file, &tensors), DP_ESTATE);
        assert_int_equal(dp_offload_optimizer_step(rig->file, &some), 0);
        expect_equal(rig);
    }
    expect_equal_state(rig);
    end(rig);
}

CASE(a_file_that_ends_early_is_noticed)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});
    int file = dpo_disk_file(rig->file);
    off_t len = lseek(file, 0, SEEK_END);

    step_both(rig, 0);
    fill_grads(rig, 1);
    assert_int_equal(dp_optimizer_step(rig->memory, &some), 0);
    char *copy = malloc((size_t)len), *block = aligned_alloc(4096, 4096);
    for (off_t at = 0; at < len; at += 4096) {
        assert_int_equal(pread(file, block, 4096, at), 4096);
        memcpy(copy + at, block, 4096);
    }
    assert_int_equal(ftruncate(file, 0), 0);
    expect_error(dp_offload_optimizer_step(rig->file, &some), DP_EIO, "ends early");
    for (off_t at = 0; at < len; at += 4096) {
        memcpy(block, copy + at, 4096);
        assert_int_equal(pwrite(file, block, 4096, at), 4096);
    }
    assert_int_equal(dp_offload_optimizer_step(rig->file, &some), 0);
    expect_equal(rig);
    free(copy);
    free(block);
    end(rig);
}

/* A step with another file under the same descriptor fails; with its own one it is repeated. */
static void fail_once(struct rig *rig, int step, const char *path, int flags, const char *sentence)
{
    int file = dpo_disk_file(rig->file), own = dup(file), other = open(path, flags);

    assert_true(own >= 0 && other >= 0);
    fill_grads(rig, step);
    assert_int_equal(dp_optimizer_step(rig->memory, &some), 0);
    assert_int_equal(dup2(other, file), file);
    assert_int_equal(dp_offload_optimizer_step(rig->file, &some), DP_EIO);
    assert_non_null(strstr(dp_last_error(), sentence));
    assert_non_null(strstr(dp_last_error(), "can be repeated"));
    assert_int_equal(dup2(own, file), file);
    assert_int_equal(dp_offload_optimizer_step(rig->file, &some), 0);
    expect_equal(rig);
    close(own);
    close(other);
}

CASE(a_full_disk_and_a_disk_that_fails_lose_nothing)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});

    step_both(rig, 0);
    fail_once(rig, 1, "/dev/full", O_RDWR, "a write of 'long' failed: No space left on device");
    fail_once(rig, 2, "/dev/null", O_WRONLY, "a read of 'long' failed: Bad file descriptor");
    fail_once(rig, 3, "/dev/zero", O_RDONLY, "a write of 'long' failed: Bad file descriptor");
    expect_equal_state(rig);
    end(rig);
}

CASE(io_uring_is_used_where_it_is_there)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});
    bool uring = dpo_disk_is_uring(rig->file);

    end(rig);
    if (threads)
        assert_false(uring);
#ifdef HAVE_LIBURING
    else if (!uring)
        skip_because("the system refuses io_uring");
#else
    else
        skip_because("built without liburing");
#endif
}

/* ---- kill -9 --------------------------------------------------------------------------------- */

static char saved[SCRATCH_LEN + 16];

static void save(struct rig *rig, int step)
{
    struct dp_named_tensor list[64];
    const struct dp_named_tensor *tensors;
    int32_t count = dp_offload_optimizer_state_count(rig->file);
    char json[32];

    if (dp_offload_optimizer_state(rig->file, &tensors))
        _exit(1);
    memcpy(list, tensors, (size_t)count * sizeof(*list));
    for (int p = 0; p < PARAMETERS; p++)
        list[count++] =
            (struct dp_named_tensor){rig->list[1][p].name, *rig->list[1][p].value};
    snprintf(json, sizeof(json), "{\"step\":%d}", step);
    if (dp_checkpoint_write(saved, list, count, json))
        _exit(1);
}

/* Until it is killed. */
static void train(int told)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});

    for (int step = 0;; step++) {
        fill_grads(rig, step);
        if (dp_offload_optimizer_step(rig->file, &some))
            _exit(1);
        save(rig, step);
        if (write(told, "", 1) != 1)
            _exit(1);
    }
}

/* The checkpoint is what memory has after as many steps. */
static void expect_checkpoint(void)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});
    const struct dp_named_tensor *to;
    struct dp_checkpoint *c;
    int last = -1;

    assert_int_equal(dp_checkpoint_open(saved, &c), 0);
    assert_int_equal(sscanf(dp_checkpoint_json(c), "{\"step\":%d", &last), 1);
    for (int step = 0; step <= last; step++) {
        fill_grads(rig, step);
        assert_int_equal(dp_optimizer_step(rig->memory, &some), 0);
    }
    assert_int_equal(dp_offload_optimizer_state(rig->file, &to), 0);
    for (int32_t i = 0; i < dp_offload_optimizer_state_count(rig->file); i++)
        assert_int_equal(dp_checkpoint_read(c, to[i].name, &to[i].tensor), 0);
    for (int p = 0; p < PARAMETERS; p++)
        assert_int_equal(
            dp_checkpoint_read(c, rig->list[1][p].name, rig->list[1][p].value), 0);
    assert_memory_equal(rig->values[0], rig->values[1], sizeof(rig->values[0]));
    expect_equal_state(rig);
    step_both(rig, last + 1); /* and goes on */
    dp_checkpoint_close(c);
    end(rig);
}

CASE(kill_at_any_moment_leaves_the_last_checkpoint_good)
{
    char byte;
    int status;

    snprintf(saved, sizeof(saved), "%s/saved", folder);
    for (int round = 0; round < 6; round++) {
        int told[2];
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        if (!child) {
            close(told[0]);
            train(told[1]);
        }
        close(told[1]);
        for (int i = 0; i <= round; i++)
            assert_int_equal(read(told[0], &byte, 1), 1);
        for (int64_t end_ns = dp_now_ns() + round * 400 * DP_NS_PER_US; dp_now_ns() < end_ns;)
            ;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        close(told[0]);
        expect_checkpoint();
    }
    unlink(saved);
}

CASE(what_cannot_be_is_refused)
{
    struct rig *rig = begin(DP_OPTIMIZER_ADAMW, (DLDataType){kDLFloat, 32, 1});
    struct dp_offload_optimizer_config config = {
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW), .folder = "/no/such/folder"};
    struct dp_offload_optimizer *o;
    struct dp_optimizer_step step = some;

    assert_int_equal(dp_offload_optimizer_new(&config, rig->list[1], PARAMETERS, &o), DP_EIO);
    assert_non_null(strstr(dp_last_error(), "/no/such/folder"));
    config.folder = NULL;
    assert_int_equal(dp_offload_optimizer_new(&config, rig->list[1], PARAMETERS, &o), DP_EINVAL);
    config.folder = folder;
    signal(SIGXFSZ, SIG_IGN);
    limit_files(8192);
    int err = dp_offload_optimizer_new(&config, rig->list[1], PARAMETERS, &o);
    limit_files(RLIM_INFINITY);
    expect_error(err, DP_EIO, "no room for");
    step.skip = true;
    assert_int_equal(dp_offload_optimizer_step(rig->file, &step), DP_EUNSUPPORTED);
    step = (struct dp_optimizer_step){.rate = -1, .scale = 1};
    assert_int_equal(dp_offload_optimizer_step(rig->file, &step), DP_EINVAL);
    end(rig);
}

static int make_folder(void **state)
{
    return scratch_directory(folder, "optimizer") ? 0 : -1;
}

/* No file is left in it. */
static int remove_folder(void **state)
{
    return rmdir(folder);
}

int main(void)
{
    int failed = run_cases(make_folder, remove_folder);

    threads = true;
    print_message("The same by threads, without io_uring:\n");
    return failed + run_cases(make_folder, remove_folder);
}
