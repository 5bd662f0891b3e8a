/* SPDX-License-Identifier: Apache-2.0
 *
 * Saved state: what is written is read back, whole and in slices, and whatever is wrong is noticed.
 */
#include "cmocka_all.h"
#include "unit/base/failing_memory.h"
#include "scratch.h"

#include "checkpoint/crc32c.h"

#include <dualpipe/checkpoint.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/random.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1}, uint8 = {kDLUInt, 8, 1};
static char dir[SCRATCH_LEN];

static const char *in_dir(const char *name)
{
    static char paths[4][SCRATCH_LEN + 64];
    static int turn;
    char *path = paths[turn++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* Files whose names begin so. */
static int count_named(const char *name)
{
    DIR *d = opendir(dir);
    int count = 0;

    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        count += !strncmp(e->d_name, name, strlen(name));
    closedir(d);
    return count;
}

static DLTensor tensor(void *data, DLDataType dtype, int ndim, int64_t *shape)
{
    return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype,
                      .shape = shape};
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s: %s", #call, dp_last_error());                                            \
    } while (0)

static void assert_says(const char *sentence)
{
    if (!strstr(dp_last_error(), sentence))
        fail_msg("says\n    %s\ninstead of\n    %s", dp_last_error(), sentence);
}

static void write_bytes(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static size_t read_bytes(const char *path, void *data, size_t room)
{
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    size_t len = fread(data, 1, room, f);
    fclose(f);
    return len;
}

/* ---- checksums -------------------------------------------------------------------------------- */

static int verify_all(const struct dp_checkpoint *c)
{
    int err = 0;

    for (int32_t i = 0; i < dp_checkpoint_count(c) && !err; i++)
        err = dp_checkpoint_read(c, dp_checkpoint_at(c, i)->name, NULL);
    return err;
}

static int read_all(const struct dp_checkpoint *c, const struct dp_named_tensor *tensors, int32_t count)
{
    int err = 0;

    for (int32_t i = 0; i < count && !err; i++)
        err = dp_checkpoint_read(c, tensors[i].name, &tensors[i].tensor);
    return err;
}

CASE(the_checksum_is_crc_32c)
{
    static uint8_t data[5000];

    assert_int_equal(dp_crc32c(0, "123456789", 9), 0xe3069283u); /* RFC 3720's check value */
    assert_int_equal(dp_crc32c(0, data, 32), 0x8a9136aau);       /* and its 32 zeros */
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * i >> 3);
    for (size_t len = 0; len < sizeof(data); len += 1 + len / 3) {
        uint32_t whole = dp_crc32c(0, data, len);
        assert_int_equal(dp_crc32c_table(0, data, len), whole);
        assert_int_equal(dp_crc32c(dp_crc32c(0, data, len / 3), data + len / 3, len - len / 3), whole);
    }
}

/* ---- there and back --------------------------------------------------------------------------- */

CASE(every_type_and_shape_is_read_back)
{
    static const DLDataType types[] = {
        {kDLFloat, 64, 1}, {kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLInt, 64, 1},
        {kDLInt, 32, 1},   {kDLInt, 16, 1},   {kDLInt, 8, 1},    {kDLUInt, 64, 1},   {kDLUInt, 32, 1},
        {kDLUInt, 16, 1},  {kDLUInt, 8, 1},   {6, 8, 1},         {10, 8, 1},         {12, 8, 1},
        {kDLComplex, 64, 1}};
    enum { TYPES = sizeof(types) / sizeof(types[0]) };
    int64_t shape[] = {3, 5, 0, 2};
    static char data[TYPES][8 * 15], back[8 * 15];
    struct dp_named_tensor list[TYPES + 2];
    char names[TYPES][16];
    struct dp_checkpoint *c;

    for (int i = 0; i < TYPES; i++) {
        for (size_t k = 0; k < sizeof(back); k++)
            data[i][k] = (char)(k * 7 + (size_t)i);
        snprintf(names[i], sizeof(names[i]), "t%d", i);
        list[i] = (struct dp_named_tensor){names[i], tensor(data[i], types[i], 2, shape)};
    }
    list[TYPES] = (struct dp_named_tensor){"scalar", tensor(data[0], float32, 0, NULL)};
    list[TYPES + 1] = (struct dp_named_tensor){"empty", tensor(NULL, float32, 4, shape)};
    MUST(dp_checkpoint_write(in_dir("types"), list, TYPES + 2, "{\"step\": 7}"));
    MUST(dp_checkpoint_open(in_dir("types"), &c));
    assert_int_equal(dp_checkpoint_count(c), TYPES + 2);
    assert_string_equal(dp_checkpoint_json(c), "{\"step\": 7}");
    assert_string_equal(dp_checkpoint_at(c, 0)->name, "empty");
    MUST(verify_all(c));
    for (int i = 0; i < TYPES + 2; i++) {
        DLTensor out = list[i].tensor;
        const struct dp_checkpoint_tensor *t = dp_checkpoint_find(c, list[i].name);
        out.data = back;
        assert_non_null(t);
        assert_true(t->has_checksum);
        MUST(dp_checkpoint_read(c, list[i].name, &out));
        assert_memory_equal(back, list[i].tensor.data ? list[i].tensor.data : back, (size_t)t->bytes);
    }
    MUST(read_all(c, list, TYPES + 2));
    dp_checkpoint_close(c);
}

CASE(strides_are_of_memory_and_not_of_the_file)
{
    enum { N = 2, H = 3, W = 4, C = 5 };
    int64_t shape[] = {N, C, H, W}, last[] = {H * W * C, 1, W * C, C};
    static int64_t channels_last[N * H * W * C], packed[N * H * W * C], back[N * H * W * C];
    struct dp_named_tensor t = {"x", tensor(channels_last, int64, 4, shape)};
    struct dp_checkpoint *c;

    for (int64_t i = 0; i < N * H * W * C; i++)
        channels_last[i] = i;
    t.tensor.strides = last;
    MUST(dp_checkpoint_write(in_dir("strides"), &t, 1, NULL));
    MUST(dp_checkpoint_open(in_dir("strides"), &c));
    assert_string_equal(dp_checkpoint_json(c), "{}");
    const DLTensor rows = tensor(packed, int64, 4, shape);
    MUST(dp_checkpoint_read(c, "x", &rows));
    for (int n = 0; n < N; n++)
        for (int k = 0; k < C; k++)
            for (int i = 0; i < H * W; i++)
                assert_int_equal(packed[(n * C + k) * H * W + i], (n * H * W + i) * C + k);
    t.tensor.data = back;
    MUST(dp_checkpoint_read(c, "x", &t.tensor));
    assert_memory_equal(back, channels_last, sizeof(back));
    dp_checkpoint_close(c);
}

CASE(tensors_larger_than_a_piece_are_read_as_written)
{
    int64_t shape[] = {700, 1009}, across[] = {1, 700};
    const size_t count = 700 * 1009;
    float *data = malloc(count * sizeof(float)), *back = malloc(count * sizeof(float));
    struct dp_checkpoint *c;

    assert_true(data && back);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)i;
    struct dp_named_tensor list[] = {{"plain", tensor(data, float32, 2, shape)},
                                     {"across", tensor(data, float32, 2, shape)}};
    list[1].tensor.strides = across;
    MUST(dp_checkpoint_write(in_dir("large"), list, 2, NULL));
    MUST(dp_checkpoint_open(in_dir("large"), &c));
    for (int i = 0; i < 2; i++) {
        DLTensor out = list[i].tensor;
        out.data = back;
        memset(back, 0, count * sizeof(float));
        MUST(dp_checkpoint_read(c, list[i].name, &out));
        assert_memory_equal(back, data, count * sizeof(float));
    }
    dp_checkpoint_close(c);
    free(data);
    free(back);
}

CASE(an_optimizer_goes_on_from_its_checkpoint)
{
    int64_t shape[] = {600};
    float values[2][600], grads[2][600];
    const struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ACCUM_ADAMW);
    const struct dp_optimizer_step step = {.rate = 0.1, .scale = 1};
    struct dp_optimizer *o[2];
    struct dp_checkpoint *c;
    DLTensor value[2], grad[2];

    memset(values, 0, sizeof(values));
    for (int i = 0; i < 600; i++)
        grads[0][i] = grads[1][i] = (float)(i - 300) / 7;
    for (int i = 0; i < 2; i++) {
        value[i] = tensor(values[i], float32, 1, shape);
        grad[i] = tensor(grads[i], float32, 1, shape);
        const struct dp_parameter p = {.name = "w", .value = &value[i], .grad = &grad[i]};
        MUST(dp_optimizer_new(&config, &p, 1, &o[i]));
        if (i == 1)
            continue;
        for (int t = 0; t < 5; t++)
            MUST(dp_optimizer_step(o[0], &step));
        MUST(dp_checkpoint_write(in_dir("optimizer"), dp_optimizer_state(o[0]),
                                 dp_optimizer_state_count(o[0]), NULL));
    }
    MUST(dp_checkpoint_open(in_dir("optimizer"), &c));
    MUST(read_all(c, dp_optimizer_state(o[1]), dp_optimizer_state_count(o[1])));
    dp_checkpoint_close(c);
    memcpy(values[1], values[0], sizeof(values[0]));
    for (int t = 0; t < 5; t++)
        for (int i = 0; i < 2; i++)
            MUST(dp_optimizer_step(o[i], &step));
    assert_memory_equal(values[0], values[1], sizeof(values[0]));
    dp_optimizer_free(o[0]);
    dp_optimizer_free(o[1]);
}

