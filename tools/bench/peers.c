/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - which other programs there are, how they are called, and where in their output the
 * figure stands.
 */
#include "config.h"

#include "bench/peers.h"

#include "bench/bench.h"
#include "bench/peer_process.h"
#include "command.h"

#include <dualpipe/dualpipe.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words of a command that begin with "@" stand for something: @port, that both sides shall meet at;
 * @size of a message in bytes; @times, how many; @warmup, how many before those; @mpi-peer, the
 * program of that name beside this one. */
struct peer {
    const char *name;
    const char *transport;    /* of ours that it stands beside */
    const char *environment;  /* "NAME=VALUE NAME=VALUE" */
    struct peer_way {
        const char *server; /* NULL: the client's command starts both sides */
        const char *client; /* NULL: this test it does not have */
        int column;         /* of the last line of what the client prints, from 0 */
        double factor;      /* that makes us, or GB/s, of it */
    } ways[PEER_TESTS];
};

#define MPI_FLAGS                                                                                  \
    "--allow-run-as-root --bind-to core --map-by core -n 2 --mca pml ob1 --mca btl self,vader "    \
    "--mca btl_vader_single_copy_mechanism "
#define MPI_WAYS(mechanism)                                                                        \
    {                                                                                              \
        {NULL, "mpirun " MPI_FLAGS mechanism " @mpi-peer latency @size @times", 0, 1},              \
        {NULL, "mpirun " MPI_FLAGS mechanism " @mpi-peer stream @size @times", 0, 1},               \
    }

#define UCX_SERVER "ucx_perftest -p @port"
#define UCX_CLIENT "ucx_perftest 127.0.0.1 -p @port -s @size -n @times -w @warmup -f -v -t "
#define UCX_WAYS                                                                                   \
    {                                                                                              \
        {UCX_SERVER, UCX_CLIENT "tag_lat", 3, 1}, /* overall, us */                                \
        {UCX_SERVER, UCX_CLIENT "tag_bw", 5, 1048576e-9}, /* overall, MiB/s */                     \
    }

/* It sends one message at a time only. */
#define FABRIC_COMMAND "fi_pingpong -p tcp -e msg -I @times -S @size "
#define FABRIC_WAYS                                                                                \
    {                                                                                              \
        {FABRIC_COMMAND "-B @port", FABRIC_COMMAND "-P @port 127.0.0.1", 6, 1}, /* us */            \
        {NULL, NULL, 0, 0},                                                                        \
    }

static const struct peer peers[] = {
    {"UCX posix+cma", "shm", "UCX_TLS=posix,cma UCX_WARN_UNUSED_ENV_VARS=n", UCX_WAYS},
    {"UCX posix", "shm", "UCX_TLS=posix UCX_WARN_UNUSED_ENV_VARS=n", UCX_WAYS},
    {"OpenMPI vader+cma", "shm", NULL, MPI_WAYS("cma")},
    {"OpenMPI vader", "shm", NULL, MPI_WAYS("none")},
    {"UCX tcp", "tcp", "UCX_TLS=tcp UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n", UCX_WAYS},
    {"libfabric tcp", "tcp", "FI_PROVIDER=tcp", FABRIC_WAYS},
};
enum { PEERS = sizeof(peers) / sizeof(peers[0]), LEAST_TIMES = 4, SAMPLE_MS = 200 };
_Static_assert(sizeof(peers) / sizeof(peers[0]) <= (size_t)PEERS_MAX, "a run for each");

/* ---- what they say --------------------------------------------------------------------------- */

/* The n-th word of the last line; words end at spaces and commas. */
static bool find_figure(const char *output, int column, double *out)
{
    char last[PEER_OUTPUT_MAX] = "", *word = last, *rest;

    for (const char *line = output; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strcspn(line, "\n"))
            snprintf(last, sizeof(last), "%.*s", (int)strcspn(line, "\n"), line);
    word = strtok_r(last, " ,\t", &rest);
    while (word && column--)
        word = strtok_r(NULL, " ,\t", &rest);
    if (!word)
        return false;
    *out = strtod(word, &rest);
    return !*rest && *out > 0;
}

/* 0, or DP_EIO with the reason in why. */
static int measure(const struct peer_run *r, double *figure, char *why, size_t why_len)
{
    const struct peer_way *way = &r->peer->ways[r->test];
    const struct peer_command command = {.server = way->server, .client = way->client,
                                         .environment = r->peer->environment, .size = r->size,
                                         .times = r->times};
    char output[PEER_OUTPUT_MAX];
    int err = peer_process_run(&command, output, why, why_len);

    if (err)
        return err;
    if (!find_figure(output, way->column, figure)) {
        snprintf(why, why_len, "no figure in what it printed: %.120s", output);
        return DP_EIO;
    }
    *figure *= way->factor;
    return 0;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* How many messages take the time of a sample, by what a few have told. */
static int find_times(const struct peer_run *r, double figure)
{
    const double one_us =
        r->test == PEER_LATENCY ? 2 * figure : (double)r->size / (figure * 1e3);
    const double times = SAMPLE_MS * 1e3 / one_us;

    return times < LEAST_TIMES ? LEAST_TIMES : times > 1e7 ? (int)1e7 : (int)times;
}

/* So few that they take no time, and so many that what is slow only once counts little. */
static int first_times(enum peer_test test, size_t size)
{
    return test == PEER_LATENCY ? 4096 : size > 8 << 20 ? 8 : 256;
}

/* Do it once, and see how often it must. */
static int find_out(struct peer_run *r, char *why, size_t why_len)
{
    double figure;
    int err = measure(r, &figure, why, why_len);

    if (!err)
        r->times = find_times(r, figure);
    return err;
}

int peers_find(const char *transport, enum peer_test test, size_t size,
               struct peer_run runs[PEERS_MAX])
{
    static bool is_left_out[PEERS];
    int count = 0;

    for (int i = 0; i < PEERS; i++) {
        const struct peer *p = &peers[i];
        char why[256];
        if (is_left_out[i] || strcmp(p->transport, transport) || !p->ways[test].client ||
            !peer_process_is_installed(p->ways[test].client))
            continue;
        runs[count] = (struct peer_run){p, p->name, test, size, first_times(test, size)};
        is_left_out[i] = find_out(&runs[count], why, sizeof(why));
        if (is_left_out[i])
            command_broke("%s is left out: %s", p->name, why);
        else
            count++;
    }
    return count;
}

int peer_sample(void *user, double *figures)
{
    const struct peer_run *r = user;
    char why[256];
    int err = measure(r, &figures[0], why, sizeof(why));

    if (err)
        command_broke("%s: %s", r->name, why);
    return err;
}
