#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cli.sh - the command as such: help, mistakes, what it says about itself.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

# Every command, as the program lists them: "schedule", "schedule show", ...
commands()
{
    sed -n '/^commands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' "$work/out"
}
all_commands()
{
    run --help || return
    for outer in $(commands); do
        echo "$outer"
        run "$outer" --help || return
        for inner in $(commands); do echo "$outer $inner"; done
    done
}

says_its_version()
{
    run --version && says "dualpipe "
}

helps_with_every_command()
{
    all_commands >"$work/commands" || return
    [ "$(wc -l <"$work/commands")" -ge 7 ] || wrong "few commands" || return
    while read -r command; do
        # shellcheck disable=SC2086 # words
        run $command --help && says "usage: dualpipe $command" "examples:" || return
        awk 'length($0) > 100' "$work/out" >"$work/wide"
        [ ! -s "$work/wide" ] || wrong "wider than 100: $(head -n 1 "$work/wide")" || return
        cp "$work/out" "$work/expected"
        # shellcheck disable=SC2086 # words
        run help $command || return
        cmp -s "$work/out" "$work/expected" || wrong "'help $command' says something else" || return
    done <"$work/commands"
}

# tests/data/cli/mistakes: STATUS, the arguments, what must be said; tabs between.
meets_a_mistake()
{
    # shellcheck disable=SC2086 # words
    refuses "$1" "$3" $2 || return
    [ ! -s "$work/out" ] || wrong "prints something all the same"
}

fails_where_output_cannot_be_written()
{
    [ -w /dev/full ] || skip "this system has no /dev/full"
    "$dualpipe" info >/dev/full 2>"$work/err" && wrong "does not notice" && return
    grep -q "cannot write" "$work/err"
}

never_writes_over_its_input()
{
    echo "user P=1 M=1" >"$work/mine"
    refuses 2 "--output $work/mine: is also an input, --file" \
        schedule show --file "$work/mine" -o "$work/mine" || return
    "$dualpipe" topo json --synthetic gpu:1 >"$work/t.json"
    refuses 2 'is also an input' topo diff "$work/t.json" "$work/t.json" -o "$work/t.json" || return
    refuses 2 'is also an input, --topology' topo json -t "$work/t.json" -o "$work/./t.json" || return
    [ -s "$work/t.json" ] || return
    echo '0 1' >"$work/graph"
    refuses 2 'is also an input, --file' mix show --file "$work/graph" -o "$work/graph" || return
    [ "$(cat "$work/graph")" = '0 1' ] || return
    refuses 2 'is also what --traffic writes' run --traffic "$work/r" --report "$work/r" -- true
}

# Editors of other systems begin a file with EF BB BF.
reads_a_byte_order_mark()
{
    printf '\357\273\277user P=1 M=1\nrank 0: F0.0 B0.0\n' >"$work/mine"
    run schedule check --file "$work/mine" || return
    { printf '\357\273\277' && "$dualpipe" topo json --synthetic gpu:1; } >"$work/t.json"
    run topo show -t "$work/t.json" || return
    { printf '\357\273\277' && "$dualpipe" schedule export gpipe; } >"$work/s.json"
    run schedule check --file "$work/s.json"
}

refuses_what_is_not_utf8()
{
    printf 'user P=1 M=1\n# caf\351\nrank 0: F0.0 B0.0\n' >"$work/mine"
    refuses 2 "$work/mine: line 2, column 6: byte 0xe9, expected UTF-8" \
        schedule check --file "$work/mine" || return
    printf 'mixing caf\351 workers=2 local=1\nround 0: {0 1}\n' >"$work/graph"
    refuses 2 "$work/graph: line 1, column 11: byte 0xe9, expected UTF-8" \
        mix check --file "$work/graph" || return
    refuses 2 "$work/mine: line 2, column 6: byte 0xe9, expected UTF-8" \
        topo nccl-xml --map "$work/mine" --synthetic gpu:1 || return
    refuses 2 "$work/mine: line 2, column 6: byte 0xe9, expected UTF-8" tune fit "$work/mine"
}

# tests/data/cli/hostile: whatever a user, a file or the system calls something, pictures and XML of it
# can be read, and so can the JSON that hands it on.
is_xml()
{
    xmllint --noout "$1" 2>"$work/lint" || wrong "$1: $(head -n 3 "$work/lint")"
}

