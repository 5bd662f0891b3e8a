/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "base/array.h"
#include "base/fail.h"
#include "base/hmac.h"
#include "base/options.h"
#include "base/sized.h"
#include "base/text.h"
#include <dualpipe/assignment.h>
#include <dualpipe/mixer.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/random.h>
#include <dualpipe/topology.h>
#include <dualpipe/tuning.h>

CASE(a_failure_keeps_its_sentence)
{
    expect_error_is(dp_fail_quietly(DP_EINVAL, "ranks: %d", 3), DP_EINVAL, "ranks: 3");
    assert_string_equal(dp_strerror(DP_EINVAL), "DP_EINVAL");
}

CASE(a_text_grows_over_any_number_of_additions)
{
    struct dp_text t = {0};
    char *s;
    size_t len;

    for (int i = 0; i < 1000; i++)
        dp_text_addf(&t, "%03d ", i);
    dp_text_adds(&t, "end");
    assert_int_equal(dp_text_take(&t, &s, &len), 0);
    assert_int_equal(len, 4003);
    assert_memory_equal(s + 3996, "999 end", 8);
    free(s);
}

CASE(an_array_grows_and_keeps_its_elements)
{
    size_t room = 0, moves = 0, last = 0;
    int *items = NULL;

    for (int i = 0; i < 10000; i++) {
        items = dp_array_grow(items, &room, (size_t)i + 1, sizeof(*items));
        assert_non_null(items);
        assert_true(room > (size_t)i);
        moves += room != last;
        last = room;
        items[i] = i;
    }
    for (int i = 0; i < 10000; i++)
        assert_int_equal(items[i], i);
    assert_true(moves < 20);
    assert_null(dp_array_grow(items, &room, SIZE_MAX / 2, sizeof(*items)));
    assert_int_equal(room, last);
    free(items);
}

CASE(the_nearest_name_is_offered_only_if_near)
{
    static const char *const names[] = {"dualpipe", "gpipe", "1f1b"};
    assert_string_equal(dp_nearest("dualpip", names, 3), "dualpipe");
    assert_string_equal(dp_nearest("gpip", names, 3), "gpipe");
    assert_null(dp_nearest("interleaved", names, 3));
}

struct opts {
    int64_t count;
    bool on;
    const char *mode, *file, *code;
};
static const char *const modes[] = {"fast", "slow", NULL};
static const struct dp_option table[] = {
    {"COUNT", DP_OPTION_INT, "7", "how many", offsetof(struct opts, count), .min = 1, .max = 100,
     .old_name = "NUMBER"},
    {"ON", DP_OPTION_BOOL, "no", "whether", offsetof(struct opts, on), .choices = NULL},
    {"MODE", DP_OPTION_CHOICE, "fast", "how", offsetof(struct opts, mode), .choices = modes},
    {"FILE", DP_OPTION_STRING, NULL, "where", offsetof(struct opts, file), .choices = NULL},
    {"CODE", DP_OPTION_STRING, NULL, "what", offsetof(struct opts, code), .is_code = true},
};
static const struct dp_option_area area = {"TESTAREA", table, 5};

CASE(options_have_defaults_and_take_the_environment)
{
    struct opts o;

    assert_int_equal(dp_options_read(&area, &o), 0);
    assert_int_equal(o.count, 7);
    assert_false(o.on);
    assert_string_equal(o.mode, "fast");
    assert_null(o.file);

    setenv("DUALPIPE_TESTAREA_COUNT", "0x10", 1);
    setenv("DUALPIPE_TESTAREA_ON", "yes", 1);
    assert_int_equal(dp_options_read(&area, &o), 0);
    assert_int_equal(o.count, 16);
    assert_true(o.on);
    unsetenv("DUALPIPE_TESTAREA_COUNT");
    unsetenv("DUALPIPE_TESTAREA_ON");
}

static bool is_setuid;

/* In place of the C library's. */
char *secure_getenv(const char *name);
char *secure_getenv(const char *name)
{
    return is_setuid ? NULL : getenv(name);
}

