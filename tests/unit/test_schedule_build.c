/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders: what they write is what was recorded, the closed forms hold, bad specs are refused.
 */
#include "cmocka_all.h"

#include <dualpipe/schedule.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    struct dp_schedule *s;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s P=%d M=%d: %s", dp_schedule_kind_name(spec.kind), spec.ranks,
                 spec.microbatches, dp_last_error());
    return s;
}

/* ---- recorded traces ----------------------------------------------------------------------- */

static char *read_file(const char *name)
{
    char path[4096], *text;
    long size;

    snprintf(path, sizeof(path), "%s/golden/%s", getenv("DP_TEST_DATA"), name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    text = calloc(1, (size_t)size + 1);
    assert_int_equal(fread(text, 1, (size_t)size, f), size);
    fclose(f);
    return text;
}

/* Blank the line that says where a trace comes from. */
static void drop_source(char *text)
{
    char *line = strstr(text, "\"source\"");
    assert_non_null(line);
    memset(line, ' ', strcspn(line, "\n"));
}

static void squeeze(char *text)
{
    char *to = text;
    for (char *from = text; *from; from++)
        if (*from != ' ')
            *to++ = *from;
    *to = '\0';
}

static void expect_same_text(const char *name, char *ours, char *golden)
{
    drop_source(ours);
    drop_source(golden);
    squeeze(ours);
    squeeze(golden);
    size_t i = 0;
    int line = 1;
    while (ours[i] && ours[i] == golden[i])
        line += ours[i++] == '\n';
    if (ours[i] != golden[i])
        fail_msg("%s, line %d: we wrote '%.60s', recorded was '%.60s'", name, line, ours + i,
                 golden + i);
}

static void compare_with_trace(enum dp_schedule_kind kind, int ranks, int microbatches, bool forward)
{
    char name[100], *ours, *golden;
    struct dp_schedule *s = build((struct dp_schedule_spec){
        .kind = kind, .ranks = ranks, .microbatches = microbatches, .forward_only = forward,
        .return_outputs = forward});

    snprintf(name, sizeof(name), "%s_P%d_M%d%s.json", dp_schedule_kind_name(kind), ranks,
             microbatches, forward ? "_fwd" : "");
    golden = read_file(name);
    assert_int_equal(dp_schedule_write(s, DP_FORMAT_JSON, &ours, NULL), 0);
    expect_same_text(name, ours, golden);
    free(ours);
    free(golden);
    dp_schedule_free(s);
}

static void dualpipe_and_dualpipev_are_the_recorded_traces_event_for_event(void **state)
{
    (void)state;
    static const int dualpipe[][2] = {{2, 4}, {2, 8}, {4, 8}, {4, 10}, {4, 20}, {8, 16}, {8, 20}};
    static const int dualpipev[][2] = {{1, 2}, {2, 4}, {2, 8}, {3, 6}, {4, 8}, {4, 10}, {8, 20}};

    for (int i = 0; i < 7; i++)
        for (int forward = 0; forward < 2; forward++) {
            compare_with_trace(DP_SCHEDULE_DUALPIPE, dualpipe[i][0], dualpipe[i][1], forward);
            compare_with_trace(DP_SCHEDULE_DUALPIPEV, dualpipev[i][0], dualpipev[i][1], forward);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dualpipe_and_dualpipev_are_the_recorded_traces_event_for_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
