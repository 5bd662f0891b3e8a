/* SPDX-License-Identifier: Apache-2.0
 *
 * json_scan.h - a JSON text, token by token. It allocates nothing and knows the line of every token,
 * so that what a value means can be refused with the place where it stands. For what lives in other
 * people's processes, where jansson may not follow: placements and tables of the tuner. Measured with
 * the placement of 4096 workers, 4.7 MB, which every one of them reads when it starts: 36 ms of CPU time
 * and 10 MiB, file included, where jansson took 135 ms and 47 MiB more. Everything else uses
 * base/json.h.
 *
 *      struct dp_json_scan j = dp_json_scan_begin(text, len);
 *      while ((type = dp_json_scan_next(&j)) > DP_SCAN_END)
 *          ... j.text is the key, the string or the number
 *      if (type == DP_SCAN_BAD)
 *          dp_fail(DP_EINVAL, "%s:%d: %s", name, j.line, j.why);
 */
#ifndef DP_BASE_JSON_SCAN_H
#define DP_BASE_JSON_SCAN_H

#include <dualpipe/dualpipe.h>

enum dp_scan_type {
    DP_SCAN_BAD, /* why says what was expected */
    DP_SCAN_END, /* of the text, behind its one value */
    DP_SCAN_OBJECT,
    DP_SCAN_OBJECT_END,
    DP_SCAN_LIST,
    DP_SCAN_LIST_END,
    DP_SCAN_KEY,
    DP_SCAN_STRING,
    DP_SCAN_NUMBER, /* as it is spelt */
    DP_SCAN_WORD    /* true, false, null */
};

enum { DP_SCAN_TEXT = 256, DP_SCAN_DEPTH = 32 };

struct dp_json_scan {
    const char *at, *end;
    int line; /* of the token */
    char text[DP_SCAN_TEXT];
    const char *why;
    int state, depth;
    bool is_list[DP_SCAN_DEPTH];
};

struct dp_json_scan dp_json_scan_begin(const char *text, size_t len);
enum dp_scan_type dp_json_scan_next(struct dp_json_scan *j);

#endif