CASE(a_program_with_more_rights_takes_no_code_from_the_environment)
{
    struct opts o;

    setenv("DUALPIPE_TESTAREA_FILE", "a", 1);
    setenv("DUALPIPE_TESTAREA_CODE", "b", 1);
    for (int i = 0; i < 2; i++) {
        is_setuid = i;
        assert_int_equal(dp_options_read(&area, &o), 0);
        assert_string_equal(o.file, "a");
        assert_int_equal(o.code == NULL, is_setuid);
        assert_int_equal(dp_trusted_variable("DUALPIPE_TESTAREA_CODE") == NULL, is_setuid);
    }
    is_setuid = false;
    unsetenv("DUALPIPE_TESTAREA_FILE");
    unsetenv("DUALPIPE_TESTAREA_CODE");
}

CASE(an_option_is_still_read_by_its_old_name)
{
    struct opts o;

    setenv("DUALPIPE_TESTAREA_NUMBER", "9", 1);
    assert_int_equal(dp_options_read(&area, &o), 0);
    assert_int_equal(o.count, 9);
    setenv("DUALPIPE_TESTAREA_COUNT", "8", 1);
    assert_int_equal(dp_options_read(&area, &o), 0);
    assert_int_equal(o.count, 8);
    unsetenv("DUALPIPE_TESTAREA_COUNT");
    unsetenv("DUALPIPE_TESTAREA_NUMBER");
}

static void expect_bad(const char *name, const char *value, const char *sentence)
{
    struct opts o;

    setenv(name, value, 1);
    assert_int_equal(dp_options_read(&area, &o), DP_EINVAL);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);
    unsetenv(name);
}

CASE(bad_options_are_named_with_what_was_expected)
{
    expect_bad("DUALPIPE_TESTAREA_COUNT", "many", "expected a whole number");
    expect_bad("DUALPIPE_TESTAREA_COUNT", "0", "from 1 to 100");
    expect_bad("DUALPIPE_TESTAREA_ON", "maybe", "expected 0, 1");
    expect_bad("DUALPIPE_TESTAREA_MODE", "medium", "one of fast, slow");
    expect_bad("DUALPIPE_TESTAREA_CONT", "1", "did you mean DUALPIPE_TESTAREA_COUNT");
}

static void remember_name(void *user, const struct dp_option_info *option)
{
    static const char name[] = "DUALPIPE_LOG_LEVEL", stranger[] = "DUALPIPE_LOG_LEVELS";
    int *seen = user;

    if (!strcmp(option->name, name)) {
        assert_string_equal(option->value, "loud");
        assert_true(option->from_environment);
        assert_string_equal(option->fallback, "warn");
        assert_non_null(strstr(option->problem, "one of error, warn"));
        seen[0]++;
    } else if (!strcmp(option->name, stranger)) {
        assert_non_null(strstr(option->problem, "did you mean DUALPIPE_LOG_LEVEL?"));
        assert_null(option->help);
        seen[1]++;
    } else
        assert_null(option->problem);
}

CASE(all_options_are_listed_with_what_is_wrong_with_them)
{
    int seen[2] = {0, 0};

    setenv("DUALPIPE_LOG_LEVEL", "loud", 1);
    setenv("DUALPIPE_LOG_LEVELS", "warn", 1);
    assert_int_equal(dp_options_each(remember_name, seen), 2);
    assert_int_equal(seen[0], 1);
    assert_int_equal(seen[1], 1);
    unsetenv("DUALPIPE_LOG_LEVEL");
    unsetenv("DUALPIPE_LOG_LEVELS");
}

struct heard {
    int count;
    enum dp_log_level level;
    char line[200];
};

static void hear(void *user, enum dp_log_level level, const char *line)
{
    struct heard *heard = user;

    heard->count++;
    heard->level = level;
    snprintf(heard->line, sizeof(heard->line), "%s", line);
}

