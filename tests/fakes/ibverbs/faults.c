/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const names[FV_FAULTS] = {
    "reorder", "ack", "short", "error", "reg", "modify", "port", "gid", "qp", "device", "twice",
};

static struct {
    uint64_t seed;
    unsigned rates[FV_FAULTS];
    unsigned port_ms;
    unsigned most, struck;
} chance = {.port_ms = 5, .most = UINT32_MAX};

static struct {
    pthread_mutex_t lock;
    char function[32];
    int calls, error;
    pthread_cond_t passed;
    char held[32];
    unsigned turn; /* of those that are held together */
    int waiting;
    bool gave_up;
} ordered = {.lock = PTHREAD_MUTEX_INITIALIZER, .passed = PTHREAD_COND_INITIALIZER};

enum { HELD_S = 30 }; /* a test that waits for what it holds goes on, and fails */

/* ---- by chance -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static bool read_word(const char *word)
{
    const char *value = strchr(word, '=');
    const size_t len = value ? (size_t)(value - word) : 0;

    if (!value)
        return false;
    const uint64_t n = strtoull(value + 1, NULL, 0);
    for (int k = 0; k < FV_FAULTS; k++)
        if (strlen(names[k]) == len && !strncmp(word, names[k], len)) {
            chance.rates[k] = (unsigned)n;
            return true;
        }
    if (!strncmp(word, "seed=", 5))
        chance.seed = n;
    else if (!strncmp(word, "port_ms=", 8))
        chance.port_ms = (unsigned)n;
    else if (!strncmp(word, "most=", 5))
        chance.most = (unsigned)n;
    else
        return false;
    return true;
}

void fv_faults_read(void)
{
    const char *said = getenv("FAKE_VERBS_FAULTS"), *rank = getenv("FAKE_VERBS_RANK");
    char text[512], *save = NULL;

    snprintf(text, sizeof(text), "%s", said ? said : "");
    for (char *w = strtok_r(text, " ,", &save); w; w = strtok_r(NULL, " ,", &save))
        if (!read_word(w))
            fprintf(stderr, "fake verbs: FAKE_VERBS_FAULTS: unknown word \"%s\"\n", w);
    chance.seed = mix(chance.seed * 1024 + (rank ? strtoull(rank, NULL, 0) : 0) + 1);
}

static uint64_t roll(enum fv_fault kind, uint64_t object, uint64_t n)
{
    return mix(mix(chance.seed + (uint64_t)kind) + mix(object * UINT64_C(0x9e3779b97f4a7c15) + n));
}

static bool is_grave(enum fv_fault kind)
{
    return kind == FV_ERROR || kind == FV_PORT || kind == FV_QP || kind == FV_DEVICE;
}

bool fv_strikes(enum fv_fault kind, uint64_t object, uint64_t n)
{
    if (!chance.rates[kind] || roll(kind, object, n) % 1000 >= chance.rates[kind])
        return false;
    if (!is_grave(kind))
        return true;
    if (chance.struck >= chance.most)
        return false;
    chance.struck++;
    return true;
}

unsigned fv_draw(enum fv_fault kind, uint64_t object, uint64_t n, unsigned below)
{
    return (unsigned)(mix(roll(kind, object, n)) % below);
}

unsigned fv_port_ms(void)
{
    return chance.port_ms;
}

/* ---- on demand -------------------------------------------------------------------------------- */

bool fv_fail_call(const char *function, int n, int error)
{
    pthread_mutex_lock(&ordered.lock);
    snprintf(ordered.function, sizeof(ordered.function), "%s", function);
    ordered.calls = n;
    ordered.error = error;
    pthread_mutex_unlock(&ordered.lock);
    return true;
}

int fv_call_error(const char *function)
{
    pthread_mutex_lock(&ordered.lock);
    const bool strikes =
        ordered.calls && !strcmp(ordered.function, function) && --ordered.calls == 0;
    const int error = strikes ? ordered.error : 0;
    pthread_mutex_unlock(&ordered.lock);
    return error;
}

/* Under the lock. */
static void pass_all(void)
{
    ordered.turn++;
    ordered.waiting = 0;
    pthread_cond_broadcast(&ordered.passed);
}

bool fv_hold_call(const char *function)
{
    pthread_mutex_lock(&ordered.lock);
    const bool gave_up = ordered.gave_up;
    snprintf(ordered.held, sizeof(ordered.held), "%s", function ? function : "");
    ordered.gave_up = false;
    pass_all();
    pthread_mutex_unlock(&ordered.lock);
    return !gave_up;
}

int fv_held_calls(void)
{
    pthread_mutex_lock(&ordered.lock);
    const int waiting = ordered.waiting;
    pthread_mutex_unlock(&ordered.lock);
    return waiting;
}

void fv_pass_calls(void)
{
    pthread_mutex_lock(&ordered.lock);
    pass_all();
    pthread_mutex_unlock(&ordered.lock);
}

void fv_wait_if_held(const char *function)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HELD_S;
    pthread_mutex_lock(&ordered.lock);
    const unsigned turn = ordered.turn;
    const bool is_held = !strcmp(ordered.held, function) && !ordered.gave_up;
    ordered.waiting += is_held;
    while (is_held && ordered.turn == turn && !ordered.gave_up)
        ordered.gave_up = pthread_cond_timedwait(&ordered.passed, &ordered.lock, &until) != 0;
    pthread_mutex_unlock(&ordered.lock);
}
