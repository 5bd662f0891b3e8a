/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - a placement as older releases wrote it, {"dualpipe_placement": 1, "ranks": 4, "nodes":
 * [...], "workers": [...], ...}, becomes lines of text.
 */
#include "command.h"
#include "topo/topo.h"

#include <dualpipe/assignment.h>

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

/* The members of each object that the lines have. */
static const char *const size_keys[] = {"ranks", "replicas", NULL};
static const char *const rate_keys[] = {"intra_gbs", "inter_gbs", "nodes", NULL};
static const char *const node_keys[] = {"id", "kind", "label", "host", "pci", "os_index", "cpus", NULL};
static const char *const port_keys[] = {"number", "rdma", "net", NULL};
static const char *const worker_keys[] = {"replica", "rank", "gpu", "came_as", "memory", "nics", "qps",
                                          NULL};
static const char *const flow_keys[] = {"kind", "from", "to", "bytes", "nic_from", "nic_to", "rail",
                                        "traffic_class", NULL};

static void put_value(const json_t *value, FILE *to)
{
    char *number = NULL;

    for (const char *s = json_string_value(value); s && *s; s++)
        fprintf(to, (unsigned char)*s <= ' ' || strchr("%#\x7f", *s) ? "%%%02x" : "%c",
                (unsigned char)*s);
    for (size_t i = 0; i < json_array_size(value); i++) {
        fputs(i ? "," : "", to);
        put_value(json_array_get(value, i), to);
    }
    if (!json_is_string(value) && !json_is_array(value))
        number = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    fputs(number ? number : "", to);
    free(number);
}

/* What is empty is left out. */
static void put_fields(const json_t *object, const char *const *keys, FILE *to)
{
    for (; *keys; keys++) {
        const json_t *value = json_object_get(object, *keys);
        if (!value || (json_is_string(value) && !json_string_length(value)) ||
            (json_is_array(value) && !json_array_size(value)))
            continue;
        fprintf(to, " %s=", *keys);
        put_value(value, to);
    }
}

static void put_rows(const json_t *list, const char *row, const char *const *keys, FILE *to)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        fputs(row, to);
        put_fields(one, keys, to);
        fputc('\n', to);
        put_rows(json_object_get(one, "ports"), "port", port_keys, to);
    }
}

static void put_file(const json_t *all, FILE *to)
{
    fputs("dualpipe assignment 1\nplacement", to);
    put_fields(all, size_keys, to);
    put_fields(json_object_get(all, "rates"), rate_keys, to);
    fputc('\n', to);
    put_rows(json_object_get(all, "nodes"), "node", node_keys, to);
    put_rows(json_object_get(all, "workers"), "worker", worker_keys, to);
    put_rows(json_object_get(all, "flows"), "flow", flow_keys, to);
    fputs("end\n", to);
}

/* What a reader would refuse is not written. */
static int convert(const char *path, const json_t *all, FILE *to)
{
    struct dp_assignment *s = NULL;
    char *text = NULL, name[4096];
    size_t len;
    FILE *lines = open_memstream(&text, &len);

    if (lines)
        put_file(all, lines);
    snprintf(name, sizeof(name), "%s, as lines of text", path);
    int err = !lines || fclose(lines) ? DP_ENOMEM : dp_assignment_read(text, len, name, &s);
    if (!err)
        fwrite(text, 1, len, to);
    dp_assignment_free(s);
    free(text);
    return err ? err : topo_finish(to);
}

int topo_convert(const char *path, FILE *to)
{
    json_error_t error;
    size_t len;
    char *text = topo_read_file(path, &len);
    json_t *all = text ? json_loadb(text, len, JSON_REJECT_DUPLICATES, &error) : NULL;
    int err = DP_EINVAL;

    if (text && !all)
        command_misused("%s:%d: %s", path, error.line, error.text);
    else if (all && json_integer_value(json_object_get(all, "dualpipe_placement")) != 1)
        command_misused("%s: expected a placement as JSON, {\"dualpipe_placement\": 1, ...}", path);
    else if (all)
        err = convert(path, all, to);
    json_decref(all);
    free(text);
    return err;
}
