#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# examples.sh - every example of every --help, manual page and README runs as it stands, in a directory
# with the files of tests/data/cli/examples, which also says what cannot run here and why.
#
# A launcher is stood in for by one process of what it would launch, and python, NCCL's tests and the
# editor by programs that do nothing: what is tried is how dualpipe is called. readme.sh runs ```console.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
rules=${1:-$data/examples}
tab=$(printf '\t')
export dualpipe rules tab work

# ---- where examples are --------------------------------------------------------------------------

commands()
{
    sed -n '/^commands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p'
}

all_commands()
{
    "$dualpipe" --help | commands | while read -r outer; do
        echo "$outer"
        "$dualpipe" "$outer" --help | commands | sed "s/^/$outer /"
    done
}

# As a reader sees the page: .Dl lines are indented further than text.
examples_of_manual()
{
    mandoc -T utf8 -O width=500 "$1" | col -bx | sed -n '/^EXAMPLES/,/^[A-DF-Z]/s/^ \{8,\}//p'
}

# Blocks of a page, an empty line between: fenced as sh; or fenced as nothing or indented, if it begins as
# a command does. What is indented in a list is text.
examples_of_page()
{
    awk -v commands="$("$dualpipe" --help | commands | paste -sd'|' -)" '
        BEGIN {
            command = "^ *([A-Z_]+=[^ ]* )*((sh|export|mpirun|torchrun|python|make|cd|for)|dualpipe (" commands "))( |$)"
        }
        function begins() { return $0 ~ command }
        /^ *```/ { fence = fence ? "" : $0; first = 1; inside = 0; before = ""; print ""; next }
        fence {
            if (first)
                inside = fence ~ /sh$/ || (fence ~ /```$/ && begins())
            first = 0
            if (inside)
                print
            next
        }
        /^    / && (inside || (before == "" && begins())) { inside = 1; print substr($0, 5); next }
        { if (inside) print ""; inside = 0; before = $0 }
    ' "$1"
}

# ---- what stands in for programs -------------------------------------------------------------------

mkdir "$work/bin" "$work/given"
: >"$work/seen"
PATH=$work/bin:$PATH
EDITOR=true
LD_LIBRARY_PATH=$work/there:$DP_TOP_BUILDDIR/nccl-plugin/.libs:$LD_LIBRARY_PATH
export PATH EDITOR LD_LIBRARY_PATH

# dualpipe as the rules of `brief`, `drop` and `ends` have it. What is written is parsed as it stands
# first. A pipe would hide how it ends: $work/broken names what went wrong.
cat >"$work/bin/dualpipe" <<'SCRIPT'
#!/bin/sh
line=$* more= without= ends=0
while IFS=$tab read -r what pattern value; do
    # shellcheck disable=SC2254 # a pattern
    case $what:$line in
    brief:$pattern) more="$more $value" ;;
    drop:$pattern) without=$value ;;
    ends:$pattern) ends="$ends $value" ;;
    esac
done <"$rules"
case " $line " in *' -- '*) ;; *) "$dualpipe" "$@" --help >/dev/null || echo "$line: does not parse" >>"$work/broken" ;; esac
# What takes long and writes nothing is carried out once.
case $line in
*' -o '* | *' --save '*) ;;
train* | plan* | bench*)
    ! grep -qxF -e "$line" "$work/seen" || exit 0
    echo "$line" >>"$work/seen"
    ;;
esac
for word; do
    shift
    [ "$word" = "$without" ] || set -- "$@" "$word"
done
status=0
# shellcheck disable=SC2086 # words
"$dualpipe" "$@" $more || status=$?
case " $ends " in *" $status "*) ;; *) echo "dualpipe $line: ends with status $status" >>"$work/broken" ;; esac
exit 0
SCRIPT

# A launcher's options end where one of these programs begins.
cat >"$work/bin/launcher" <<'SCRIPT'
#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    dualpipe | all_reduce_perf) exec "$@" ;;
    *.py) exit 0 ;;
    esac
    shift
done
exit 1
SCRIPT

