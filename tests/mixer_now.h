/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_now.h - a mixer's report as a value.
 */
#ifndef DP_TESTS_MIXER_NOW_H
#define DP_TESTS_MIXER_NOW_H

#include <dualpipe/mixer.h>

static inline struct dp_mixer_report mixer_now(const struct dp_mixer *mixer)
{
    struct dp_mixer_report report;

    dp_mixer_report(mixer, &report);
    return report;
}

#endif
