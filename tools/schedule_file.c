/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule_args.h"

#include "command.h"
#include "files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int read_file(const char *path, char **text, size_t *len)
{
    *text = input_read(path, INPUT_MOST, len);
    return *text ? 0 : command_misused("--file %s: %s", path, input_error(errno));
}

/* Blanks, empty lines and lines of comment. */
static size_t skip_comments(const char *text, size_t len)
{
    size_t at = 0;

    for (;;) {
        while (at < len && strchr(" \t\r\n", text[at]))
            at++;
        if (at == len || text[at] != '#')
            return at;
        while (at < len && text[at] != '\n')
            at++;
    }
}

/* "0F0" or "(0F0;": the kind that the other formats begin with has no capital letter. */
static bool begins_as_pytorch(const char *text, size_t len)
{
    size_t at = 0, digits = 0;

    while (at < len && strchr(" \t,\"", text[at]))
        at++;
    while (at + digits < len && text[at + digits] >= '0' && text[at + digits] <= '9')
        digits++;
    return at < len && (text[at] == '(' || (digits && at + digits < len &&
                                            text[at + digits] >= 'A' && text[at + digits] <= 'Z'));
}

/* A JSON text begins with a brace; a CSV has a comma in its first line, text never. */
static enum dp_format detect_format(const char *text, size_t len)
{
    size_t at = skip_comments(text, len);

    if (begins_as_pytorch(text + at, len - at))
        return DP_FORMAT_PYTORCH;

    if (at < len && text[at] == '{')
        return DP_FORMAT_JSON;
    for (; at < len && text[at] != '\n'; at++)
        if (text[at] == ',')
            return DP_FORMAT_CSV;
    return DP_FORMAT_TEXT;
}

int schedule_file_read(const char *path, struct dp_schedule **out)
{
    char *text;
    size_t len;
    int status = read_file(path, &text, &len);

    if (status)
        return status;
    command_mute(true);
    int err = dp_schedule_read(text, len, detect_format(text, len), out);
    free(text);
    return command_read(path, err);
}
