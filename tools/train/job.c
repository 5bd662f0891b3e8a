/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - a job from its beginning to its end, or to the error that ends it.
 */
#include "train/job.h"

#include "launch.h"
#include "train/job_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(struct job *j)
{
    struct summary summary = {0};

    int err = job_joins(j) ? 0 : job_agree(j);
    if (!err)
        err = job_make_parts(j);
    if (!err)
        err = job_watch(j);
    if (!err)
        report_begin(&j->report, j->s, j->text, job_is_first(j));
    uint64_t step = j->s->from.step;
    if (!err && job_joins(j)) {
        step = dp_trainer_next_step(host_trainer(j->host));
        launch_admitted(j->how->rank);
        err = job_admit(j); /* a death meanwhile is one for all */
    }
    if (!err)
        err = job_train(j, step, &summary);
    return err ? err : job_finish(j, &summary);
}

/* If the library has said nothing since `before`, it was the job itself that failed. A rank of a
 * job that survives does not abort the others for want of files or memory: it leaves them. */
static void explain(const struct job *j, int err, struct dp_abort *why)
{
    const char *text = dp_last_error();

    if (!strcmp(text, j->before))
        text = err == DP_ENOMEM  ? "out of memory"
               : err == DP_EIO   ? "its output could not be written"
                                 : dp_strerror(err);
    *why = (struct dp_abort){.rank = j->how ? j->how->rank : 0, .error = err};
    snprintf(why->text, sizeof(why->text), "%s", text);
    if (j->comm && !job_leaves(j->s, err)) {
        dp_comm_abort(j->comm, err, why->text);
        dp_comm_aborted(j->comm, why); /* another rank may have been the first */
        if (why->rank < 0) /* one that is not of this group */
            why->rank = dp_comm_rank(j->comm);
    }
}

int job_run(const struct settings *s, const struct data *data, struct dp_comm *comm,
            const struct dp_comm_config *how, struct dp_abort *why)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j) {
        *why = (struct dp_abort){.error = DP_ENOMEM, .text = "out of memory"};
        return DP_ENOMEM;
    }
    *j = (struct job){.s = s, .text = data, .comm = comm, .how = how};
    job_note_sentence(j);
    int err = run(j);
    if (err)
        explain(j, err, why);
    job_free(j);
    return err;
}