writes_xml_whatever_the_name()
{
    command -v xmllint >/dev/null || skip 'xmllint is not installed'
    # shellcheck disable=SC2059 # it is one
    name=$(printf "$1")
    run schedule show dualpipe -P 2 -M 4 -f svg --arrows --title "$name" -o "$work/a.svg" &&
        run topo svg --synthetic gpu:2 --title "$name" -o "$work/b.svg" || return
    root=$work/machine
    mkdir -p "$root/proc/sys/kernel" "$root/sys/devices/system/node/node0" &&
        echo 0-1 >"$root/sys/devices/system/node/node0/cpulist" &&
        printf '%s\n' "$name" >"$root/proc/sys/kernel/hostname" || return
    printf 'model name\t: %s\n' "$name" >"$root/proc/cpuinfo"
    for output in svg nccl-xml json; do
        run topo $output --sysfs "$root" -o "$work/machine.$output" || return
    done
    run topo svg -t "$work/machine.json" -o "$work/c.svg" || return
    for file in a.svg b.svg c.svg machine.svg machine.nccl-xml; do is_xml "$work/$file" || return; done
}

# run_in COLUMNS ARGUMENT...
run_in()
{
    export COLUMNS="$1"
    shift
    run "$@"
    unset COLUMNS
    [ "$status" = 0 ]
}

# As panels, each with all rows; the CPUs stand in the last.
folds_a_matrix_to_columns()
{
    run topo matrix --synthetic dgx-h100 || return
    [ "$(grep -c '^gpu0 ' "$work/out")" = 2 ] || wrong "not one panel for each table" || return
    run_in 60 topo matrix --synthetic dgx-h100 || return
    [ "$(grep -c '^gpu0 ' "$work/out")" -gt 4 ] || wrong "no panels" || return
    awk 'length($0) > 60 && !/^nic/' "$work/out" >"$work/wide"
    [ ! -s "$work/wide" ] || wrong "wider than 60: $(head -n 1 "$work/wide")"
}

# No line of a --help is wider than COLUMNS, but for what is to be copied; and no word is lost.
# A long list of choices is broken behind a |.
words_of_help()
{
    sed -e ':a' -e '/|$/{N; s/| *\n *\([^ ]\)/|\1/; ta' -e '}' "$work/out" | tr -s ' \n' '\n\n'
}

folds_help_to_columns()
{
    for command in '' schedule 'topo place' 'mix simulate'; do
        # shellcheck disable=SC2086 # words
        run $command --help || return
        words_of_help >"$work/words"
        for columns in 40 70; do
            # shellcheck disable=SC2086 # words
            run_in $columns $command --help || return
            words_of_help | cmp -s - "$work/words" ||
                wrong "$command --help has other words at COLUMNS=$columns" || return
            sed -e '/^usage/d; /^ *-/d; /|/d; /^examples/,$d' "$work/out" >"$work/text"
            awk -v most=$columns 'length($0) > most' "$work/text" >"$work/wide"
            [ ! -s "$work/wide" ] || wrong "wider than $columns: $(head -n 1 "$work/wide")" || return
        done
    done
}

# ---- info

tells_about_the_machine()
{
    run info && says "built in" "cores" "memory"
}

tells_about_the_machine_in_json()
{
    command -v jq >/dev/null || skip "jq is not installed"
    run info --json --options || return
    jq -e '.machine.cores >= 1 and (.features | has("cuda")) and (.options | length) >= 1 and
        (.libraries | length == 5 and all(.file or .why))' \
        "$work/out" >/dev/null
}

# finds_at DIR COMMAND... - a library that is in DIR only is found there, by this command.
finds_at()
{
    place=$prefix/$1
    shift
    mkdir -p "$place" && cp "$work/library.so" "$place/libelsewhere.so.2"
    run_it env DUALPIPE_NCCL_LIBRARY=libelsewhere.so.2 "$@" || return
    says "libnccl      2.28.9, $place/libelsewhere.so.2"
    rm -rf "${prefix:?}"/lib*
}

run_it()
{
    "$@" >"$work/out" 2>"$work/err" || wrong "exits with $?: $(cat "$work/err")"
}

finds_libraries_where_packages_put_them()
{
    prefix="$work/an [odd] name*"
    python=lib/python3.99/site-packages/nvidia/cu13/lib
    mkdir -p "$prefix/bin"
    ln -s /bin/true "$prefix/bin/python3"
    ln -s "$dualpipe" "$prefix/bin/"
    echo 'int ncclGetVersion(int *out) { *out = 22809; return 0; }' >"$work/library.c"
    # shellcheck disable=SC2086 # words
    $DP_CC -fno-sanitize=all -shared -fPIC -nostdlib -o "$work/library.so" "$work/library.c" || return
    for variable in VIRTUAL_ENV CONDA_PREFIX; do
        finds_at $python "$variable=$prefix" "$dualpipe" info || return
    done
    for variable in CUDA_HOME CUDA_PATH; do
        finds_at lib64 "$variable=$prefix" "$dualpipe" info || return
    done
    finds_at $python "PATH=$prefix/bin:$PATH" "$dualpipe" info || return
    finds_at lib/python3/dist-packages/nvidia/nccl/lib "$prefix/bin/${dualpipe##*/}" info || return
    mkdir -p "$work/first" && cp "$work/library.so" "$work/first/libelsewhere.so.2"
    mkdir -p "$prefix/lib64" && : >"$prefix/lib64/libelsewhere.so.2"
    run_it env DUALPIPE_NCCL_LIBRARY=libelsewhere.so.2 CUDA_HOME="$prefix" \
        LD_LIBRARY_PATH="$work/first:$LD_LIBRARY_PATH" "$dualpipe" info &&
        says "libnccl      2.28.9, $work/first/libelsewhere.so.2" || return
    run_it env DUALPIPE_NCCL_LIBRARY=libelsewhere.so.2 CUDA_HOME="$prefix" "$dualpipe" info &&
        says 'libnccl      none: libelsewhere.so.2: cannot open' "$prefix/lib64/libelsewhere.so.2: file too short"
}

