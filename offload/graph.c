/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - a graph of nodes as a list of layers. Between two layers cross the tensors that are made
 * before and taken behind, in the order in which they were made; a layer copies those that it does not
 * take, and that are taken later, from one border to the next.
 *
 *      border before   a  c          node d takes a, makes d
 *      border behind      c  d       a ends here, c is passed on
 *
 * Backward the same in reverse. A tensor that the node takes and that is passed on has two gradients:
 * the node's is written first, and that from behind is added to it.
 */
#include "offload/layout.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "device/device_ops.h"

#include <stdlib.h>
#include <string.h>

/* A tensor of the model's input, or of a node's output. */
struct made {
    struct dp_offload_source source;
    const struct dp_tensor_spec *spec;
    int32_t last; /* node that takes it; node_count: it is an output of the model; -1: none */
    bool is_output;
};

/* From a place in one border to a place in the next. */
struct pass {
    int32_t from, to;
    bool taken; /* by the node, too */
};

struct graph_node {
    const struct dp_offload_node *given;
    int32_t in_at[DP_MAX_TENSORS], out_at[DP_MAX_TENSORS]; /* places in the two borders */
    struct pass passes[DP_MAX_TENSORS];
    int32_t pass_count;
    struct dp_border out; /* behind it */
    int32_t before_count; /* tensors of the border before it */
};

struct dp_offload_graph {
    struct dp_offload_graph_config config;
    struct made *made;
    int32_t made_count;
    struct graph_node *nodes;
    struct dp_offload_layer *layers;
};

/* ---- calls ------------------------------------------------------------------------------------ */

/* The host computes in the callback, so it copies and adds there, too. */
static int copy_tensor(const struct dp_offload_call *call, const DLTensor *to, const DLTensor *from)
{
    if (call->stream)
        return dp_device_copy(call->queue, to->data, from->data, dp_tensor_bytes(from));
    memcpy(to->data, from->data, dp_tensor_bytes(from));
    return 0;
}

static int add_tensor(const struct dp_offload_call *call, const DLTensor *to, const DLTensor *from)
{
    const size_t count = (size_t)dp_tensor_numel(from);

    if (call->stream)
        return dp_device_add(call->queue, to->dtype, to->data, from->dtype, from->data, count);
    dpo_add(to->dtype, count, to->data, from->data);
    return 0;
}

static void pick(const DLTensor *all, const int32_t *at, int32_t count, DLTensor *out)
{
    for (int32_t k = 0; k < count; k++)
        out[k] = all[at[k]];
}

static int forward(void *user, const struct dp_offload_call *call, const DLTensor *in, DLTensor *out)
{
    const struct graph_node *n = user;
    const struct dp_offload_layer *layer = &n->given->layer;
    DLTensor takes[DP_MAX_TENSORS], makes[DP_MAX_TENSORS];
    struct dp_offload_call inner = *call;

    pick(in, n->in_at, n->given->in_count, takes);
    pick(out, n->out_at, layer->out->count, makes);
    inner.in = takes;
    int err = layer->ops->forward(layer->user, &inner, takes, makes);
    for (int32_t i = 0; i < n->pass_count && !err; i++)
        err = copy_tensor(call, &out[n->passes[i].to], &in[n->passes[i].from]);
    return err;
}

/* What comes from behind, to the gradient before: gin has what the node has made of it. */
static int pass_back(const struct dp_offload_call *call, const struct pass *p, void *wanted,
                     const DLTensor *gout, DLTensor *gin)
{
    DLTensor *to = &gin[p->from];

    if (!wanted || !gout[p->to].data)
        return 0;
    if (p->taken && to->data)
        return add_tensor(call, to, &gout[p->to]);
    to->data = wanted;
    return copy_tensor(call, to, &gout[p->to]);
}

static int backward(void *user, const struct dp_offload_call *call, const DLTensor *gout, DLTensor *gin)
{
    const struct graph_node *n = user;
    const struct dp_offload_layer *layer = &n->given->layer;
    DLTensor takes[DP_MAX_TENSORS], gmakes[DP_MAX_TENSORS], gtakes[DP_MAX_TENSORS];
    void *wanted[DP_MAX_TENSORS];
    struct dp_offload_call inner = *call;

    pick(call->in, n->in_at, n->given->in_count, takes);
    pick(gout, n->out_at, layer->out->count, gmakes);
    pick(gin, n->in_at, n->given->in_count, gtakes);
    inner.in = takes;
    int err = layer->ops->backward(layer->user, &inner, gmakes, gtakes);
    for (int32_t k = 0; k < n->before_count; k++) {
        wanted[k] = gin[k].data;
        gin[k].data = NULL; /* zeros, unless something comes below */
    }
    for (int32_t k = 0; k < n->given->in_count; k++)
        gin[n->in_at[k]].data = gtakes[k].data;
    for (int32_t i = 0; i < n->pass_count && !err; i++)
        err = pass_back(call, &n->passes[i], wanted[n->passes[i].from], gout, gin);
    return err;
}