/* ---- what is wrong with a file ---------------------------------------------------------------- */

/* A file with that header, where "00000000" becomes the checksum if it is `right`. */
static void write_file(const char *path, uint64_t len, const char *header, size_t data_bytes, bool right)
{
    static char bytes[8192];
    char digits[9];

    memset(bytes, 0, sizeof(bytes));
    memcpy(bytes, &len, sizeof(len));
    memcpy(bytes + sizeof(len), header, strlen(header));
    snprintf(digits, sizeof(digits), "%08x", dp_crc32c(0, header, strlen(header)));
    if (right && strstr(header, "00000000"))
        memcpy(bytes + sizeof(len) + (strstr(header, "00000000") - header), digits, 8);
    write_bytes(path, bytes, sizeof(len) + strlen(header) + data_bytes);
}

#define OWN "\"dualpipe.header_crc32c\":\"00000000\""

CASE(a_malformed_header_is_refused_with_the_place)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *says;
    } cases[] = {
        {"[]", 0, "its header is no JSON object"},
        {"{\"a\":", 0, "its header is no JSON object"},
        {"{\"a\":1}", 0, ".a: 1, expected an object with dtype"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, ".a.dtype: not there"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "type 'F31', which is not"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, ".a.shape: not there"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, ".a.shape[0]: -1"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, ".a.shape[0]: 1.5"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[NaN],\"data_offsets\":[0,4]}}", 4, "no JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1e3],\"data_offsets\":[0,4]}}", 4, "expected a whole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "expected two numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "the end behind"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "[0]: -4, expected"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "as many bytes as"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0, "as many bytes as"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "ends before (cut off?)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "the file at 5"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 6, "'b' begins at byte 2 of the "
         "data, inside the one before"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, "with a gap behind"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "duplicate"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
        {"{\"__metadata__\":{" OWN ",\"dualpipe.crc32c\":\"[]\"}}", 0, "crc32c is no JSON object"},
        {"{\"__metadata__\":{" OWN ",\"dualpipe.json\":\"[]\"}}", 0, "its json is no JSON object"},
        {"{\"__metadata__\":{\"dualpipe.json\":\"{}\"}}", 0, "does not have the checksum"},
        {"{\"__metadata__\":{\"dualpipe.header_crc32c\":\"00000001\"}}", 0, "does not have the checksum"},
        {"{\"__metadata__\":{" OWN ",\"dualpipe.crc32c\":\"{\\\"a\\\":\\\"12\\\"}\"},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "eight hexadecimal"},
    };
    struct dp_checkpoint *c;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(in_dir("bad"), strlen(cases[i].header), cases[i].header, cases[i].data_bytes, true);
        int err = dp_checkpoint_open(in_dir("bad"), &c);
        if (err != DP_EINVAL && err != DP_EUNSUPPORTED)
            fail_msg("%s: %s", cases[i].header, dp_strerror(err));
        assert_says(cases[i].says);
    }
    write_file(in_dir("bad"), 1000, "{}", 0, false);
    assert_int_equal(dp_checkpoint_open(in_dir("bad"), &c), DP_EINVAL);
    assert_says("a header of 1000 bytes, expected at most 100000000 and not more than");
    write_bytes(in_dir("bad"), "1234", 4);
    assert_int_equal(dp_checkpoint_open(in_dir("bad"), &c), DP_EINVAL);
    assert_says("has 4 bytes, expected a header");
    assert_int_equal(dp_checkpoint_open(in_dir("nothing"), &c), DP_ENOENT);
    assert_int_equal(dp_checkpoint_open(dir, &c), DP_EINVAL);
    assert_says("is no file");
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0); /* no process writes */
    assert_int_equal(dp_checkpoint_open(in_dir("pipe"), &c), DP_EINVAL);
    assert_says("is no file");
    assert_int_equal(unlink(in_dir("pipe")), 0);
}

