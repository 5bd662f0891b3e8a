/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/plan.h"

#include <stdio.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* What may be together; those that end nothing by themselves first. */
static const char *const kinds[] = {
    "reorder=50 ack=50 short=200",
    "reorder=300 short=50",
    "ack=300 gid=5",
    "twice=20 reorder=50 ack=50",
    "reorder=20 ack=20 error=5 most=1",
    "ack=50 qp=5 most=1",
    "reorder=50 short=100 error=20 most=2",
    "reorder=50 port=5 port_ms=1 most=2",
    "short=50 port=5 port_ms=50 most=1",
    "reg=20 short=20",
    "modify=50 reorder=20",
    "error=10 port=5 qp=5 reg=5 modify=5 reorder=20 ack=20 short=20 most=3",
    "reorder=20 device=2 most=1",
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), MILD = 6 };

void plan_make(uint64_t seed, const char *faults, struct plan *out)
{
    const unsigned kind = seed % KINDS, shape = seed / KINDS % PLAN_SHAPES;

    *out = (struct plan){
        .seed = seed,
        .is_mild = !faults && kind < MILD,
        .is_fused = shape & 1,
        .qps = shape > 1 ? 3 : 1,
        .splits = shape > 1,
        .adaptive = shape == 3,
        .is_for_gpus = seed % 3 == 1,
    };
    snprintf(out->faults, sizeof(out->faults), "seed=%llu %s", (unsigned long long)seed,
             faults ? faults : kinds[kind]);
}

static uint64_t draw(const struct plan *p, int sender, int connection, int i, int what)
{
    const uint64_t place = (uint64_t)(((sender * 64 + connection) * 1024 + i) * 8 + what);

    return mix(mix(p->seed + 1) ^ mix(place + 1));
}

int plan_group(const struct plan *p, int sender, int connection, int i)
{
    int at = 0, n = 1;

    while (at <= i) {
        n = (int)(draw(p, sender, connection, at, 0) % (2 * PLAN_GROUP)) - PLAN_GROUP + 1;
        n = n < 1 ? 1 : n;
        n = n > PLAN_MESSAGES - at ? PLAN_MESSAGES - at : n;
        if (at == i)
            return n;
        at += n;
    }
    return n;
}

/* Its place in the group that it belongs to. */
static int place_of(const struct plan *p, int sender, int connection, int i)
{
    int at = 0, n;

    while (at + (n = plan_group(p, sender, connection, at)) <= i)
        at += n;
    return i - at;
}

static size_t length(uint64_t x)
{
    static const size_t sizes[] = {0, 1, 8, 127, 128, 129, 1000, 4096, 8192, PLAN_BYTES};
    const unsigned which = x % 16;

    return which < 10 ? sizes[which] : (x >> 8) % (PLAN_BYTES + 1);
}

struct plan_message plan_message(const struct plan *p, int sender, int connection, int i)
{
    const size_t size = length(draw(p, sender, connection, i, 1));
    const size_t more = draw(p, sender, connection, i, 2) % 4 ? 0 : PLAN_BYTES - size;

    return (struct plan_message){size, size + more, 7 + place_of(p, sender, connection, i)};
}

void plan_fill(const struct plan *p, int sender, int connection, int i, unsigned char *out)
{
    const size_t size = plan_message(p, sender, connection, i).size;
    uint64_t word = draw(p, sender, connection, i, 3);

    for (size_t at = 0; at < size; at += sizeof(word), word = word * UINT64_C(0x9e3779b97f4a7c15) + 1)
        memcpy(out + at, &word, size - at < sizeof(word) ? size - at : sizeof(word));
}
