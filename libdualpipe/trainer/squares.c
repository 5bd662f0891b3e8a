/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/internal.h"
#include "trainer/squares.h"

#include "base/fail.h"

#include <dualpipe/optimizer.h>
#include <dualpipe/schedule.h>

#include <stdlib.h>

struct squares {
    struct place *place;
    int32_t most;
    double *there, *here; /* [slots][most] in the place's memory, and where they are read */
    void *room;           /* NULL: the host adds up */
    bool queued[DP_MAX_SLOTS];
};

int squares_new(struct place *p, int32_t most, int slots, struct squares **out)
{
    const size_t bytes = ((size_t)most * (size_t)slots + 1) * sizeof(double);
    struct squares *s = calloc(1, sizeof(*s));
    void *memory[3] = {0};
    int err = s ? 0 : dp_fail(DP_ENOMEM, "no memory for squares of %d gradients", most);

    if (err)
        return err;
    *s = (struct squares){.place = p, .most = most};
    err = place_alloc(p, DP_MEMORY_PINNED, bytes, &memory[0]);
    if (!err && place_device(p))
        err = place_alloc(p, DP_MEMORY_DEVICE, bytes, &memory[1]);
    if (!err && place_device(p))
        err = place_alloc(p, DP_MEMORY_DEVICE, dp_gradient_squares_room(most), &memory[2]);
    s->here = memory[0];
    s->there = memory[1];
    s->room = memory[2];
    if (!err)
        err = place_wait(p);
    if (err)
        squares_free(s);
    else
        *out = s;
    return err;
}

void squares_free(struct squares *s)
{
    if (!s)
        return;
    place_release(s->place, DP_MEMORY_DEVICE, s->room);
    place_release(s->place, DP_MEMORY_DEVICE, s->there);
    place_release(s->place, DP_MEMORY_PINNED, s->here);
    free(s);
}

int squares_queue(struct squares *s, int slot, const struct dp_parameter *list, int32_t count)
{
    const size_t first = (size_t)slot * (size_t)s->most;
    int err = s->room ? dp_gradient_squares_queue(place_stream(s->place), list, count, s->room,
                                                  s->there + first)
                      : 0;

    if (!err && s->room)
        err =
            place_copy(s->place, s->here + first, s->there + first, (size_t)count * sizeof(double));
    s->queued[slot] = s->room && !err;
    return err;
}

int squares_take(struct squares *s, int slot, const struct dp_parameter *list, int32_t count,
                 const double **out)
{
    double *here = s->here + (size_t)slot * (size_t)s->most;
    int err = 0;

    *out = here;
    if (!s->room)
        return dp_gradient_squares(list, count, here);
    if (!s->queued[slot])
        err = squares_queue(s, slot, list, count);
    s->queued[slot] = false;
    const int waited = place_wait(s->place);
    return err ? err : waited;
}
