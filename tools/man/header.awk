# SPDX-License-Identifier: Apache-2.0
#
# header.awk - the manual page of a public header, dualpipe_comm(3) of comm.h, in mdoc:
#
#      awk -v headers='comm.h memory.h ...' -f header.awk dualpipe.1 comm.h >dualpipe_comm.3
#
# The page takes its date from the page of the command, and leads to the pages of those other
# headers that are mentioned. What a header must keep to, as all do:
#
#      /* SPDX ...                           the first comment: "NAME.h - WHAT IT IS", then prose
#       *
#       * comm.h - ranks that ...
#       */
#      /* ---- messages ---- */              a section
#      /* Start to send ... */               an entry: a comment, and the declarations up to the next
#      DP_PUBLIC int dp_comm_isend(...);     blank line or comment; a comment alone is prose
#
# In comments, lines that are indented further are drawings and stay as they are. Bodies of inline
# functions are left out.

function fail(what)
{
    printf "%s:%d: %s\n", FILENAME, FNR, what >"/dev/stderr"
    failed = 1
    exit 1
}

# ---- text ----------------------------------------------------------------------------------

# They stand for changes of font until backslashes have been escaped.
BEGIN {
    italic = "\001"
    roman = "\002"
}

function emit(line) { body = body line "\n" }

# A line of text, not to be taken for a request.
function plain(line)
{
    gsub(/\\/, "\\e", line)
    gsub(italic, "\\fI", line)
    gsub(roman, "\\fR", line)
    return line ~ /^[.']/ ? "\\&" line : line
}

# Prose has *words* in italics, and every sentence begins a line.
function emit_prose(line,    out, word, n, i, sentences)
{
    while (match(line, /(^|[ (])\*[A-Za-z][A-Za-z -]*\*/)) {
        out = out substr(line, 1, RSTART - 1)
        word = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        sub(/\*/, italic, word)
        sub(/\*$/, roman, word)
        out = out word
    }
    line = out line
    gsub(/[.!?] +/, "&\n", line)
    n = split(line, sentences, "\n")
    for (i = 1; i <= n; i++) {
        sub(/ +$/, "", sentences[i])
        emit(plain(sentences[i]))
    }
}

function indent_of(line) { match(line, /^ */); return RLENGTH }

# The comment text[1..count], of which one blank stands before each line of prose.
function emit_text(    i, j, k, least)
{
    for (i = 1; i <= count; i++) {
        if (text[i] ~ /^ *$/)
            continue;
        if (indent_of(text[i]) < 3) {
            if (i > 1 && text[i - 1] ~ /^ *$/)
                emit(".Pp")
            emit_prose(substr(text[i], indent_of(text[i]) + 1))
            continue
        }
        # A drawing: up to the last of its lines, blank ones inside it included.
        least = indent_of(text[i])
        for (j = k = i; k <= count && (text[k] ~ /^ *$/ || indent_of(text[k]) >= 3); k++)
            if (text[k] !~ /^ *$/) {
                j = k
                if (indent_of(text[k]) < least)
                    least = indent_of(text[k])
            }
        emit(".Bd -literal -offset Ds")
        for (; i <= j; i++)
            emit(plain(substr(text[i], least + 1)))
        emit(".Ed")
        i = j
        # The display has ended the paragraph.
        if (i < count && text[i + 1] ~ /^ *$/)
            i++
    }
}

# ---- declarations ----------------------------------------------------------------------------

# Arguments end at commas outside of parentheses.
function emit_arguments(list,    i, c, depth, argument)
{
    argument = ""
    for (i = 1; i <= length(list); i++) {
        c = substr(list, i, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0) {
            emit(".Fa \"" argument "\"")
            argument = ""
        } else if (c != " " || argument != "")
            argument = argument c
    }
    if (argument != "")
        emit(".Fa \"" argument "\"")
}

# The page is found by the names of its functions and types; some are both.
function add_name(name)
{
    sub(/.* /, "", name)
    if (!(name in named))
        names[++name_count] = name
    named[name] = 1
}

function emit_function(declaration,    name, type)
{
    gsub(/[ \n]+/, " ", declaration)
    sub(/ ?;? *$/, "", declaration)
    sub(/ DP_PRINTF\([^)]*\)$/, "", declaration)
    sub(/^(DP_PUBLIC|static inline) /, "", declaration)
    if (!match(declaration, /dpo?_[a-z0-9_]+\(/))
        fail("a declaration without a name: " declaration)
    name = substr(declaration, RSTART, RLENGTH - 1)
    type = substr(declaration, 1, RSTART - 1)
    sub(/ $/, "", type)
    emit(".It Xo\n.Ft " type "\n.Fo " name)
    declaration = substr(declaration, RSTART + RLENGTH)
    sub(/\)$/, "", declaration)
    emit_arguments(declaration)
    emit(".Fc\n.Xc")
    add_name(name)
}

# DP_SIZED(name, (arguments, sizeof(struct)), parameters); is an inline function.
function as_function(declaration,    type)
{
    if (declaration !~ /^DP_SIZED/)
        return declaration
    type = declaration ~ /^DP_SIZED_REPORT/ ? "void" : "int"
    gsub(/[ \n]+/, " ", declaration)
    match(declaration, /dp_[a-z0-9_]+/)
    type = type " " substr(declaration, RSTART, RLENGTH)
    sub(/^.*\)\), */, "", declaration)
    return "static inline " type "(" declaration
}

