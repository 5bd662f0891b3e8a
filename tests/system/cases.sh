# SPDX-License-Identifier: Apache-2.0
#
# cases.sh - for the tests that run the real command: sourced, it sets $dualpipe, $work (a directory
# that goes away) and $data, and counts cases.
#
#       . "$DP_TOP_SRCDIR/tests/system/cases.sh"
#       prints_its_version() { run --version && says "dualpipe "; }
#       it prints_its_version
#       finish

# Not by libtool's script, which takes ten times as long to start as the program; it would set the same
# variable.
dualpipe=$DP_TOP_BUILDDIR/tools/dualpipe
if [ -x "$DP_TOP_BUILDDIR/tools/.libs/dualpipe" ]; then
    dualpipe=$DP_TOP_BUILDDIR/tools/.libs/dualpipe
    LD_LIBRARY_PATH=$DP_TOP_BUILDDIR/libdualpipe/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
# shellcheck disable=SC2034 # for the scripts that source this
data=$DP_TEST_DATA/cli
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
skipped=0
unset COLUMNS NO_COLOR

# it CASE [ARGUMENT...] - run a case: a function that returns 0 if all is well, or 77 after `skip`.
it()
{
    ("$@")
    case $? in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *)
        failed=$((failed + 1))
        echo "FAILED: $*"
        ;;
    esac
}

finish()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] || exit 1
    exit 0
}

# skip WHY - give up a case that cannot be tried here.
skip()
{
    echo "skipped: $*"
    exit 77
}

wrong()
{
    echo "wrong: $*"
    return 1
}

# run ARGUMENT... - the command, its output in $work/out and $work/err, its exit status in $status.
run()
{
    status=0
    "$dualpipe" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ "$status" = 0 ] || wrong "dualpipe $* exits with $status: $(cat "$work/err")"
}

# says TEXT... - standard output has every one of them.
says()
{
    for text in "$@"; do
        grep -qF -e "$text" "$work/out" || wrong "no '$text' in: $(cat "$work/out")" || return
    done
}

# refuses STATUS TEXT ARGUMENT... - exits with that status after one line that has TEXT.
refuses()
{
    want=$1 text=$2
    shift 2
    run "$@" >/dev/null && {
        wrong "dualpipe $* does not fail"
        return
    }
    [ "$status" = "$want" ] || wrong "dualpipe $* exits with $status, not $want" || return
    [ "$(wc -l <"$work/err")" = 1 ] || wrong "not one line: $(cat "$work/err")" || return
    case $(cat "$work/err") in
    "dualpipe: "*"$text"*) ;;
    *) wrong "dualpipe $*: '$(cat "$work/err")' does not say '$text'" ;;
    esac
}

# A transcript: the command in its first line ("$ dualpipe ..."), what it prints in the others.
prints_what_it_printed()
{
    # shellcheck disable=SC2046 # words
    run $(sed -n '1s/^\$ dualpipe //p' "$1") || return
    sed 1d "$1" | diff - "$work/out"
}
