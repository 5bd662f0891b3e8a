/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/optimizer.h>

struct dp_loss_scale dp_loss_scale_defaults(void)
{
    return (struct dp_loss_scale){
        .scale = 65536,
        .growth = 2,
        .backoff = 0.5,
        .interval = 2000,
        .least = 1,
        .most = 0x1p24,
    };
}

static double within(const struct dp_loss_scale *s, double scale)
{
    if (scale < s->least)
        return s->least;
    return scale > s->most ? s->most : scale;
}

void dp_loss_scale_update(struct dp_loss_scale *s, bool overflow)
{
    if (overflow) {
        s->scale = within(s, s->scale * s->backoff);
        s->good = 0;
    } else if (++s->good >= s->interval) {
        s->scale = within(s, s->scale * s->growth);
        s->good = 0;
    }
}
