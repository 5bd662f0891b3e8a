/* SPDX-License-Identifier: Apache-2.0
 *
 * train.c - `dualpipe train`: check what was asked for, start the ranks, run the job on each.
 */
#include "command.h"
#include "commands.h"
#include "launch.h"
#include "train/data.h"
#include "train/job.h"
#include "train/memory.h"
#include "train/report.h"
#include "train/sample.h"
#include "train/settings.h"

#include <dualpipe/survival.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct run {
    struct settings settings;
    struct data data;
    bool apart;  /* ranks were started apart from each other */
    bool joined; /* this rank has found the others */
};

/* A failure is reported once, by the process that knows the results of the other ranks. */
static void print_but_errors(void *user, enum dp_log_level level, const char *line)
{
    (void)user;
    if (level != DP_LOG_ERROR)
        fprintf(stderr, "dualpipe: %s\n", line);
}

/* Before anything is allocated: memory is to come from there, too. */
static int bind_rank(const struct dp_assignment *assignment, int process)
{
    return dp_assignment_bind(assignment, dp_assignment_find(assignment, process));
}

static void tell_why(int err, int rank, struct dp_abort *why)
{
    *why = (struct dp_abort){.rank = rank, .error = err};
    snprintf(why->text, sizeof(why->text), "%s", dp_last_error());
}

static int run_rank(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct run *run = user;
    struct dp_comm *comm;

    dp_log_set(print_but_errors, NULL, DP_LOG_DEFAULT);
    int err = run->settings.assignment ? bind_rank(run->settings.assignment, config->rank) : 0;
    if (!err)
        err = launch_join(config, &comm);
    if (err) {
        tell_why(err, config->rank, why);
        return err;
    }
    run->joined = true;
    if (run->apart) /* before only some of them wait to survive */
        err = dp_comm_agree(comm, "--survive (1: yes, 0: no)", run->settings.how.survive);
    if (!err && run->settings.how.survive)
        err = dp_comm_survive(comm);
    if (err)
        tell_why(err, config->rank, why);
    else
        err = job_run(&run->settings, &run->data, comm, config, why);
    if (job_leaves(&run->settings, err) || (err && !dp_comm_is_alive(comm, dp_comm_rank(comm))))
        launch_excluded(config->rank);
    dp_comm_close(comm);
    return err;
}

static int run_alone(struct run *run)
{
    struct dp_abort why;

    launch_alone();
    dp_log_set(print_but_errors, NULL, DP_LOG_DEFAULT);
    if (!job_run(&run->settings, &run->data, NULL, NULL, &why))
        return EXIT_OK;
    return command_broke("%s", why.text);
}

/* One rank of a job that was started from outside. If it cannot join, for a port that is taken or
 * another secret, it was started wrongly. */
static int run_started(struct run *run, struct dp_comm_config *config)
{
    struct dp_abort why;

    launch_alone();
    run->apart = true;
    if (settings_transport(&run->settings))
        config->transport = settings_transport(&run->settings);
    int err = run_rank(run, config, &why);
    if (!err)
        return EXIT_OK;
    command_broke("rank %d failed: %s", why.rank, why.text);
    return run->joined || err == DP_ETIMEDOUT ? EXIT_FAILED : EXIT_USAGE;
}

/* ---- the lock ---------------------------------------------------------------------------------- */

enum { TRIES = 300, TRY_MS = 10 }; /* a job that was killed may still be ending */

