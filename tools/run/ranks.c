/* SPDX-License-Identifier: Apache-2.0
 *
 * ranks.c - the numbers of processes. A placement says which rank's work is best done at which place,
 * and a process cannot go to another place, so its number changes. torchrun tells a program its number
 * by RANK; which GPU it has, LOCAL_RANK, stays. MPI and Slurm number their processes themselves.
 */
#include "config.h"

#include "run/run.h"

#include "command.h"

#include <dualpipe/assignment.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char part[] = "ranks";

static const char *host_of(const struct dp_assignment *s, int32_t worker)
{
    return dp_assignment_text(s, s->nodes[s->workers[worker].gpu].host);
}

/* Rank 0 has the store that all others connect to at MASTER_ADDR, unless torchrun's agent has it. */
static bool stays_at_master(const struct dp_assignment *s)
{
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");

    return (agent && !strcmp(agent, "True")) ||
           !strcmp(host_of(s, 0), host_of(s, dp_assignment_find(s, 0)));
}

static bool is_in_order(const struct dp_assignment *s)
{
    for (int32_t w = 0; w < s->worker_count; w++)
        if (s->workers[w].process != w)
            return false;
    return true;
}

static bool is_numbered(void)
{
    const char *set = getenv("DUALPIPE_PLACEMENT_NUMBERED");

    return set && strcmp(set, "0") != 0;
}

/* Why ranks stay, in why[RUN_WORDS_LEN]; the same on every rank. */
static bool can_number(const struct dp_assignment *s, const struct dp_process *process, char *why)
{
    why[0] = '\0';
    if (strcmp(process->launcher, "torchrun") != 0)
        snprintf(why, RUN_WORDS_LEN, "as %s numbers them: only torchrun's can be changed",
                 process->launcher);
    else if (is_numbered())
        snprintf(why, RUN_WORDS_LEN, "as they are: DUALPIPE_PLACEMENT_NUMBERED is set already");
    else if (process->size != s->worker_count)
        snprintf(why, RUN_WORDS_LEN, "as they came: %d processes, and the placement is for %d",
                 process->size, s->worker_count);
    else if (s->replicas > 1)
        snprintf(why, RUN_WORDS_LEN,
                 "as they came: how the job numbers its %d replicas is not known", s->replicas);
    else if (is_in_order(s))
        snprintf(why, RUN_WORDS_LEN, "as they came, which is the order of the placement");
    else if (!stays_at_master(s))
        snprintf(why, RUN_WORDS_LEN,
                 "as they came: rank 0 would go to %s, and the others look for it at MASTER_ADDR",
                 host_of(s, 0));
    return !why[0];
}

static int number(const struct dp_assignment *s, struct dp_process *process, struct run_settings *out)
{
    const int32_t worker = dp_assignment_find(s, process->rank);
    char text[16];

    snprintf(text, sizeof(text), "%d", worker);
    if (setenv("RANK", text, 1) || setenv("DUALPIPE_PLACEMENT_NUMBERED", "1", 1))
        return command_broke("cannot set RANK: %s", strerror(errno));
    run_say(out, part, "by the placement: rank %d is here, where %d was", worker, process->rank);
    process->rank = worker;
    return 0;
}

static bool is_own(const char *command)
{
    const char *slash = strrchr(command, '/');

    return !strcmp(slash ? slash + 1 : command, "dualpipe");
}

int run_number(const struct run_values *v, const char *command, struct dp_process *process,
               struct run_settings *s)
{
    struct dp_assignment *assignment;
    char why[RUN_WORDS_LEN];
    int status = 0;

    if (!v->placement || !process->launcher)
        return 0;
    if (v->no_reorder || is_own(command)) {
        run_say(s, part, "%s", v->no_reorder ? "as they came: --no-reorder"
                                             : "as they came: dualpipe places its own itself");
        return 0;
    }
    if (dp_assignment_load(v->placement, &assignment))
        return EXIT_USAGE; /* said */
    if (can_number(assignment, process, why))
        status = number(assignment, process, s);
    else
        run_say(s, part, "%s", why);
    dp_assignment_free(assignment);
    return status;
}