lists_options_with_value_and_origin()
{
    DUALPIPE_LOG_LEVEL=info run info --options &&
        says "DUALPIPE_LOG_LEVEL" "info (from the environment)"
}

says_which_option_is_wrong()
{
    DUALPIPE_LOG_LEVEL=loud DUALPIPE_LOG_LEVLE=info run info --options >/dev/null
    [ "$status" = 1 ] || wrong "exits with $status" || return
    says "WRONG: DUALPIPE_LOG_LEVEL=loud: expected one of error" \
        "DUALPIPE_LOG_LEVLE: no such option; did you mean DUALPIPE_LOG_LEVEL?"
}

says_without_being_asked_which_option_is_wrong()
{
    DUALPIPE_LOG_LEVLE=info run info >/dev/null
    [ "$status" = 1 ] || wrong "exits with $status" || return
    says 'variables that cannot be used' \
        'DUALPIPE_LOG_LEVLE: no such option; did you mean DUALPIPE_LOG_LEVEL?' || return
    DUALPIPE_LOG_LEVLE=info run info --json >/dev/null
    [ "$status" = 1 ] && says '"problems": [' 'no such option' || wrong 'not in JSON' || return
    run info && ! grep 'cannot be used' "$work/out"
}

# ---- the scripts

helps_with_the_scripts()
{
    for script in tools/quickstart.sh tests/run.sh; do
        sh "$DP_TOP_SRCDIR/$script" --help >"$work/out" || return
        says "usage: sh $script" '--no-install' || return
    done
}

# Nothing may be installed or built before.
knows_the_names_of_tests()
{
    status=0
    sh "$DP_TOP_SRCDIR/tests/run.sh" --no-install test_bse >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = 2 ] && [ ! -s "$work/out" ] || wrong "exits with $status: $(cat "$work/out")" || return
    grep -q "no test named 'test_bse'" "$work/err"
}

# Before it looks at anything else.
refuses_to_build_no_shared_objects()
{
    mkdir -p "$work/static"
    status=0
    (cd "$work/static" && sh "$DP_TOP_SRCDIR/configure" -q --disable-shared) >"$work/out" 2>"$work/err" ||
        status=$?
    [ "$status" = 1 ] || wrong "exits with $status" || return
    grep -q 'the plugins for NCCL are shared objects: configure without --disable-shared' "$work/err"
}

honours_the_width_that_is_asked_for()
{
    COLUMNS=60 run schedule show dualpipe -P 4 -M 8 || return
    [ "$(wc -L <"$work/out")" -le 60 ] || wrong "$(cat "$work/out")"
}

# ---- what goes with it

manuals=$DP_TOP_SRCDIR/tools/man

# The long options in the help of a command and of all below it.
options_of()
{
    grep -E "^$1( |\$)" "$work/commands" | while read -r command; do
        # shellcheck disable=SC2086 # words
        run $command --help || return
        sed -n 's/^  \(-[A-Za-z],\|   \) --\([a-z0-9-]*\).*/\2/p' "$work/out"
    done | sort -u | grep -vx help
}

has_a_manual_of_every_command()
{
    for command in $(cut -d' ' -f1 "$work/commands" | sort -u); do
        grep -q "Cm $command\$" "$manuals/dualpipe.1" || wrong "dualpipe.1 misses $command" || return
        grep -q "Xr dualpipe-$command 1" "$manuals/dualpipe.1" ||
            wrong "dualpipe.1 does not lead to dualpipe-$command" || return
    done
}

