/* SPDX-License-Identifier: Apache-2.0
 *
 * example_quick.c - learn y = 16 x with DualPipe on an even number of processes: a stage is a factor.
 */
#include <dualpipe/dualpipe.h>
#include <stdio.h>

enum { MB = 16, STEPS = 60 };

static int start(void *user, int stage, float *w) { (void)user, (void)stage; return *w = 1.5f, 0; }

static int forward(void *user, const float *w, const float *x, float *y)
{
    (void)user;
    return *y = *w * *x, 0;
}

static int backward(void *user, const float *w, const float *x, const float *gy, float *gx, float *gw)
{
    (void)user;
    if (gx) *gx = *w * *gy;
    return *gw += *gy * *x, 0;
}

static double loss(void *user, const float *y, const float *label, float *gy)
{
    (void)user;
    if (gy) *gy = *y - *label;
    return 0.5 * (*y - *label) * (*y - *label);
}

int main(int argc, char **argv)
{
    struct dp_quick_model model = {.schedule = argc > 1 ? argv[1] : "dualpipe", .microbatches = MB,
        .values = 1, .parameters = 1, .label_values = 1, .start = start, .forward = forward,
        .backward = backward, .loss = loss};
    struct dp_quick *quick;
    float x[MB], y[MB], *w;
    double now = 0;
    int stage;
    for (int i = 0; i < MB; i++) y[i] = 16 * (x[i] = (float)(i + 1) / MB);
    if (dp_quick_new(&model, &quick)) return 1;
    for (int i = 0; i < STEPS; i++)
        if (dp_quick_step(quick, x, y, 0.02f, &now)) return 1;
    for (int i = 0; (w = dp_quick_parameters(quick, i, &stage)); i++)
        printf("stage %d: %.4f, loss %.4f\n", stage, *w, now);
    dp_quick_free(quick);
    return 0;
}
