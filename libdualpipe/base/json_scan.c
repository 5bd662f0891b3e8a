/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_scan.h"

#include <string.h>

enum state {
    VALUE,        /* must follow */
    FIRST_VALUE,  /* or the end of the list */
    KEY,          /* must follow */
    FIRST_KEY,    /* or the end of the object */
    BEHIND_VALUE  /* a comma, an end, or the end of the text */
};

static enum dp_scan_type bad(struct dp_json_scan *j, const char *why)
{
    j->why = why;
    return DP_SCAN_BAD;
}

/* The next character that is no blank; 0 at the end. */
static char peek(struct dp_json_scan *j)
{
    for (; j->at < j->end; j->at++) {
        if (*j->at == '\n')
            j->line++;
        else if (*j->at != ' ' && *j->at != '\t' && *j->at != '\r')
            return *j->at;
    }
    return 0;
}

/* ---- strings -------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 'a' - 'A' : c) : NULL;

    return found ? (int)(found - digits) : -1;
}

/* Four digits. -1: they are not. */
static int parse_unit(struct dp_json_scan *j)
{
    int unit = 0;

    if (j->end - j->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*j->at++);
        if (digit < 0)
            return -1;
        unit = 16 * unit + digit;
    }
    return unit;
}

/* As UTF-8; half of a pair becomes a question mark. Returns the length. */
static size_t encode(int unit, char out[3])
{
    if (unit < 0x80) {
        out[0] = (char)unit;
        return 1;
    }
    if (unit >= 0xd800 && unit < 0xe000) {
        out[0] = '?';
        return 1;
    }
    if (unit < 0x800) {
        out[0] = (char)(0xc0 | unit >> 6);
        out[1] = (char)(0x80 | (unit & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | unit >> 12);
    out[1] = (char)(0x80 | (unit >> 6 & 0x3f));
    out[2] = (char)(0x80 | (unit & 0x3f));
    return 3;
}

/* Behind a backslash. 0: no such escape. */
static size_t parse_escape(struct dp_json_scan *j, char out[3])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at++ : 0;
    const char *found = c ? strchr(from, c) : NULL;

    if (found) {
        out[0] = to[found - from];
        return 1;
    }
    int unit = c == 'u' ? parse_unit(j) : -1;
    return unit > 0 ? encode(unit, out) : 0;
}

/* at: the opening quote. */
static bool parse_string(struct dp_json_scan *j)
{
    size_t len = 0;
    char piece[3];

    for (j->at++; j->at < j->end && *j->at != '"';) {
        size_t n = 1;
        piece[0] = *j->at++;
        if ((unsigned char)piece[0] < ' ')
            return bad(j, "a control character in a string"), false;
        if (piece[0] == '\\')
            n = parse_escape(j, piece);
        if (!n)
            return bad(j, "a wrong escape in a string"), false;
        if (len + n >= DP_SCAN_TEXT)
            return bad(j, "a string of more than 255 bytes"), false;
        memcpy(j->text + len, piece, n);
        len += n;
    }
    if (j->at == j->end)
        return bad(j, "a string without an end"), false;
    j->at++;
    j->text[len] = '\0';
    return true;
}

/* ---- numbers and words ---------------------------------------------------------------------- */

static const char *skip_digits(const char *s)
{
    while (*s >= '0' && *s <= '9')
        s++;
    return s;
}

/* -12.5e+3, and no leading zeroes. */
static bool is_number(const char *s)
{
    const char *from = s += *s == '-';

    s = skip_digits(s);
    if (s == from || (*from == '0' && s - from > 1))
        return false;
    if (*s == '.') {
        from = ++s;
        s = skip_digits(s);
        if (s == from)
            return false;
    }
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '+' || s[1] == '-');
        from = s;
        s = skip_digits(s);
        if (s == from)
            return false;
    }
    return !*s;
}

static enum dp_scan_type parse_bare(struct dp_json_scan *j)
{
    static const char others[] = "+-.0123456789abcdefghijklmnopqrstuvwxyzE";
    size_t len = 0;

    while (j->at < j->end && *j->at && strchr(others, *j->at) && len + 1 < DP_SCAN_TEXT)
        j->text[len++] = *j->at++;
    j->text[len] = '\0';
    if (!strcmp(j->text, "true") || !strcmp(j->text, "false") || !strcmp(j->text, "null"))
        return DP_SCAN_WORD;
    return is_number(j->text) ? DP_SCAN_NUMBER : bad(j, "expected a value");
}

/* ---- structure ------------------------------------------------------------------------------ */

static enum dp_scan_type open_one(struct dp_json_scan *j, bool is_list)
{
    if (j->depth == DP_SCAN_DEPTH)
        return bad(j, "more than 32 levels");
    j->at++;
    j->is_list[j->depth++] = is_list;
    j->state = is_list ? FIRST_VALUE : FIRST_KEY;
    return is_list ? DP_SCAN_LIST : DP_SCAN_OBJECT;
}

static enum dp_scan_type close_one(struct dp_json_scan *j)
{
    j->at++;
    j->state = BEHIND_VALUE;
    return j->is_list[--j->depth] ? DP_SCAN_LIST_END : DP_SCAN_OBJECT_END;
}

static enum dp_scan_type next_key(struct dp_json_scan *j)
{
    if (peek(j) != '"')
        return bad(j, "expected a name in quotes");
    if (!parse_string(j))
        return DP_SCAN_BAD;
    if (peek(j) != ':')
        return bad(j, "expected a colon");
    j->at++;
    j->state = VALUE;
    return DP_SCAN_KEY;
}

static enum dp_scan_type next_value(struct dp_json_scan *j)
{
    char c = peek(j);

    if (c == '{' || c == '[')
        return open_one(j, c == '[');
    j->state = BEHIND_VALUE;
    if (c == '"')
        return parse_string(j) ? DP_SCAN_STRING : DP_SCAN_BAD;
    return parse_bare(j);
}

static enum dp_scan_type next_behind(struct dp_json_scan *j)
{
    char c = peek(j);

    if (!j->depth)
        return j->at == j->end ? DP_SCAN_END : bad(j, "something behind the end");
    if (c == (j->is_list[j->depth - 1] ? ']' : '}'))
        return close_one(j);
    if (c != ',')
        return bad(j, j->is_list[j->depth - 1] ? "expected a comma or ]" : "expected a comma or }");
    j->at++;
    return j->is_list[j->depth - 1] ? next_value(j) : next_key(j);
}

struct dp_json_scan dp_json_scan_begin(const char *text, size_t len)
{
    return (struct dp_json_scan){.at = text, .end = text + len, .line = 1, .state = VALUE};
}

enum dp_scan_type dp_json_scan_next(struct dp_json_scan *j)
{
    switch ((enum state)j->state) {
    case FIRST_VALUE:
        return peek(j) == ']' ? close_one(j) : next_value(j);
    case VALUE:
        return next_value(j);
    case FIRST_KEY:
        return peek(j) == '}' ? close_one(j) : next_key(j);
    case KEY:
        return next_key(j);
    case BEHIND_VALUE:
        return next_behind(j);
    }
    return DP_SCAN_BAD;
}