static bool is_locked(int fd)
{
    int tries = 0;

    while (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        if (++tries == TRIES)
            return true;
        else
            nanosleep(&(struct timespec){.tv_nsec = TRY_MS * 1000000L}, NULL);
    return false;
}

/* For the one that comes second: "process 1234 on HOST". */
static bool sign(int fd)
{
    char host[HOST_NAME_MAX + 1] = "";

    gethostname(host, HOST_NAME_MAX);
    return !ftruncate(fd, 0) && dprintf(fd, "process %ld on %s", (long)getpid(), host) > 0;
}

/* One job at a time saves below a folder: two of them would name their files alike, and a checkpoint of
 * the one have files of the other. Make the folder if it is not there, and by the first rank lock
 * DIR/.lock, on every machine that sees the folder. The lock is that of this process and of those that
 * it forks, and ends with the last of them. On a file system without locks there is none. What
 * permissions do not tell (a file system that is full, or takes no files) is known before any step is
 * taken. false, after one line, if the folder cannot be written or another job has it. */
static bool lock_folder(const char *dir, bool is_first)
{
    char path[CHECKPOINT_PATH], other[HOST_NAME_MAX + 64] = "";

    mkdir(dir, 0777); /* if it fails, so does open */
    errno = ENAMETOOLONG;
    int fd = snprintf(path, sizeof(path), "%s/.lock", dir) >= (int)sizeof(path)
                 ? -1
                 : open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    const bool is_open = fd >= 0, is_taken = is_open && is_first && is_locked(fd);
    if (is_open && !is_first) {
        close(fd);
        return true;
    }
    if (is_open && !is_taken && sign(fd))
        return true;
    if (!is_taken)
        return command_misused("--save %s: %s; expected a folder that can be written, with a file .lock",
                               dir, strerror(errno)), false;
    if (read(fd, other, sizeof(other) - 1) < 1)
        snprintf(other, sizeof(other), "a process");
    command_misused("--save %s: another job saves there, %s; expected a folder that no other job saves "
                    "to", dir, other);
    close(fd);
    return false;
}

/* ---- the command ------------------------------------------------------------------------------ */

static int run_all(struct run *run, struct dp_comm_config *started)
{
    const struct settings *s = &run->settings;
    struct memory_limits limits;

    memory_limits_read("", &limits);
    const int status = memory_check(s, started->size ? 1 : settings_started(s), &limits);
    if (status)
        return status;
    if (started->size && s->restarts)
        return command_misused("--restart: expected ranks that this command starts; these were started "
                               "from outside");
    if (s->how.checkpoint.folder && !lock_folder(s->how.checkpoint.folder, !started->rank))
        return EXIT_USAGE;
    if (settings_started(s) == 1)
        return run_alone(run);
    if (started->size)
        return run_started(run, started);
    if (s->how.survive)
        return launch_survivors(settings_started(s), (int)s->port, settings_transport(s),
                                (int)s->restarts, run_rank, run);
    return launch_ranks(settings_processes(s), (int)s->port, settings_transport(s), run_rank, run);
}

/* --prompt: nothing is learned. */
static int run_prompt(const struct settings *s)
{
    const struct sample_spec spec = {.count = (size_t)s->sample,
                                     .temperature = s->temperature,
                                     .prompt = s->prompt,
                                     .path = s->from.path};
    uint8_t *text = malloc(spec.count + 1);
    int err = text ? sample_write(&s->model, &spec, text) : DP_ENOMEM;

    if (!err)
        report_sample(s, text, spec.count);
    free(text);
    if (!err)
        return EXIT_OK;
    command_failed(err);
    return EXIT_FAILED; /* a damaged checkpoint is no mistake of the command line */
}

int run_train(int argc, char **argv)
{
    struct dp_comm_config started = {0};
    struct run run = {0};
    const char *why;
    int status;

    int err = dp_comm_config_from_env(&started);
    if (err && err != DP_ENOENT)
        return command_failed(err);
    if (!settings_parse(argc, argv, started.size, &run.settings, &status))
        return status;
    const struct settings *s = &run.settings;
    status = EXIT_USAGE;
    if (!blas_begin(&why)) {
        status = command_broke("%s", why);
    } else if (s->prompt) {
        status = run_prompt(s);
    } else if (data_open(s->data.items, s->data.count, s->model.context, s->model.seed,
                         &run.data)) {
        status = run_all(&run, &started);
        data_close(&run.data);
    }
    settings_fini(&run.settings);
    return status;
}