# What is described is what begins an entry of a list; other options may be named beside it.
has_a_manual_in_step()
{
    page=$manuals/dualpipe-$1.1
    [ -f "$page" ] || wrong "no $page" || return
    options_of "$1" >"$work/known" || return
    while read -r option; do
        grep -qE "Fl -$option( |\$)" "$page" || wrong "$page misses --$option" || return
    done <"$work/known"
    sed -n '/^\.It Fl/s/Fl -\([a-z0-9-]*\)/\n\1\n/gp' "$page" | grep -xE '[a-z][a-z0-9-]+' |
        sort -u >"$work/described"
    gone=$(grep -vxFf "$work/known" "$work/described" || :)
    [ -z "$gone" ] || wrong "$page has --$gone, which the program has not"
}

has_clean_manuals()
{
    command -v mandoc >/dev/null || skip "mandoc is not installed"
    mandoc -Tlint -Wwarning "$manuals"/*.1
}

completes_what_it_knows()
{
    command -v bash >/dev/null || skip "bash is not installed"
    all_commands >"$work/commands" || return
    bash "$DP_TOP_SRCDIR/tests/system/completion.bash" "$dualpipe" \
        "$DP_TOP_SRCDIR/tools/completion/dualpipe" <"$work/commands"
}

# The words that zsh hands over are those that are added to its list.
completes_in_zsh()
{
    command -v zsh >/dev/null || skip "zsh is not installed"
    cat >"$work/words.zsh" <<'ZSH'
compadd() { print -l -- "${offered[@]}" }
compset() { [[ $2 == '--*=' && $words[-1] == ${~2}* ]] && print -l -- "behind $2" }
_files() { print -l -- a-file }
source "$2"
words=("$1" "${(@)argv[3,-1]}")
CURRENT=$#words
_dualpipe
ZSH
    zsh -f "$work/words.zsh" "$dualpipe" "$DP_TOP_SRCDIR/tools/completion/_dualpipe" "$@" >"$work/out" ||
        wrong "zsh exits with $?"
}

completes_in_fish()
{
    command -v fish >/dev/null || skip "fish is not installed"
    HOME=$work PATH=$(dirname "$dualpipe"):$PATH fish --no-config -c \
        "source $DP_TOP_SRCDIR/tools/completion/dualpipe.fish; complete -C 'dualpipe $*'" >"$work/out" ||
        wrong "fish exits with $?"
}

other_shells_offer_the_same()
{
    for shell in zsh fish; do
        completes_in_$shell schedule show dualpipe --format s && says svg || return
        completes_in_$shell schedule '' && says show check simulate export compare || return
        completes_in_$shell checkpoint export -- && says --output || return
    done
    mkdir -p "$work/there/inner" && cd "$work/there" || return
    completes_in_zsh train --data=in && says 'behind --*=' a-file || return
    completes_in_fish train --data=in && says '--data=inner/' || return
    completes_in_fish train --data in && says 'inner/' || return
    completes_in_fish run -- python in && says 'inner/'
}

offers_what_the_tables_have()
{
    run --complete schedule show '' && says dualpipev zbv || return
    run --complete schedule export --format= && says --format=pytorch-csv || return
    run --complete train --resume '' && says :file || return
    run --complete doctor --only '' && says plugin rdma || return
    run --complete doctor --only= && says --only=limits || return
    run --complete topo show --synthetic '' && says "dgx-h100$(printf '\t')2 sockets" || return
    run --complete help schedule '' && says simulate || return
    run --complete run -- python --data '' && says :file || return
    run --complete run -- python - && says :file || return
    run --complete no such command && [ ! -s "$work/out" ] || wrong "$(cat "$work/out")" || return
    run --complete train - && says "--data$(printf '\t')text to learn from"
}

it says_its_version
it helps_with_every_command
tab=$(printf '\t')
while IFS=$tab read -r code arguments text; do
    case $code in '#'* | '') continue ;; esac
    it meets_a_mistake "$code" "$arguments" "$text"
done <"$data/mistakes"
it fails_where_output_cannot_be_written
it never_writes_over_its_input
it reads_a_byte_order_mark
it refuses_what_is_not_utf8
while IFS= read -r name; do
    case $name in '#'*) continue ;; esac
    it writes_xml_whatever_the_name "$name"
done <"$data/hostile"
it folds_help_to_columns
it folds_a_matrix_to_columns
it tells_about_the_machine
it tells_about_the_machine_in_json
it finds_libraries_where_packages_put_them
it lists_options_with_value_and_origin
it says_which_option_is_wrong
it says_without_being_asked_which_option_is_wrong
it helps_with_the_scripts
it knows_the_names_of_tests
it refuses_to_build_no_shared_objects
it honours_the_width_that_is_asked_for
all_commands >"$work/commands"
it has_a_manual_of_every_command
for command in $(cut -d' ' -f1 "$work/commands" | sort -u); do
    it has_a_manual_in_step "$command"
done
it has_clean_manuals
it completes_what_it_knows
it offers_what_the_tables_have
it other_shells_offer_the_same
finish
