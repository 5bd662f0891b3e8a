/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_measured.c - any bytes read as what was measured: the output of NCCL's tests, text or JSON. What is
 * read can be: no negative bytes or times.
 */
#include "config.h"

#include "fuzz.h"

#include "tune/results.h"

#include <string.h>

static void read_results(const uint8_t *data, size_t size)
{
    struct tune_run run = {.path = "fuzz", .function = -1, .algorithm = -1, .protocol = -1};
    struct tune_results r = {0};
    char *text = malloc(size + 1);

    must(text);
    memcpy(text, data, size);
    text[size] = '\0';
    if (text[strspn(text, " \t\r\n")] == '{')
        tune_read_json(text, size, &run, &r);
    else
        tune_read_text(text, &run, &r);
    for (size_t i = 0; i < r.count; i++) {
        must(r.points[i].ranks > 0 && r.points[i].nodes > 0 && r.points[i].bytes > 0);
        must(tune_point_us(&r.points[i]) > 0 && r.points[i].channels >= 0);
    }
    tune_results_sort(&r);
    tune_results_fini(&r);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool quiet;

    if (!quiet)
        must(freopen("/dev/null", "w", stderr)); /* what is wrong with results is said there */
    quiet = true;
    read_results(data, size);
    return 0;
}
