/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_schedule.c - any bytes read as a schedule. What can be read can be checked, can be written
 * in every form, and comes back the same; what the checker passes can be simulated.
 */
#include "fuzz.h"
#include "schedule/internal.h"

#include <dualpipe/schedule.h>

#include <stdlib.h>

static void write_and_read_back(const struct dp_schedule *s, enum dp_format format)
{
    struct dp_schedule *back;
    char *text;
    size_t len;

    must(!dp_schedule_write(s, format, &text, &len));
    must(!dp_schedule_read(text, len, format, &back));
    must(dp_schedule_equal(s, back));
    dp_schedule_free(back);
    free(text);
}

static void check_and_simulate(const struct dp_schedule *s)
{
    static const struct dp_cost cost = {.f_ns = 1, .i_ns = 1, .w_ns = 1, .link_latency_ns = 1};
    struct dp_finding finding;
    struct dp_simulation sim;
    bool valid = !dp_schedule_check(s, NULL, &finding);
    unsigned flags = DP_SIMULATE_TIMELINE | DP_SIMULATE_CRITICAL;

    must(valid || *finding.text);
    for (int batches = 0; batches < 2; batches++) {
        unsigned how = flags | (batches ? DP_SIMULATE_BATCHES : 0);
        bool simulated = !dp_schedule_simulate(s, &cost, how, &sim);
        must(simulated || !valid);
        if (simulated)
            dp_simulation_fini(&sim);
    }
}

static void read_as(const uint8_t *data, size_t size, enum dp_format format)
{
    struct dp_schedule *s;

    if (dp_schedule_read((const char *)data, size, format, &s)) {
        must(*dp_last_error());
        return;
    }
    if (((int64_t)s->first_slot[s->ranks] + s->ranks) * s->mb_per_stream < 10000)
        check_and_simulate(s);
    write_and_read_back(s, DP_FORMAT_TEXT);
    write_and_read_back(s, DP_FORMAT_CSV);
    write_and_read_back(s, DP_FORMAT_JSON);
    dp_schedule_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_as(data, size, DP_FORMAT_TEXT);
    read_as(data, size, DP_FORMAT_JSON);
    return 0;
}
