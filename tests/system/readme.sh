#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# readme.sh - the README is true: its program is the one that install.sh builds and runs, and the
# commands of its ```console blocks print what it says. In what they are to print, ... stands for
# anything.
set -eu

readme=$DP_TOP_SRCDIR/README.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$DP_TOP_BUILDDIR/tools:$PATH
export PATH
cd "$work"
passed=0
failed=0
skipped=0

# The ```LANGUAGE blocks, without the lines that open them.
blocks()
{
    awk -v open="\`\`\`$1" 'inside { print } $0 == open { inside = 1 } $0 == "```" { inside = 0 }' \
        "$readme"
}

verdict()
{
    if [ "$1" = good ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: README.md: $2"
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

blocks c | sed '$d' >example.c
if cmp -s example.c "$DP_TOP_SRCDIR/tests/system/example_pipeline.c"; then
    verdict good
else
    verdict bad "the program is not tests/system/example_pipeline.c:
$(diff example.c "$DP_TOP_SRCDIR/tests/system/example_pipeline.c")"
fi

# Some text, for the commands that learn from book.txt.
cat "$readme" "$DP_TOP_SRCDIR/CONTRIBUTING.md" >book.txt

# Without BLAS there is no dualpipe train, and the rest of such a block would be out of place.
can_train=yes
dualpipe train --help >help 2>&1 || can_train=no
left_out=no
command=
expected=
blocks console >lines
while IFS= read -r line; do
    case $left_out:$can_train:$line in
    *:'```')
        check "$command" "$expected"
        command=
        left_out=no
        ;;
    no:no:'$ dualpipe train'*)
        echo "skipped: README.md: '${line#??}': this build cannot train"
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

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