CASE(a_file_of_another_program_is_read_without_checksums)
{
    static const int lens[] = {64, '{'}; /* the second makes the file begin as an index */
    char header[128];
    struct dp_checkpoint *c;

    for (int i = 0; i < 2; i++) {
        float x = 5;
        const DLTensor out = tensor(&x, float32, 0, NULL);
        snprintf(header, sizeof(header), "%-*s", lens[i],
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}");
        write_file(in_dir("foreign"), strlen(header), header, 4, false);
        MUST(dp_checkpoint_open(in_dir("foreign"), &c));
        assert_false(dp_checkpoint_at(c, 0)->has_checksum);
        MUST(dp_checkpoint_read(c, "a", &out));
        assert_true(x == 0);
        MUST(verify_all(c));
        dp_checkpoint_close(c);
    }
}

/* A small file of two tensors, in memory. */
static size_t small_file(char *bytes, size_t room)
{
    static uint8_t data[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    int64_t shape[] = {5};
    const struct dp_named_tensor list[] = {{"a", tensor(data, uint8, 1, shape)},
                                           {"b", tensor(data + 5, uint8, 1, shape)}};

    MUST(dp_checkpoint_write(in_dir("small"), list, 2, "{\"step\": 1}"));
    return read_bytes(in_dir("small"), bytes, room);
}

static int open_and_verify(const char *path)
{
    struct dp_checkpoint *c;
    int err = dp_checkpoint_open(path, &c);

    if (err)
        return err;
    err = verify_all(c);
    dp_checkpoint_close(c);
    return err;
}

static void no_log(void *user, enum dp_log_level level, const char *line)
{
}

CASE(every_flipped_bit_is_noticed)
{
    char bytes[2048];
    size_t len = small_file(bytes, sizeof(bytes));

    dp_log_set(no_log, NULL, DP_LOG_ERROR);
    MUST(open_and_verify(in_dir("small")));
    for (size_t bit = 0; bit < 8 * len; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_bytes(in_dir("flipped"), bytes, len);
        if (!open_and_verify(in_dir("flipped")))
            fail_msg("bit %zu of byte %zu of %zu", bit % 8, bit / 8, len);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

CASE(a_file_that_is_cut_off_anywhere_is_refused)
{
    char bytes[2048];
    size_t len = small_file(bytes, sizeof(bytes));

    dp_log_set(no_log, NULL, DP_LOG_ERROR);
    for (size_t cut = 0; cut < len; cut++) {
        write_bytes(in_dir("cut"), bytes, cut);
        assert_int_equal(open_and_verify(in_dir("cut")), DP_EINVAL);
    }
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

CASE(a_damaged_tensor_is_named)
{
    char bytes[2048];
    size_t len = small_file(bytes, sizeof(bytes));
    uint8_t back[5];
    int64_t shape[] = {5};
    const DLTensor out = tensor(back, uint8, 1, shape);
    struct dp_checkpoint *c;

    bytes[len - 1] ^= 1;
    write_bytes(in_dir("damaged"), bytes, len);
    MUST(dp_checkpoint_open(in_dir("damaged"), &c));
    MUST(dp_checkpoint_read(c, "a", &out));
    assert_int_equal(dp_checkpoint_read(c, "b", &out), DP_EINVAL);
    assert_says("tensor 'b' has the checksum");
    assert_int_equal(verify_all(c), DP_EINVAL);
    dp_checkpoint_close(c);
}

/* ---- what is wrong with a call ---------------------------------------------------------------- */

CASE(wrong_arguments_are_refused_by_name)
{
    char bytes[2048];
    uint8_t back[10];
    int64_t five[] = {5}, six[] = {6};
    DLTensor out = tensor(back, uint8, 1, five);
    struct dp_named_tensor two[] = {{"x", out}, {"x", out}};
    struct dp_checkpoint *c;

    small_file(bytes, sizeof(bytes));
    MUST(dp_checkpoint_open(in_dir("small"), &c));
    assert_int_equal(dp_checkpoint_read(c, "c", &out), DP_ENOENT);
    assert_says("has no tensor 'c'");
    assert_null(dp_checkpoint_find(c, "c"));
    out.shape = six;
    assert_int_equal(dp_checkpoint_read(c, "a", &out), DP_EMISMATCH);
    assert_says("tensor 'a' is uint8[5], expected uint8[6]");
    out.shape = five;
    out.dtype.code = kDLInt;
    assert_int_equal(dp_checkpoint_read(c, "a", &out), DP_EMISMATCH);
    assert_says("expected int8[5]");
    out.dtype.code = kDLUInt;
    out.device.device_type = kDLCUDA;
    assert_int_equal(dp_checkpoint_read(c, "a", &out), DP_EUNSUPPORTED);
    out.data = NULL;
    assert_int_equal(dp_checkpoint_read(c, "a", &out), DP_EINVAL);
    dp_checkpoint_close(c);

    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 2, NULL), DP_EINVAL);
    assert_says("two tensors are named 'x'");
    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 1, "[1]"), DP_EINVAL);
    assert_says("its json is no JSON object");
    two[0].name = "__metadata__";
    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 1, NULL), DP_EINVAL);
    two[0].name = "\xff";
    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 1, NULL), DP_EINVAL);
    assert_says("is not UTF-8");
    two[0].tensor.dtype.bits = 4;
    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 1, NULL), DP_EUNSUPPORTED);
    two[0].tensor.dtype.bits = 8;
    two[0].tensor.device.device_type = kDLCUDA;
    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 1, NULL), DP_EUNSUPPORTED);
    two[0].tensor.data = NULL;
    assert_int_equal(dp_checkpoint_write(in_dir("w"), two, 1, NULL), DP_EINVAL);
    assert_int_equal(dp_checkpoint_write(in_dir("w"), NULL, 1, NULL), DP_EINVAL);
    assert_int_equal(dp_checkpoint_write(in_dir("no/w"), two + 1, 1, NULL), DP_ENOENT);
    assert_int_equal(access(in_dir("w"), F_OK), -1);
}

