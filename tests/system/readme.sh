#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# readme.sh - the README and the pages with ```console are true: the commands of their ```console blocks
# print what they say, where ... stands for anything; links lead to files and headings; the picture is
# what the command draws.
set -eu

pages='README.md libdualpipe/mixing/README.md libdualpipe/placement/README.md tools/README.md tools/train/README.md'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$DP_TOP_BUILDDIR/tools:$PATH
export PATH
cd "$work"
passed=0
failed=0
skipped=0

# The ```console blocks of $page, without the lines that open them.
blocks()
{
    awk 'inside { print } $0 == "```console" { inside = 1 } $0 == "```" { inside = 0 }' \
        "$DP_TOP_SRCDIR/$page"
}

verdict()
{
    if [ "$1" = good ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $page: $2"
    fi
}

# check COMMAND EXPECTED
check()
{
    [ -n "$1" ] || return 0
    # As a pattern: what is special to the shell stands for itself, and ... for anything.
    pattern=$(printf '%s' "$2" | sed 's/[][*?\\]/\\&/g; s/\.\.\./*/g')
    out=$(sh -c "$1" 2>&1 </dev/null) || true
    # shellcheck disable=SC2254 # a pattern
    case $out in
    $pattern) verdict good ;;
    *) verdict bad "'$1' does not print what it says, but:
$out" ;;
    esac
}

# Some text, for the commands that learn from book.txt.
cat "$DP_TOP_SRCDIR/LICENSE" "$DP_TOP_SRCDIR/CONTRIBUTING.md" >book.txt

# Without BLAS there is no dualpipe train, and the rest of such a block would be out of place.
can_train=yes
dualpipe train --help >help 2>&1 || can_train=no
prints_what_it_says()
{
    left_out=no
    command=
    expected=
    blocks >lines
    while IFS= read -r line; do
        case $left_out:$can_train:$line in
        *:'```')
            check "$command" "$expected"
            command=
            left_out=no
            ;;
        no:no:'$ dualpipe train'*)
            echo "skipped: $page: '${line#??}': this build cannot train"
            skipped=$((skipped + 1))
            left_out=yes
            ;;
        no:*:'$ '*)
            check "$command" "$expected"
            command=${line#??}
            expected=
            ;;
        no:*) expected="$expected${expected:+
}$line" ;;
        esac
    done <lines
}

# ---- links ----------------------------------------------------------------------------------

# The anchors that a reader of Markdown makes of the headings of a file.
anchors()
{
    sed -n 's/^##* *//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -e 's/[^a-z0-9 _-]//g' -e 's/ /-/g'
}

# "](TARGET)" of every page that git would have; those with a scheme are not for us.
leads_somewhere()
{
    grep -o '](\([^()]*\))' "$DP_TOP_SRCDIR/$page" | sed -e 's/^](//' -e 's/)$//' >links || :
    while read -r link; do
        case $link in *:*) continue ;; esac
        file=${link%%#*}
        path=$DP_TOP_SRCDIR/$(dirname "$page")/$file
        [ -n "$file" ] || path=$DP_TOP_SRCDIR/$page
        if [ ! -e "$path" ]; then
            verdict bad "no file for the link $link"
        elif [ "$link" != "$file" ] && ! anchors "$path" | grep -qxF -e "${link#*#}"; then
            verdict bad "no heading for the link $link"
        else
            verdict good
        fi
    done <links
}

for page in $pages; do
    prints_what_it_says
done
for page in $(cd "$DP_TOP_SRCDIR" && find . -name '*.md' ! -path './build*' | sed 's|^\./||'); do
    leads_somewhere
done

# ---- the README itself ----------------------------------------------------------------------

page=README.md
if [ "$(wc -c <"$DP_TOP_SRCDIR/README.md")" -le 9000 ]; then
    verdict good
else
    verdict bad 'longer than 9000 bytes: give the details to a page in a folder'
fi
picture=libdualpipe/schedule/dualpipe.svg
draw="schedule show dualpipe -P 4 -M 8 --format svg --width 900"
# shellcheck disable=SC2086 # words
if dualpipe $draw | cmp -s - "$DP_TOP_SRCDIR/$picture"; then
    verdict good
else
    verdict bad "$picture is out of date; draw it again: dualpipe $draw -o $picture"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
