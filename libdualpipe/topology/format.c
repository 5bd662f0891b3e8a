/* SPDX-License-Identifier: Apache-2.0
 *
 * format.c - write and read topologies; what all formats have in common.
 */
#include "config.h" /* memmem */
#include "topology/internal.h"

#include "topology/build.h"

#include "base/fail.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

int dp_topology_write(const struct dp_topology *t, enum dp_topology_format format, char **text,
                      size_t *len)
{
    struct dp_text out = {0};
    int err = 0;

    switch (format) {
    case DP_TOPOLOGY_JSON:
        dp_topo_write_json(t, &out);
        break;
    case DP_TOPOLOGY_NCCL_XML:
        err = dp_topo_write_nccl(t, &out);
        break;
    default:
        return dp_fail(DP_EINVAL, "format: %d, expected DP_TOPOLOGY_JSON or _NCCL_XML", format);
    }
    if (err)
        dp_text_fini(&out);
    return err ? err : dp_text_take(&out, text, len);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Files of hwloc are told from those of NCCL by their first element, which may be preceded by a
 * declaration and comments. */
static enum dp_topology_format detect_xml(const char *text, size_t len)
{
    const char *system = memmem(text, len, "<system", 7), *hwloc = memmem(text, len, "<topology", 9);

    return hwloc && (!system || hwloc < system) ? DP_TOPOLOGY_HWLOC_XML : DP_TOPOLOGY_NCCL_XML;
}

static bool is_text(const char *text, size_t len)
{
    size_t at = 0;

    while (at < len && ((unsigned char)text[at] >= ' ' || strchr("\t\r\n\033", text[at])) &&
           text[at])
        at++;
    return at == len;
}

/* By the first character that is no blank. */
static int detect(const char *text, size_t len, enum dp_topology_format *format)
{
    size_t at = 0;

    while (at < len && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    if (at == len || !is_text(text, len < 4096 ? len : 4096))
        return dp_fail(
            DP_EINVAL,
            "%s, expected JSON, XML of NCCL or hwloc, what nvidia-smi topo -m prints, or "
            "a description",
            at == len ? "nothing is in it" : "it is no text");
    const char *xml = memmem(text, len, "\n<", 2);
    if (xml && text[at] != '<')
        return dp_fail(DP_EINVAL,
                       "'%.*s' stands before the XML, expected nothing before the first '<'",
                       (int)strcspn(text + at, "\r\n"), text + at);
    if (text[at] == '{' || text[at] == '[')
        *format = DP_TOPOLOGY_JSON;
    else if (text[at] == '<')
        *format = detect_xml(text, len);
    else
        *format = memmem(text, len, "GPU0", 4) ? DP_TOPOLOGY_NVIDIA_SMI : DP_TOPOLOGY_SYNTHETIC;
    return 0;
}

static int read_synthetic(const char *text, size_t len, struct dp_topology **out)
{
    char *description = malloc(len + 1);

    if (!description)
        return dp_fail(DP_ENOMEM, "no memory for a description of %zu bytes", len);
    memcpy(description, text, len);
    description[len] = '\0';
    int err = strlen(description) < len
                  ? dp_fail(DP_EINVAL, "a NUL in the text, expected words")
                  : dp_topology_new_synthetic(description, out);
    free(description);
    return err;
}

int dp_topology_read(const char *text, size_t len, enum dp_topology_format format,
                     struct dp_topology **out)
{
    int err = dp_utf8_begin(&text, &len, NULL);

    if (!err && format == DP_TOPOLOGY_AUTO)
        err = detect(text, len, &format);
    if (err)
        return err;
    switch (format) {
    case DP_TOPOLOGY_JSON:
        return dp_topo_read_json(text, len, out);
    case DP_TOPOLOGY_NCCL_XML:
        return dp_topo_read_nccl(text, len, out);
    case DP_TOPOLOGY_HWLOC_XML:
        return dp_topo_read_hwloc(text, len, out);
    case DP_TOPOLOGY_NVIDIA_SMI:
        return dp_topo_read_smi(text, len, out);
    case DP_TOPOLOGY_SYNTHETIC:
        return read_synthetic(text, len, out);
    default:
        return dp_fail(DP_EINVAL, "format: %d, expected one of dp_topology_format", format);
    }
}

int dp_topology_read_hwloc(struct dp_topology **out)
{
    return dp_topo_read_hwloc(NULL, 0, out);
}

bool dp_topology_equal(const struct dp_topology *a, const struct dp_topology *b)
{
    struct dp_text x = {0}, y = {0};

    dp_topo_write_json(a, &x);
    dp_topo_write_json(b, &y);
    const bool is_equal = !x.failed && !y.failed && x.len == y.len && !memcmp(x.data, y.data, x.len);
    dp_text_fini(&x);
    dp_text_fini(&y);
    return is_equal;
}