static int write_and_read(void)
{
    int64_t shape[] = {6};
    uint8_t data[6] = {0};
    const struct dp_named_tensor t = {"x", tensor(data, uint8, 1, shape)};
    struct dp_checkpoint *c;
    int err = dp_checkpoint_write(in_dir("memory"), &t, 1, NULL);

    if (!err)
        err = dp_checkpoint_open(in_dir("memory"), &c);
    if (err)
        return err;
    err = dp_checkpoint_read(c, "x", &t.tensor);
    dp_checkpoint_close(c);
    return err;
}

CASE(without_memory_the_error_says_so)
{
    expect_every_failure_reported(write_and_read, 8);
    dp_checkpoint_close(NULL);
}

/* ---- what may happen to a writer -------------------------------------------------------------- */

enum { GENERATION = 300000 };

/* Tensors that all hold the number of their generation. */
static int write_generation(const char *path, int64_t generation)
{
    static int64_t data[GENERATION];
    int64_t shape[] = {GENERATION};
    const struct dp_named_tensor list[] = {{"a", tensor(data, int64, 1, shape)},
                                           {"b", tensor(data, int64, 1, shape)}};
    char json[64];

    for (int i = 0; i < GENERATION; i++)
        data[i] = generation;
    snprintf(json, sizeof(json), "{\"generation\": %lld}", (long long)generation);
    return dp_checkpoint_write(path, list, 2, json);
}