static const struct dp_offload_layer_ops trained = {forward, backward}, untrained = {forward, NULL};

/* ---- which tensors there are ------------------------------------------------------------------ */

static struct made *find(const struct dp_offload_graph *g, struct dp_offload_source s)
{
    for (int32_t i = 0; i < g->made_count; i++)
        if (g->made[i].source.node == s.node && g->made[i].source.tensor == s.tensor)
            return &g->made[i];
    return NULL;
}

static void make(struct dp_offload_graph *g, int32_t node, const struct dp_border *border)
{
    for (int32_t k = 0; k < border->count; k++)
        g->made[g->made_count++] =
            (struct made){.source = {node, k}, .spec = &border->tensors[k], .last = -1};
}

static int take(struct dp_offload_graph *g, int32_t node)
{
    const struct dp_offload_node *n = &g->config.nodes[node];

    for (int32_t k = 0; k < n->in_count; k++) {
        struct made *m = find(g, n->in[k]);
        if (!m)
            return dp_fail(DP_EINVAL,
                           "offload: node %d takes tensor %d of node %d, expected one of the input "
                           "(node -1) or of a node before it",
                           node, n->in[k].tensor, n->in[k].node);
        if (m->last == node)
            return dp_fail(DP_EINVAL, "offload: node %d takes tensor %d of node %d twice", node,
                           n->in[k].tensor, n->in[k].node);
        m->last = node;
    }
    return 0;
}

static int check_node(const struct dp_offload_graph_config *c, int32_t node)
{
    const struct dp_offload_node *n = &c->nodes[node];

    if (!n->layer.out || n->layer.out->count < 1 || n->layer.out->count > DP_MAX_TENSORS ||
        n->in_count < 1 || n->in_count > DP_MAX_TENSORS || !n->in)
        return dp_fail(DP_EINVAL, "offload: node %d takes %d tensors and makes %d, expected 1 to %d",
                       node, n->in_count, n->layer.out ? n->layer.out->count : 0, DP_MAX_TENSORS);
    return n->layer.ops && n->layer.ops->forward
               ? 0
               : dp_fail(DP_EINVAL, "offload: node %d has no forward", node);
}

static int find_outputs(struct dp_offload_graph *g)
{
    const struct dp_offload_graph_config *c = &g->config;

    for (int32_t k = 0; k < c->output_count; k++) {
        struct made *m = find(g, c->outputs[k]);
        if (!m || m->is_output)
            return dp_fail(DP_EINVAL,
                           "offload: output %d is tensor %d of node %d, expected one that is made, once",
                           k, c->outputs[k].tensor, c->outputs[k].node);
        m->is_output = true;
        m->last = c->node_count;
    }
    for (int32_t i = 0; i < g->made_count; i++)
        if (g->made[i].last < 0 && g->made[i].source.node >= 0)
            return dp_fail(DP_EINVAL, "offload: tensor %d of node %d is taken by no node",
                           g->made[i].source.tensor, g->made[i].source.node);
    return 0;
}

static int find_tensors(struct dp_offload_graph *g)
{
    const struct dp_offload_graph_config *c = &g->config;
    int err = 0;

    make(g, -1, c->input);
    for (int32_t n = 0; n < c->node_count && !err; n++) {
        err = check_node(c, n);
        if (!err)
            err = take(g, n);
        if (!err)
            make(g, n, c->nodes[n].layer.out);
    }
    return err ? err : find_outputs(g);
}

/* ---- borders ---------------------------------------------------------------------------------- */

struct cut {
    const struct made *tensors[DP_MAX_TENSORS];
    int32_t count;
};

static int32_t place_of(const struct cut *cut, const struct made *m)
{
    int32_t k = 0;

    while (k < cut->count && cut->tensors[k] != m)
        k++;
    return k < cut->count ? k : -1;
}

static int add_to(struct cut *cut, const struct made *m, int32_t node)
{
    if (cut->count == DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL,
                       "offload: more than %d tensors are still taken behind node %d, which is the most "
                       "that a border has",
                       DP_MAX_TENSORS, node);
    cut->tensors[cut->count++] = m;
    return 0;
}

/* What crosses the border behind a node; behind the last one the outputs, in their order. */
static int cut_behind(const struct dp_offload_graph *g, int32_t node, struct cut *out)
{
    const struct dp_offload_graph_config *c = &g->config;
    const bool end = node + 1 == c->node_count;
    int err = 0;

    out->count = 0;
    for (int32_t k = 0; k < c->output_count && end && !err; k++)
        err = add_to(out, find(g, c->outputs[k]), node);
    for (int32_t i = 0; i < g->made_count && !end && !err; i++)
        if (g->made[i].source.node <= node && g->made[i].last > node)
            err = add_to(out, &g->made[i], node);
    return err;
}

