/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/hash.h"

#include "base/tensor.h"
#include "comm/lines.h"

#include <stdlib.h>
#include <string.h>

void dp_add_elements(struct dp_text *lines, const DLTensor *tensor)
{
    int64_t elements = dp_tensor_numel(tensor);
    char text[DP_TENSOR_TEXT];
    DLTensor flat = *tensor;

    flat.ndim = 1;
    flat.shape = &elements;
    dp_text_adds(lines, dp_tensor_text(&flat, text));
}

void dp_add_parameters(struct dp_text *lines, const struct dp_parameter *parameters, int32_t count)
{
    dp_text_addf(lines, "number of parameters\t%d\n", count);
    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p = &parameters[i];
        dp_text_addf(lines, "parameter %d\t'%s', ", i, p->name);
        dp_add_elements(lines, p->value);
        dp_text_addf(lines, "%s%s\n", p->flags & DP_PARAMETER_FROZEN ? ", frozen" : "",
                     p->flags & DP_PARAMETER_NO_DECAY ? ", without decay" : "");
    }
}

int dp_agree_on_parameters(struct dp_comm *comm, const struct dp_parameter *parameters, int32_t count)
{
    struct dp_text lines = {0};

    dp_add_parameters(&lines, parameters, count);
    return dp_comm_agree_on_lines(comm, "parameters", &lines);
}

int dp_agree_on_graph(struct dp_comm *comm, const struct dp_graph *g, struct dp_text *options)
{
    char *text = NULL;

    options->failed |= dp_graph_write(g, DP_GRAPH_FORMAT_TEXT, &text, NULL) != 0;
    const char *at = text ? text : "";
    for (int i = 1; *at; i++) {
        const size_t len = strcspn(at, "\n");
        dp_text_addf(options, "mixing graph, line %d\t", i);
        dp_text_add(options, at, len);
        dp_text_adds(options, "\n");
        at += len + (at[len] != '\0');
    }
    free(text);
    return dp_comm_agree_on_lines(comm, "mixing graph and its options", options);
}