static int64_t read_generation(const char *path)
{
    static int64_t data[GENERATION];
    int64_t shape[] = {GENERATION};
    const DLTensor out = tensor(data, int64, 1, shape);
    struct dp_checkpoint *c;
    char json[64];

    MUST(dp_checkpoint_open(path, &c));
    for (int k = 0; k < 2; k++) {
        MUST(dp_checkpoint_read(c, k ? "b" : "a", &out));
        for (int i = 1; i < GENERATION; i++)
            if (data[i] != data[0])
                fail_msg("element %d is of generation %lld, the first of %lld", i, (long long)data[i],
                         (long long)data[0]);
    }
    snprintf(json, sizeof(json), "{\"generation\": %lld}", (long long)data[0]);
    assert_string_equal(dp_checkpoint_json(c), json);
    dp_checkpoint_close(c);
    return data[0];
}

static void write_for_ever(const char *path, int told)
{
    for (int64_t generation = 1;; generation++) {
        if (write_generation(path, generation) || write(told, "", 1) != 1)
            _exit(1);
    }
}

/* A writer is killed at once when it has reported its k-th file, so in the middle of the next one.
 */
CASE(a_writer_that_is_killed_leaves_the_last_whole_file)
{
    for (int k = 1; k <= 6; k++) {
        int told[2], status;
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        if (!child)
            write_for_ever(in_dir("killed"), told[1]);
        close(told[1]);
        for (int i = 0; i < k; i++) {
            struct pollfd p = {.fd = told[0], .events = POLLIN};
            char byte;
            assert_int_equal(poll(&p, 1, 60000), 1);
            assert_int_equal(read(told[0], &byte, 1), 1);
        }
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        close(told[0]);
        assert_true(read_generation(in_dir("killed")) >= k);
    }
    MUST(write_generation(in_dir("killed"), 0)); /* what the last one left there is no hindrance */
    assert_int_equal(read_generation(in_dir("killed")), 0);
    assert_int_equal(count_named("killed"), 1);
}