static void find_places(struct dp_offload_graph *g, int32_t node, const struct cut *before,
                        const struct cut *behind)
{
    struct graph_node *n = &g->nodes[node];

    n->given = &g->config.nodes[node];
    n->before_count = before->count;
    for (int32_t k = 0; k < n->given->in_count; k++)
        n->in_at[k] = place_of(before, find(g, n->given->in[k]));
    for (int32_t k = 0; k < n->given->layer.out->count; k++)
        n->out_at[k] = place_of(behind, find(g, (struct dp_offload_source){node, k}));
    for (int32_t k = 0; k < behind->count; k++) {
        const int32_t from = place_of(before, behind->tensors[k]);
        bool taken = false;
        for (int32_t i = 0; i < n->given->in_count; i++)
            taken |= n->in_at[i] == from;
        n->out.tensors[k] = *behind->tensors[k]->spec;
        if (from >= 0)
            n->passes[n->pass_count++] = (struct pass){from, k, taken};
    }
    n->out.count = behind->count;
}

/* A sum that the device cannot make would end a step. */
static int check_sums(const struct dp_offload_graph *g)
{
    struct dp_device_stream *stream = NULL;
    int err = dp_device_stream_new(g->config.device, DP_PRIORITY_NORMAL, &stream);

    for (int32_t n = 0; n < g->config.node_count && !err; n++)
        for (int32_t i = 0; i < g->nodes[n].pass_count && !err; i++) {
            const struct pass *p = &g->nodes[n].passes[i];
            const struct dp_tensor_spec *t = &g->nodes[n].out.tensors[p->to];
            const bool adds = p->taken && !t->no_grad && g->config.nodes[n].layer.ops->backward;
            if (adds && dp_device_stream_native(stream) &&
                dp_device_add(stream, t->dtype, NULL, t->dtype, NULL, 0))
                err = dp_fail(DP_EUNSUPPORTED,
                              "offload: gradients of what node %d takes must be added, of %d bits, "
                              "which the device (%s) cannot",
                              n, t->dtype.bits, dp_device_name(g->config.device));
        }
    dp_device_stream_free(stream);
    return err;
}

static int make_layers(struct dp_offload_graph *g)
{
    struct cut before = {.count = 0}, behind;
    int err = 0;

    for (int32_t k = 0; k < g->config.input->count && !err; k++)
        err = add_to(&before, &g->made[k], -1);
    for (int32_t n = 0; n < g->config.node_count && !err; n++) {
        err = cut_behind(g, n, &behind);
        if (err)
            return err;
        find_places(g, n, &before, &behind);
        g->layers[n] = g->config.nodes[n].layer;
        g->layers[n].ops = g->layers[n].ops->backward ? &trained : &untrained;
        g->layers[n].user = &g->nodes[n];
        g->layers[n].out = &g->nodes[n].out;
        before = behind;
    }
    return err ? err : check_sums(g);
}

/* ---- for users -------------------------------------------------------------------------------- */

static int check_config(const struct dp_offload_graph_config *c)
{
    if (!c->device || !c->nodes || c->node_count < 1)
        return dp_fail(DP_EINVAL, "offload: a graph of %d nodes on %s, expected a device and a node",
                       c->node_count, c->device ? dp_device_name(c->device) : "no device");
    if (!c->input || c->input->count < 1 || c->input->count > DP_MAX_TENSORS || !c->outputs ||
        c->output_count < 1 || c->output_count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "offload: a graph with %d inputs and %d outputs, expected 1 to %d",
                       c->input ? c->input->count : 0, c->output_count, DP_MAX_TENSORS);
    return 0;
}

int dp_offload_graph_new(const struct dp_offload_graph_config *config, struct dp_offload_graph **out)
{
    int err = check_config(config);
    struct dp_offload_graph *g = err ? NULL : calloc(1, sizeof(*g));

    if (err)
        return err;
    if (!g)
        return dp_fail(DP_ENOMEM, "offload: no memory for a graph");
    const size_t nodes = (size_t)config->node_count;
    g->config = *config;
    g->made = calloc((nodes + 1) * DP_MAX_TENSORS, sizeof(*g->made));
    g->nodes = calloc(nodes, sizeof(*g->nodes));
    g->layers = calloc(nodes, sizeof(*g->layers));
    err = g->made && g->nodes && g->layers
              ? find_tensors(g)
              : dp_fail(DP_ENOMEM, "offload: no memory for a graph of %zu nodes", nodes);
    if (!err)
        err = make_layers(g);
    if (err)
        dp_offload_graph_free(g);
    else
        *out = g;
    return err;
}

const struct dp_offload_layer *dp_offload_graph_layers(const struct dp_offload_graph *g)
{
    return g->layers;
}

void dp_offload_graph_free(struct dp_offload_graph *g)
{
    if (!g)
        return;
    free(g->made);
    free(g->nodes);
    free(g->layers);
    free(g);
}