# What a declaration of another kind is about: struct dp_abort, DP_ANY_SOURCE, dp_log_fn.
function subject_of(declaration)
{
    if (match(declaration, /^(struct|enum|union) dpo?_[a-z0-9_]+/) ||
        (declaration ~ /^typedef/ && match(declaration, /dpo?_[a-z0-9_]+_fn/))) {
        declaration = substr(declaration, RSTART, RLENGTH)
        add_name(declaration)
        return "Vt " declaration
    }
    if (match(declaration, /DPO?_[A-Z0-9_]+/))
        return "Dv " substr(declaration, RSTART, RLENGTH)
    fail("a declaration of an unknown kind: " declaration)
}

# The text stands before what it explains if that is all of the entry.
function emit_other(declaration,    lines, n, i)
{
    emit(".It " subject_of(declaration))
    if (declared == 1)
        emit_text()
    emit(declared == 1 && count > 0 ? ".Bd -literal" : ".Bd -literal -compact")
    if (declared == 1)
        count = 0
    n = split(declaration, lines, "\n")
    for (i = 1; i <= n; i++)
        emit(plain(lines[i]))
    emit(".Ed")
}

# ---- entries ---------------------------------------------------------------------------------

# in_list: whether a list of declarations is open.
function end_list()
{
    if (in_list)
        emit(".El")
    in_list = 0
}

function end_entry(    i)
{
    if (declared == 0 && count == 0)
        return
    if (declared == 0) {
        end_list()
        if (body !~ /\n\.Ss [^\n]*\n$/)
            emit(".Pp")
    } else if (!in_list) {
        emit(".Bl -tag -width Ds")
        in_list = 1
    }
    for (i = 1; i <= declared; i++)
        if (declarations[i] ~ /^(DP_PUBLIC|static inline)/)
            emit_function(declarations[i])
        else
            emit_other(declarations[i])
    if (declared > 0 && count > 0 && declarations[declared] !~ /^(DP_PUBLIC|static inline)/)
        emit(".Pp")
    emit_text()
    declared = count = 0
}

# "NAME.h - WHAT IT IS": the page's line in an index ends with the first sentence or colon.
function begin_page(    i, first, about)
{
    for (first = 1; first <= count && text[first] !~ / - /; first++)
        ;
    if (first > count)
        fail("the first comment has no line \"NAME.h - WHAT IT IS\"")
    for (i = 1; first <= count; i++)
        text[i] = text[first++]
    count = i - 1
    sub(/^.* - /, " ", text[1])
    text[1] = " " toupper(substr(text[1], 2, 1)) substr(text[1], 3)
    for (i = 1; i <= count && text[i] !~ /^ *$/; i++)
        about = about text[i]
    sub(/([.:;] .*|\.)$/, "", about)
    summary = tolower(substr(about, 2, 1)) substr(about, 3)
    emit_text()
    count = 0
}