# -J FILE: what a test writes, for `dualpipe tune fit`.
cat >"$work/bin/all_reduce_perf" <<'SCRIPT'
#!/bin/sh
for word; do file=$word; done
case $file in *.json) cp "$DP_TEST_DATA/tuner/results/allgather-own.json" "$file" ;; esac
SCRIPT
chmod +x "$work"/bin/*
for name in torchrun mpirun; do ln -s launcher "$work/bin/$name"; done
ln -s "$(command -v true)" "$work/bin/python"

# ---- running them --------------------------------------------------------------------------------

# why_not LINE - prints why it is not run here; fails if it is.
why_not()
{
    while IFS=$tab read -r what pattern value; do
        # shellcheck disable=SC2254 # a pattern
        case $what:$1 in
        skip:$pattern) echo "$value" && return ;;
        unless:$pattern) (eval "$value") >/dev/null 2>&1 || { echo "'$value' fails" && return; } ;;
        esac
    done <"$rules"
    return 1
}

# run_block WHERE - the lines in $work/block, in the directory that we are in.
run_block()
{
    lines=0
    : >"$work/run"
    while IFS= read -r line; do
        if why=$(why_not "$line"); then
            echo "skipped: $1: $line: $why"
            skipped=$((skipped + 1))
        else
            printf '%s\n' "$line" >>"$work/run"
            lines=$((lines + 1))
        fi
    done <"$work/block"
    [ $lines -gt 0 ] || return 0
    : >"$work/broken"
    sh -ex "$work/run" >"$work/out" 2>"$work/err" </dev/null ||
        echo "status $? at: $(grep '^+' "$work/err" | tail -n 1)" >>"$work/broken"
    if [ -s "$work/broken" ]; then
        failed=$((failed + 1))
        echo "FAILED: $1: $(cat "$work/broken" && grep -v '^+' "$work/err" | tail -n 3)"
    else
        passed=$((passed + lines))
    fi
}

# run_examples WHERE - the blocks of standard input, in order, in a directory of their own.
run_examples()
{
    rm -rf "$work/there"
    mkdir "$work/there"
    cd "$work/there" || exit 1
    { sed -e ':a' -e '/\\$/{N; s/\\\n *//; ta' -e '}' && echo; } >"$work/examples"
    for file in "$work"/given/*; do
        ! grep -qF -e "${file##*/}" "$work/examples" || cp -r "$file" .
    done
    : >"$work/block"
    exec 3<"$work/examples"
    while IFS= read -r example <&3; do
        if [ "$example" ]; then
            printf '%s\n' "$example" >>"$work/block"
        elif [ -s "$work/block" ]; then
            run_block "$1"
            : >"$work/block"
        fi
    done
}

while IFS=$tab read -r what name value; do
    [ "$what" = file ] || continue
    mkdir -p "$(dirname "$work/given/$name")"
    (cd "$work/given" && eval "$value") >"$work/given/$name" || { echo "FAILED: no $name" && exit 1; }
done <"$rules"

# examples_of WHERE COMMAND... - which prints them.
examples_of()
{
    where=$1
    shift
    "$@" >"$work/printed"
    run_examples "$where" <"$work/printed"
}

# Wherever a wrong example stands it is found: four of this page, one of a manual.
cat >"$work/wrong.md" <<'PAGE'
```sh
dualpipe info && dualpipe info --jsn
```
1. A list:

    dualpipe info | grep no-such-word

    DUALPIPE_LOG_LEVEL=error dualpipe schedule show dualpip | cat

```
dualpipe schedule check --file \
    there-is-none.txt
```
Text.
    dualpipe info --this-is-text
PAGE
printf '%s\n' '.Dd May 1, 2026' '.Dt A 1' .Os '.Sh NAME' '.Nm a' '.Nd b' '.Sh EXAMPLES' '.Dl dualpipe inf' >"$work/wrong.1"
{
    examples_of wrong.md examples_of_page "$work/wrong.md"
    ! command -v mandoc || examples_of wrong.1 examples_of_manual "$work/wrong.1"
} >"$work/found"
wanted=$(command -v mandoc >/dev/null && echo 5 || echo 4)
[ "$failed" = "$wanted" ] || { cat "$work/found" && echo "FAILED: $failed wrong examples, expected $wanted" && exit 1; }
failed=0 passed=1 skipped=0

for command in '' $(all_commands | tr ' ' .); do
    # shellcheck disable=SC2046 # words
    "$dualpipe" $(echo "$command" | tr . ' ') --help | sed -n '/^examples:/,/^$/s/^  //p' >"$work/help"
    [ -s "$work/help" ] || { failed=$((failed + 1)) && echo "FAILED: no example in the help of $command"; }
    examples_of "dualpipe $command --help" cat "$work/help"
done
for page in "$DP_TOP_SRCDIR"/tools/man/*.1; do
    command -v mandoc >/dev/null || { echo 'skipped: manual pages: mandoc is not installed' && break; }
    examples_of "${page##*/}" examples_of_manual "$page"
done
for page in $(cd "$DP_TOP_SRCDIR" && find . -name '*.md' ! -path './build*' | sort); do
    examples_of "${page#./}" examples_of_page "$DP_TOP_SRCDIR/$page"
done
finish