CASE(a_bad_log_level_is_warned_of_once)
{
    struct heard heard = {0};

    setenv("DUALPIPE_LOG_LEVEL", "loud", 1);
    dp_log_set(hear, &heard, DP_LOG_DEFAULT);
    dp_log(DP_LOG_INFO, "not shown");
    assert_int_equal(heard.count, 1);
    assert_int_equal(heard.level, DP_LOG_WARN);
    assert_string_equal(heard.line, "DUALPIPE_LOG_LEVEL=loud: expected one of error, warn, info, "
                                    "debug; going on with warn");
    dp_log_set(hear, &heard, DP_LOG_DEFAULT);
    dp_log(DP_LOG_WARN, "shown");
    assert_int_equal(heard.count, 2);
    assert_string_equal(heard.line, "shown");
    unsetenv("DUALPIPE_LOG_LEVEL");
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

CASE(philox_gives_the_published_numbers)
{
    /* Known answers of Random123's kat_vectors for philox4x32-10. */
    uint32_t out[4];

    dp_random_block((struct dp_random_key){0, 0}, 0, out);
    assert_int_equal(out[0], 0x6627e8d5);
    assert_int_equal(out[1], 0xe169c58d);
    assert_int_equal(out[2], 0xbc57ac4c);
    assert_int_equal(out[3], 0x9b00dbd8);
    dp_random_block((struct dp_random_key){UINT64_MAX, UINT64_MAX}, UINT64_MAX, out);
    assert_int_equal(out[0], 0x408f276d);
    assert_int_equal(out[1], 0x41c83b0e);
    assert_int_equal(out[2], 0xa20bc7c6);
    assert_int_equal(out[3], 0x6d5451fd);
}

CASE(random_numbers_do_not_depend_on_how_many_are_drawn_at_once)
{
    struct dp_random_key key = dp_random_key(1, 2, 3, 4);
    float all[37], one, mean = 0;
    static float many[10000];

    dp_random_uniform(key, 5, all, 37);
    for (uint64_t i = 0; i < 37; i++) {
        dp_random_uniform(key, 5 + i, &one, 1);
        assert_memory_equal(&one, &all[i], sizeof(one));
    }
    dp_random_normal(key, 0, many, 10000);
    for (int i = 0; i < 10000; i++)
        mean += many[i] / 10000;
    assert_true(fabsf(mean) < 0.05f);
}

static void add_repeated(struct dp_hmac *hmac, const char *text, int times)
{
    for (int i = 0; i < times; i++)
        dp_hmac_add(hmac, text, strlen(text));
}

/* Section 4 of RFC 4231; a message is its text so many times. */
CASE(hmac_sha256_gives_the_values_of_rfc_4231)
{
    static const struct {
        const char *key;
        int key_len; /* above that of the text: its first byte, repeated */
        const char *text;
        int times;
        const char *hex; /* or its first half, as in case 5 */
    } cases[] = {
        {"\x0b", 20, "Hi There", 1,
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 4, "what do ya want for nothing?", 1,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {"\xaa", 20, "\xdd", 50,
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {"\x0c", 20, "Test With Truncation", 1, "a3b6167473100ee06e0c796c2955552b"},
        {"\xaa", 131, "Test Using Larger Than Block-Size Key - Hash Key First", 1,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {"\xaa", 131,
         "This is a test using a larger than block-size key and a larger than block-size data. "
         "The key needs to be hashed before being used by the HMAC algorithm.", 1,
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t key[131], out[DP_HMAC_BYTES];
        struct dp_hmac hmac;
        char hex[2 * DP_HMAC_BYTES + 1];

        memset(key, cases[i].key[0], sizeof(key));
        memcpy(key, cases[i].key, strlen(cases[i].key));
        dp_hmac_begin(&hmac, key, (size_t)cases[i].key_len);
        add_repeated(&hmac, cases[i].text, cases[i].times);
        dp_hmac_end(&hmac, out);
        for (int k = 0; k < DP_HMAC_BYTES; k++)
            snprintf(hex + 2 * k, 3, "%02x", out[k]);
        hex[strlen(cases[i].hex)] = 0;
        assert_string_equal(hex, cases[i].hex);
    }
}

/* Around the ends of blocks: at once, or byte by byte. */
CASE(a_message_has_one_hmac_however_it_is_cut)
{
    uint8_t bytes[200] = {1}, whole[DP_HMAC_BYTES], cut[DP_HMAC_BYTES];
    struct dp_hmac hmac;

    for (size_t len = 0; len <= sizeof(bytes); len++) {
        dp_hmac_begin(&hmac, "key", 3);
        dp_hmac_add(&hmac, bytes, len);
        dp_hmac_end(&hmac, whole);
        dp_hmac_begin(&hmac, "key", 3);
        for (size_t i = 0; i < len; i++)
            dp_hmac_add(&hmac, bytes + i, 1);
        dp_hmac_end(&hmac, cut);
        assert_true(dp_hmac_is_equal(whole, cut));
    }
    whole[31] ^= 1;
    assert_false(dp_hmac_is_equal(whole, cut));
}

/* The structs of an earlier, this and a later release. */
CASE(a_struct_of_another_release_is_taken_as_far_as_it_is_known)
{
    (void)state;
    const uint32_t later[] = {1, 2, 3, 0}, set[] = {1, 2, 3, 4};
    struct heard heard = {0};
    uint32_t own[3] = {7, 7, 7}, given[4] = {9, 9, 9, 9};

    assert_int_equal(dp_sized_take(own, sizeof(own), later, sizeof(later), "struct x"), 0);
    assert_memory_equal(own, later, sizeof(own));
    assert_int_equal(dp_sized_take(own, sizeof(own), set, sizeof(own[0]), "struct x"), 0);
    assert_memory_equal(own, ((uint32_t[]){1, 0, 0}), sizeof(own));
    dp_log_set(hear, &heard, DP_LOG_WARN);
    assert_int_equal(dp_sized_take(own, sizeof(own), set, sizeof(set), "struct x"), DP_EINVAL);
    assert_string_equal(dp_last_error(), "struct x of 16 bytes: byte 12 is set, expected zeros beyond the "
                                         "12 that this release knows");
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    dp_sized_give(given, sizeof(given[0]), set, 3 * sizeof(set[0]));
    assert_memory_equal(given, ((uint32_t[]){1, 9, 9, 9}), sizeof(given));
    dp_sized_give(given, sizeof(given), set, 2 * sizeof(set[0]));
    assert_memory_equal(given, ((uint32_t[]){1, 2, 0, 0}), sizeof(given));
}

CASE(values_have_words_and_what_is_none_a_question_mark)
{
    static const struct {
        enum dp_names of;
        int count;
        const char *first, *last;
    } rows[] = {
        {DP_NAMES_SCHEDULE, DP_SCHEDULE_KINDS, "user", "async"},
        {DP_NAMES_OP, DP_OP_KINDS, "NONE", "REDUCE_WAIT"},
        {DP_NAMES_RECOMPUTE, DP_RECOMPUTES, "never", "always"},
        {DP_NAMES_RULE, DP_RULES, "none", "commit"},
        {DP_NAMES_EXECUTION, DP_EXECUTIONS, "list", "messages"},
        {DP_NAMES_FLOW, DP_FLOW_KINDS, "activation", "offload"},
        {DP_NAMES_NODE, DP_TOPO_KINDS, "host", "spine"},
        {DP_NAMES_LINK, DP_TOPO_LINK_KINDS, "mesh", "net"},
        {DP_NAMES_PATH, DP_TOPO_CLASSES, "X", "-"},
        {DP_NAMES_FUNCTION, DP_TUNING_FUNCTIONS, "broadcast", "allreduce"},
        {DP_NAMES_ALGORITHM, DP_TUNING_ALGORITHMS, "tree", "pat"},
        {DP_NAMES_PROTOCOL, DP_TUNING_PROTOCOLS, "ll", "simple"},
        {DP_NAMES_MIXER, DP_MIXER_ALGORITHMS, "d-psgd", "local-sgd"},
        {DP_NAMES_GRAPH_RULE, DP_GRAPH_RULES, "none", "connected"},
        {DP_NAMES_OPTIMIZER, DP_OPTIMIZER_KINDS, "sgd", "accum-adamw"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_string_equal(dp_name(rows[i].of, 0), rows[i].first);
        assert_string_equal(dp_name(rows[i].of, rows[i].count - 1), rows[i].last);
        for (int value = 0; value < rows[i].count; value++)
            assert_string_not_equal(dp_name(rows[i].of, value), "?");
        assert_string_equal(dp_name(rows[i].of, rows[i].count), "?");
        assert_string_equal(dp_name(rows[i].of, -2), "?"); /* -1 is the default of tuning */
    }
    assert_string_equal(dp_name((enum dp_names)(DP_NAMES_OPTIMIZER + 1), 0), "?");
}