# One line of a comment, without the marks of C.
function add_text(line)
{
    sub(/ *\*\/.*$/, "", line)
    sub(/^\/\*|^ \*/, "", line)
    text[++count] = line
    while (match(line, /[a-z]+\.h([^a-z]|$)/)) {
        word = substr(line, RSTART, RLENGTH)
        sub(/\.h.?$/, "", word)
        mentioned[word] = 1
        line = substr(line, RSTART + RLENGTH)
    }
}

# ---- the header, line by line ------------------------------------------------------------------

FNR == NR { if ($1 == ".Dd") date = substr($0, 5); next }
FNR == 1 {
    header = FILENAME
    sub(/.*\//, "", header)
    page = header
    sub(/\.h$/, "", page)
    header_word = page
    page = page == "dualpipe" ? page : "dualpipe_" page
}

in_comment || (declaration == "" && /^\/\*/) {
    if (!in_comment)
        end_entry()
    in_comment = $0 !~ /\*\//
    if (/^\/\* ----/) {
        end_list()
        sub(/^\/\* -+ /, "")
        sub(/ -* ?\*\/$/, "")
        emit(".Ss " toupper(substr($0, 1, 1)) substr($0, 2))
        next
    }
    add_text($0)
    if (!in_comment && !begun) {
        begin_page()
        begun = 1
    }
    next
}
/^#ifdef __cplusplus/ { skipping = 1 }
skipping { skipping = $0 !~ /^#endif/; next }
declaration == "" && /^#include <dualpipe\// {
    word = $2
    gsub(/<dualpipe\/|\.h>/, "", word)
    mentioned[word] = 1
}
in_macro { in_macro = /\\$/; next }
declaration == "" && /^#define/ && NF > 2 {
    in_macro = sub(/ *\\$/, "")
    declarations[++declared] = $0
    next
}
/^#/ { next }
declaration == "" && /^(struct|union|enum) [a-z0-9_]+;/ { next }
declaration == "" && /^$/ { end_entry(); next }
# The body of an inline function.
in_body { if (/^}/) in_body = 0; next }
/^{/ && declaration ~ /^static inline/ {
    declarations[++declared] = declaration
    declaration = ""
    in_body = 1
    next
}
{
    declaration = declaration == "" ? $0 : declaration "\n" $0
    line = $0
    sub(/\/\*.*/, "", line)
    depth += gsub(/[{]/, "", line) - gsub(/[}]/, "", line)
    if (depth == 0 && line ~ /;/) {
        declarations[++declared] = as_function(declaration)
        declaration = ""
    }
}

END {
    if (failed)
        exit 1
    if (!begun || declaration != "")
        fail("ends too early")
    end_entry()
    end_list()
    print ".\\\" SPDX-License-Identifier: Apache-2.0"
    print ".\\\" Made of " header " by tools/man/header.awk."
    print ".Dd " date
    print ".Dt " toupper(page) " 3"
    print ".Os\n.Sh NAME"
    print ".Nm " page (name_count ? " ," : "")
    for (i = 1; i <= name_count; i++)
        print ".Nm " names[i] (i < name_count ? " ," : "")
    print ".Nd " summary
    print ".Sh LIBRARY\nLink with\n.Fl ldualpipe ."
    print ".Sh SYNOPSIS\n.In dualpipe/" header
    print ".Sh DESCRIPTION"
    printf "%s", body
    print ".Sh SEE ALSO"
    printf ".Xr dualpipe 1"
    if (header_word != "dualpipe")
        printf " ,\n.Xr dualpipe 3"
    n = split(headers, word_list, " ")
    for (i = 1; i <= n; i++) {
        word = word_list[i]
        gsub(/.*\/|\.h$/, "", word)
        if (word != header_word && word != "dualpipe" && word in mentioned)
            printf " ,\n.Xr dualpipe_%s 3", word
    }
    print ""
}
