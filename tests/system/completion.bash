# SPDX-License-Identifier: Apache-2.0
#
# completion.bash PROGRAM SCRIPT - source the completion SCRIPT and compare what it offers with what
# PROGRAM's help says. Standard input: every command, a line each.
set -u
program=$1
# shellcheck disable=SC1090 # given
source "$2"
bad=0

complete -p dualpipe >/dev/null || exit 1

# offers WORD... - what is offered for the last word, sorted, in one line.
offers()
{
    COMP_WORDS=("$program" "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _dualpipe
    [ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}" | sort -u | tr '\n' ' '
}

expect()
{
    local want=$1
    shift
    local got
    got=$(offers "$@")
    [ "$got" = "$want" ] && return
    echo "wrong: 'dualpipe $*' offers '$got', not '$want'"
    bad=1
}

sorted()
{
    sort -u | tr '\n' ' '
}

mapfile -t commands
for command in "${commands[@]}"; do
    read -r -a words <<<"$command"
    options=$("$program" "${words[@]}" --help |
        sed -n 's/^  \(-[A-Za-z],\|   \) \(--[a-z0-9-]*\).*/\2/p' | sorted)
    expect "$options" "${words[@]}" --
    inner=$(printf '%s\n' "${commands[@]}" | sed -n "s/^$command \(.*\)/\1/p" | sorted)
    [ -z "${inner// /}" ] || expect "$inner" "${words[@]}" ""
done
expect "$(printf '%s\n' "${commands[@]%% *}" | sorted)" ""

expect "1f1b async dualpipe dualpipev gpipe interleaved zb1p zbv " schedule show ""
expect "dualpipe dualpipev " schedule show d
expect "svg " schedule show dualpipe --format s
expect "csv " schedule export -f = c
expect "json text " schedule check dualpipe -P 4 -f ""
expect "" schedule show dualpipe -P ""
cd "$(dirname "$2")" || exit 1
expect "dualpipe dualpipe.fish " schedule check --file dual
exit $bad
