/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - which other programs there are, how they are called, and where in their output the
 * figure stands.
 */
#include "config.h"

#include "tests/bench/peers.h"

#include "bench/bench.h"
#include "tests/bench/peer_process.h"
#include "command.h"

#include <dualpipe/dualpipe.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words of a command and of an order that begin with "@" stand for something: @port, that both
 * sides shall meet at; @size of a message in bytes; @times, how many; @warmup, how many before
 * those;
 * @mpi-peer, the program of that name beside this one. */
struct peer {
    const char *name;
    const char *transport;   /* of ours that it stands beside */
    const char *environment; /* "NAME=VALUE NAME=VALUE" */
    /* What starts both sides, if it lives and takes orders; else NULL. server NULL: the client's
     * command starts both. */
    const char *server, *client;
    struct peer_way {
        const char *order;           /* if it lives; NULL: this test it does not have */
        const char *server, *client; /* else; the same */
        int column;    /* of the last line of what the client prints, or of the answer; from 0 */
        double factor; /* that makes us, or GB/s, of it */
    } ways[PEER_TESTS];
};

#define MPI(mechanism)                                                                             \
    NULL,                                                                                          \
        "mpirun --allow-run-as-root --bind-to core --map-by core -n 2 --mca pml ob1 --mca btl "    \
        "self,vader --mca btl_vader_single_copy_mechanism " mechanism " @mpi-peer",                \
    {                                                                                              \
        {"latency @size @times @warmup", NULL, NULL, 0, 1},                                        \
            {"stream @size @times @warmup", NULL, NULL, 0, 1},                                     \
    }

/* It reads the tests of a batch from its standard input, both sides the same; what comes first in a
 * line is the test's name. */
#define UCX_FLAGS "-p @port -f -v -b /dev/stdin"
#define UCX_LOAD  " -s @size -n @times -w @warmup"
#define UCX                                                                                        \
    "ucx_perftest " UCX_FLAGS, "ucx_perftest 127.0.0.1 " UCX_FLAGS,                                \
    {                                                                                              \
        {"turn -t tag_lat" UCX_LOAD, NULL, NULL, 4, 1},             /* overall, us */              \
            {"turn -t tag_bw" UCX_LOAD, NULL, NULL, 6, 1048576e-9}, /* overall, MiB/s */           \
    }

/* It sends one message at a time only. */
#define FABRIC_COMMAND "fi_pingpong -p tcp -e msg -I @times -S @size "
#define FABRIC                                                                                     \
    NULL, NULL,                                                                                    \
    {                                                                                              \
        {NULL, FABRIC_COMMAND "-B @port", FABRIC_COMMAND "-P @port 127.0.0.1", 6, 1}, /* us */     \
    }

static const struct peer peers[] = {
    {"UCX posix+cma", "shm", "UCX_TLS=posix,cma UCX_WARN_UNUSED_ENV_VARS=n", UCX},
    {"UCX posix", "shm", "UCX_TLS=posix UCX_WARN_UNUSED_ENV_VARS=n", UCX},
    {"OpenMPI vader+cma", "shm", NULL, MPI("cma")},
    {"OpenMPI vader", "shm", NULL, MPI("none")},
    {"UCX tcp", "tcp", "UCX_TLS=tcp UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n", UCX},
    {"libfabric tcp", "tcp", "FI_PROVIDER=tcp", FABRIC},
};
enum { PEERS = sizeof(peers) / sizeof(peers[0]), LEAST_TIMES = 4 };

/* What there is of each. */
static struct state {
    bool is_left_out;
    struct peer_command command;
    struct peer_process *alive; /* or NULL */
} states[PEERS];

static struct state *state_of(const struct peer_run *r)
{
    return &states[r->peer - peers];
}

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

struct answer {
    int column;
    double figure;
};

static bool is_answer(void *user, const char *line)
{
    struct answer *a = user;

    return find_figure(line, a->column, &a->figure);
}

static int measure_alive(const struct peer_run *r, const struct peer_way *way, double *figure,
                         char *why, size_t why_len)
{
    struct answer answer = {.column = way->column};
    const struct peer_load load = {r->size, r->times};
    int err =
        peer_process_order(state_of(r)->alive, way->order, load, is_answer, &answer, why, why_len);

    *figure = answer.figure;
    return err;
}

