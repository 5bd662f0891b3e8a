/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of every function fails once.
 */
#include "cmocka_all.h"
#include "schedule/internal.h"
#include "unit/base/failing_memory.h"

#include "schedule/build.h"

static const int map[] = {1, 0};
static const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2,
                                             .microbatches = 40, .rank_map = map,
                                             .mirror_reduce = true};
static struct dp_schedule *whole;
static char *written[3];

static int call_new(void)
{
    struct dp_schedule *s;
    int err = dp_schedule_new(&spec, &s);

    if (!err)
        dp_schedule_free(s);
    return err;
}

static int call_build_rank(void)
{
    static struct dp_op ops[1000];
    size_t count;

    return dp_schedule_build_rank(&spec, 1, ops, 1000, &count);
}

static int call_check(void)
{
    return dp_schedule_check(whole, NULL, NULL);
}

static int call_simulate(void)
{
    struct dp_simulation sim;
    int err = dp_schedule_simulate(whole, &(struct dp_cost){.f_ns = 1},
                                   DP_SIMULATE_TIMELINE | DP_SIMULATE_CRITICAL, &sim);

    if (!err)
        dp_simulation_fini(&sim);
    return err;
}

static int call_write(enum dp_format format)
{
    char *text;
    int err = dp_schedule_write(whole, format, &text, NULL);

    if (!err)
        free(text);
    return err;
}

static int call_write_text(void)
{
    return call_write(DP_FORMAT_TEXT);
}

static int call_write_json(void)
{
    return call_write(DP_FORMAT_JSON);
}

static int call_read(const char *text, enum dp_format format)
{
    struct dp_schedule *s;
    int err = dp_schedule_read(text, strlen(text), format, &s);

    if (!err)
        dp_schedule_free(s);
    return err;
}

static int call_read_text(void)
{
    return call_read(written[DP_FORMAT_TEXT], DP_FORMAT_TEXT);
}

static int call_read_json(void)
{
    return call_read(written[DP_FORMAT_JSON], DP_FORMAT_JSON);
}

/* Both variants of adding messages: these computes would block with receives next to them. */
static int call_read_computes(void)
{
    return call_read("user P=2 M=4 streams=2\nholds 0: 0 1/1\nholds 1: 1 0/1\n"
                     "rank 0: F0.0 F1.0 F0.1 F1.1 B1.0 B0.0 B1.1 B0.1\n"
                     "rank 1: F1.0 F0.0 F1.1 F0.1 B0.0 B1.0 B0.1 B1.1\n", DP_FORMAT_TEXT);
}

static int call_read_user_json(void)
{
    return call_read("{\"algo\": \"user\", \"P\": 1, \"M\": 1, \"slots\": [[{\"stage\": 0}]], "
                     "\"ranks\": [{\"events\": [{\"op\": \"F\", \"mod\": 0, \"chunk\": 0}]}]}",
                     DP_FORMAT_JSON);
}

static int set_up(void **state)
{
    log_nothing();
    return dp_schedule_new(&spec, &whole) ||
           dp_schedule_write(whole, DP_FORMAT_TEXT, &written[DP_FORMAT_TEXT], NULL) ||
           dp_schedule_write(whole, DP_FORMAT_JSON, &written[DP_FORMAT_JSON], NULL);
}

static int tear_down(void **state)
{
    dp_schedule_free(whole);
    free(written[DP_FORMAT_TEXT]);
    free(written[DP_FORMAT_JSON]);
    return 0;
}

CASE(building_survives_every_failed_allocation)
{
    expect_every_failure_reported(call_new, 7);
    expect_every_failure_reported(call_build_rank, 2);
}

CASE(checking_and_simulating_survive_every_failed_allocation)
{
    expect_every_failure_reported(call_check, 8);
    expect_every_failure_reported(call_simulate, 15);
}

CASE(writing_and_reading_survive_every_failed_allocation)
{
    expect_every_failure_reported(call_write_text, 3);
    expect_every_failure_reported(call_write_json, 3);
    expect_every_failure_reported(call_read_text, 8);
    expect_every_failure_reported(call_read_json, 8);
    expect_every_failure_reported(call_read_computes, 25);
    expect_every_failure_reported(call_read_user_json, 8);
}

RUN_CASES(set_up, tear_down)
