/* SPDX-License-Identifier: Apache-2.0
 *
 * curve.h - the loss and the consensus of a run over its time, as SVG.
 */
#ifndef DP_TOOLS_MIX_CURVE_H
#define DP_TOOLS_MIX_CURVE_H

#include <dualpipe/mixing.h>

#include <stdio.h>

/* runs[0]: of the graph, runs[1]: the same with an all-reduce. */
void mix_draw_curves(FILE *to, const struct dp_graph *g, const struct dp_mixing_run runs[2]);

#endif
