/* SPDX-License-Identifier: Apache-2.0
 *
 * The trainer, where the device holds a part of the model alone.
 */
#include "cmocka_all.h"

#include "trainer_run.h"
#include "use_sim_cuda.h"

#include <stdio.h>
#include <string.h>

static const char *no_cuda; /* why there is no simulated CUDA */

/* What the sentence says that would do, for a budget of one byte; where nothing is chosen, all of it. */
static size_t least_bytes(const struct job *wanted)
{
    struct job job = *wanted;
    struct test_model m;
    struct dp_device *device = NULL;
    size_t bytes[16] = {0};

    job.budget = 1;
    struct dp_trainer_config config = config_of(&job);
    config.schedule.ranks = job.layout.ranks;
    test_model_init(&m, job.model);
    if (job.device) {
        assert_int_equal(dp_device_open(job.device, &device), 0);
        test_model_use_device(&m, device);
        config.device = device;
    }
    if (dp_trainer_measure(&config, &m.model, bytes)) {
        const char *takes = strstr(dp_last_error(), " takes ");
        assert_true(takes && sscanf(takes, " takes %zu bytes", &bytes[0]) == 1);
    }
    dp_device_close(device);
    return bytes[0];
}

/* The device holds a part of the model alone, under every schedule and way of summing. */
CASE(a_model_larger_than_the_device_learns_the_same)
{
    static const struct layout mixing = {DP_SCHEDULE_DUALPIPE, 2, 2, DP_SUMS_MIXING, 0},
                               again = {DP_SCHEDULE_GPIPE, 1, 1, DP_SUMS_ALL, DP_RECOMPUTE_ALWAYS};
    const struct {
        bool parameters, activations, optimizer, file;
        double kept;
        bool rounds;
    } ways[] = {{true, false, false, false, 0, false}, {true, true, false, false, 0, false},
                {false, true, true, false, 0, false}, {true, false, false, false, 0.6, false},
                {true, false, true, true, 0.4, false}, {true, true, false, false, 0.4, true}};

    for (enum model_kind model = 0; model < MODEL_KINDS; model++)
        for (int i = -2 - (model < MODEL_TIED); i < LAYOUTS; i++) {
            const struct layout *layout = i < -2   ? &mixing
                                          : i < -1 ? &again
                                          : i < 0  ? &one
                                                   : &layouts[i];
            for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
                struct job job = {.model = model, .layout = *layout, .offloads = ways[way].parameters,
                                  .evicts = ways[way].activations, .moves_state = ways[way].optimizer,
                                  .kept_share = ways[way].kept, .files = ways[way].file,
                                  .rounds = ways[way].rounds};
                if ((job.evicts && (layout->recompute || (model == MODEL_SKIPS && i != -1))) ||
                    (job.files && layout->sums != DP_SUMS_ALL))
                    continue;
                const struct curve expected =
                    run((struct job){.model = model, .layout = *layout, .rounds = job.rounds});
                const bool on_cuda = !no_cuda && job.offloads && job.kept_share == 0 && !job.files;
                /* Twice what would do for every other one: on the host, on CUDA, by turns. */
                for (int k = 0; k < 1 + on_cuda; k++) {
                    job.device = k ? "cuda" : NULL;
                    job.budget = least_bytes(&job) << (((size_t)(i + 3) + way + (size_t)k) % 2);
                    printf("model %d, layout %d, way %zu: %zu bytes\n", model, i, way, job.budget);
                    const struct curve curve = run(job);
                    assert_same(&expected, &curve);
                }
            }
        }
}

/* What was saved with it is read without it, and the other way round. */
CASE(a_checkpoint_does_not_know_of_offload)
{
    const struct curve expected = run((struct job){.model = MODEL_TIED, .layout = one});

    for (int i = 0; i < 2; i++) {
        char folder[SCRATCH_LEN];
        make_folder(folder);
        run((struct job){.model = MODEL_TIED, .layout = layouts[3], .folder = folder, .stop = 2,
                         .offloads = i});
        const struct curve after = run((struct job){.model = MODEL_TIED, .layout = layouts[8],
                                                    .folder = folder, .offloads = !i});
        assert_memory_equal(&expected.losses[2], &after.losses[2], 2 * sizeof(double));
        assert_memory_equal(expected.values, after.values, sizeof(after.values));
        remove_folder(folder);
    }
}

int main(void)
{
    no_cuda = use_sim_cuda();
    return run_cases(NULL, NULL);
}