static int measure_once(const struct peer_run *r, const struct peer_way *way, double *figure,
                        char *why, size_t why_len)
{
    const struct peer_command command = {
        .server = way->server, .client = way->client, .environment = r->peer->environment};
    char output[PEER_OUTPUT_MAX];
    int err =
        peer_process_run(&command, (struct peer_load){r->size, r->times}, output, why, why_len);

    if (!err && !find_figure(output, way->column, figure)) {
        snprintf(why, why_len, "no figure in what it printed: %.120s", output);
        err = DP_EIO;
    }
    return err;
}

/* 0, or DP_EIO with the reason in why. */
static int measure(const struct peer_run *r, double *figure, char *why, size_t why_len)
{
    const struct peer_way *way = &r->peer->ways[r->test];
    int err = way->order ? measure_alive(r, way, figure, why, why_len)
                         : measure_once(r, way, figure, why, why_len);

    if (!err)
        *figure *= way->factor;
    return err;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* How many messages take the time of a turn, by what a few have told. */
static int find_times(const struct peer_run *r, double figure, int turn_ms)
{
    const double one_us = r->test == PEER_LATENCY ? 2 * figure : (double)r->size / (figure * 1e3);
    const double times = turn_ms * 1e3 / one_us;

    return times < LEAST_TIMES ? LEAST_TIMES : times > 1e7 ? (int)1e7 : (int)times;
}

/* So few that they take no time, and so many that what is slow only once counts little. */
static int first_times(enum peer_test test, size_t size)
{
    return test == PEER_LATENCY ? 4096 : size > 8 << 20 ? 8 : 256;
}

/* Start it, unless it lives already. */
static int see_alive(const struct peer_run *r, char *why, size_t why_len)
{
    struct state *state = state_of(r);

    if (!r->peer->client || state->alive)
        return 0;
    state->command = (struct peer_command){r->peer->server, r->peer->client, r->peer->environment};
    return peer_process_open(&state->command, &state->alive, why, why_len);
}

/* Do it once, and see how often it must. */
static int find_out(struct peer_run *r, int turn_ms, char *why, size_t why_len)
{
    double figure;
    int err = see_alive(r, why, why_len);

    if (!err)
        err = measure(r, &figure, why, why_len);
    if (!err)
        r->times = find_times(r, figure, turn_ms);
    return err;
}

static bool can_do(const struct peer *p, enum peer_test test)
{
    const struct peer_way *way = &p->ways[test];

    return (way->order || way->client) &&
           peer_text_is_installed(way->order ? p->client : way->client);
}

static void leave_out(struct state *state, const char *name, const char *why)
{
    state->is_left_out = true;
    peer_process_close(state->alive);
    state->alive = NULL;
    command_broke("%s is left out: %s", name, why);
}

int peers_find(const char *transport, enum peer_test test, size_t size, int turn_ms,
                      struct peer_run runs[PEERS_MAX])
{
    int count = 0;

    for (int i = 0; i < PEERS && count < PEERS_MAX; i++) {
        const struct peer *p = &peers[i];
        char why[256];
        if (states[i].is_left_out || strcmp(p->transport, transport) || !can_do(p, test))
            continue;
        runs[count] = (struct peer_run){p, p->name, test, size, first_times(test, size)};
        if (find_out(&runs[count], turn_ms, why, sizeof(why)))
            leave_out(&states[i], p->name, why);
        else
            count++;
    }
    return count;
}

int peers_turn(const struct peer_run *r, double *figure)
{
    char why[256];
    int err = measure(r, figure, why, sizeof(why));

    if (err)
        command_broke("%s: %s", r->name, why);
    return err;
}

int64_t peers_cpu_ns(void)
{
    int64_t ns = 0;

    for (int i = 0; i < PEERS; i++)
        if (states[i].alive)
            ns += peer_process_cpu_ns(states[i].alive);
    return ns;
}

void peers_end(void)
{
    for (int i = 0; i < PEERS; i++) {
        peer_process_close(states[i].alive);
        states[i].alive = NULL;
    }
}