CASE(a_file_that_does_not_fit_leaves_the_last_one)
{
    struct rlimit before, small;

    MUST(write_generation(in_dir("full"), 1));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int err = write_generation(in_dir("full"), 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(err, DP_EIO);
    assert_says("cannot write it");
    assert_int_equal(read_generation(in_dir("full")), 1);
    assert_int_equal(count_named("full"), 1);
}

/* A name that is no regular file's is written through, not replaced. */
CASE(links_and_pipes_stay_what_they_are)
{
    char pipe_path[4096], text[8];
    uint8_t data[3] = {1, 2, 3};
    int64_t shape[] = {3};
    struct dp_named_tensor tensor = {"t", {.data = data, .device = {kDLCPU, 0}, .ndim = 1,
                                           .dtype = {kDLUInt, 8, 1}, .shape = shape}};
    struct stat st;

    MUST(write_generation(in_dir("target"), 1));
    assert_int_equal(symlink("target", in_dir("link")), 0);
    MUST(write_generation(in_dir("link"), 2));
    assert_int_equal(lstat(in_dir("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(read_generation(in_dir("target")), 2);

    snprintf(pipe_path, sizeof(pipe_path), "%s", in_dir("pipe"));
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    int fd = open(pipe_path, O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    MUST(dp_checkpoint_write(pipe_path, &tensor, 1, NULL));
    assert_int_equal(lstat(pipe_path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(read(fd, text, sizeof(text)), sizeof(text)); /* the length of a header */
    close(fd);
}

/* ---- indexes ---------------------------------------------------------------------------------- */

static void write_part(const char *name, const char *tensor_name, uint8_t value)
{
    int64_t shape[] = {3};
    uint8_t data[3] = {value, value, value}, both[3] = {9, 9, 9};
    const struct dp_named_tensor list[] = {{tensor_name, tensor(data, uint8, 1, shape)},
                                           {"both", tensor(both, uint8, 1, shape)}};

    MUST(dp_checkpoint_write(in_dir(name), list, 2, NULL));
}

CASE(an_index_makes_files_one_checkpoint)
{
    const char *const files[] = {"r0", "r1", "r2"};
    int64_t shape[] = {3};
    uint8_t back[3];
    const DLTensor out = tensor(back, uint8, 1, shape);
    struct dp_checkpoint *c;

    write_part("r0", "zero", 0);
    write_part("r1", "one", 1);
    write_part("r2", "two", 2);
    MUST(dp_checkpoint_write_index(in_dir("index.json"), files, 3, "{\"step\":3}"));
    MUST(dp_checkpoint_open(in_dir("index.json"), &c));
    assert_int_equal(dp_checkpoint_count(c), 4);
    assert_string_equal(dp_checkpoint_json(c), "{\"step\":3}");
    MUST(verify_all(c));
    MUST(dp_checkpoint_read(c, "two", &out));
    assert_int_equal(back[0], 2);
    assert_string_equal(dp_checkpoint_find(c, "both")->file, in_dir("r0"));
    dp_checkpoint_close(c);

    write_part("r2", "one", 2);
    assert_int_equal(dp_checkpoint_write_index(in_dir("index.json"), files, 3, NULL), DP_EMISMATCH);
    assert_says("tensor 'one' is not the same in 'r1' and 'r2'");
    assert_int_equal(dp_checkpoint_write_index(in_dir("x"), (const char *[]){"a/b"}, 1, NULL), DP_EINVAL);
    assert_says("expected a name without '/'");
    assert_int_equal(dp_checkpoint_write_index(in_dir("x"), (const char *[]){"none"}, 1, NULL), DP_ENOENT);
    assert_int_equal(dp_checkpoint_write_index(in_dir("x"), NULL, 0, "1"), DP_EINVAL);
}

/* Where the checksum is looked for it must be named so. */
static bool is_in_a_name(const char *text, size_t byte)
{
    const char *const names[] = {"metadata", "dualpipe.index_crc32c"};
    bool is = false;

    for (int i = 0; i < 2; i++) {
        const size_t at = (size_t)(strstr(text, names[i]) - text);
        is = is || (byte >= at && byte < at + strlen(names[i]));
    }
    return is;
}

CASE(every_flipped_bit_of_an_index_is_noticed)
{
    char bytes[2048], text[2048];

    write_part("r0", "zero", 0);
    MUST(dp_checkpoint_write_index(in_dir("bits.json"), (const char *[]){"r0"}, 1, "{\"step\":3}"));
    size_t len = read_bytes(in_dir("bits.json"), bytes, sizeof(bytes));
    memcpy(text, bytes, len);
    text[len] = '\0';
    dp_log_set(no_log, NULL, DP_LOG_ERROR);
    MUST(open_and_verify(in_dir("bits.json")));
    for (size_t bit = 0; bit < 8 * len; bit++) {
        if (is_in_a_name(text, bit / 8))
            continue;
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_bytes(in_dir("flipped.json"), bytes, len);
        if (!open_and_verify(in_dir("flipped.json")))
            fail_msg("bit %zu of byte %zu of %zu", bit % 8, bit / 8, len);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

CASE(a_malformed_index_is_refused)
{
    static const struct {
        const char *text;
        int err;
        const char *says;
    } cases[] = {
        {"{\"weight_map\": {", DP_EINVAL, "line 1"},
        {"{\"weight\": \"map\"}", DP_EINVAL, "without the object 'weight_map'"},
        {"{\"weight_map\": {\"a\": 5}}", DP_EINVAL, "tensor 'a' has no file's name"},
        {"{\"weight_map\": {\"a\": \"../r0\"}}", DP_EINVAL, "a name without '/'"},
        {"{\"weight_map\": {\"a\": \"none\"}}", DP_ENOENT, "cannot open it"},
        {"{\"weight_map\": {\"a\": \"r0\"}}", DP_EINVAL, "tensor 'a' is not in"},
        {"{\"weight_map\": {\"a\": \"index\"}}", DP_EINVAL, "no safetensors file?"},
    };
    struct dp_checkpoint *c;

    write_part("r0", "zero", 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_bytes(in_dir("index"), cases[i].text, strlen(cases[i].text));
        assert_int_equal(dp_checkpoint_open(in_dir("index"), &c), cases[i].err);
        assert_says(cases[i].says);
    }
}

/* ---- others ----------------------------------------------------------------------------------- */

CASE(pythons_safetensors_reads_our_file)
{
    int64_t shape[] = {2, 3};
    float data[] = {1, 2, 3, 4, 5, 6};
    const struct dp_named_tensor t = {"w", tensor(data, float32, 2, shape)};
    char command[1024];

    if (system("python3 -c 'import safetensors' 2>/dev/null"))
        skip_because("python3 has no module safetensors here");
    MUST(dp_checkpoint_write(in_dir("python"), &t, 1, "{\"step\": 4}"));
    snprintf(command, sizeof(command),
             "python3 -c 'import struct, safetensors\n"
             "(name, t), = safetensors.deserialize(open(\"%s\", \"rb\").read())\n"
             "assert name == \"w\" and t[\"shape\"] == [2, 3] and t[\"dtype\"] == \"F32\", t\n"
             "assert struct.unpack(\"<6f\", bytes(t[\"data\"])) == (1, 2, 3, 4, 5, 6), t'",
             in_dir("python"));
    assert_int_equal(system(command), 0);
}

static int make_dir(void **state)
{
    return !scratch_directory(dir, "checkpoint");
}

static int remove_dir(void **state)
{
    return scratch_remove(dir);
}

RUN_CASES(make_dir, remove_dir)
