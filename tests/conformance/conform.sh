# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# conform.sh - sourced by the scripts beside it: what the program finds wrong with a net plugin, over a wire.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

plugin=nccl-plugin/.libs/libnccl-net-dualpipe.so
program=tests/conformance/net-conformance
NCCL_SOCKET_IFNAME=lo
export NCCL_SOCKET_IFNAME

# conform ARGUMENT... - what the program finds wrong. The stand-in for libibverbs has its devices in a
# folder of its own each time.
conform()
{
    FAKE_VERBS_FABRIC=$(mktemp -d)
    export FAKE_VERBS_FABRIC
    out=$($program "$@" 2>&1) || printf '%s\n' "$out" "status $?"
    rm -rf "$FAKE_VERBS_FABRIC"
}

# over WIRE ARGUMENT... - the same, over one wire.
over()
{
    DUALPIPE_NET_WIRE=$1
    export DUALPIPE_NET_WIRE
    shift
    conform "$@"
}

# versions_over WIRE - each version; the newest in full. What adapts the older ones knows no wire: under a
# sanitizer they run over shm only.
versions_over()
{
    older='6 7 8 9 10 11'
    case $DP_CC in *-fsanitize*) [ "$1" = shm ] || older= ;; esac
    for version in $older; do
        case_is "v$version over $1" "$(over "$1" --quick --version $version $plugin)"
    done
    case_is "v12 over $1" "$(over "$1" --version 12 $plugin)"
}

# longest_over WIRE - messages of 1 GiB: every version where there is time for it, else one; not under a
# sanitizer.
longest_over()
{
    free_kb=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    case $DP_CC in
    *-fsanitize*) case_skipped "1 GiB over $1: sanitizers take minutes for it" && return ;;
    esac
    [ "${free_kb:-0}" -gt 4000000 ] || {
        case_skipped "1 GiB over $1: less than 4 GB of memory are free" && return
    }
    version='--version 12'
    [ -z "${DP_TEST_FULL:-}" ] || version=
    # shellcheck disable=SC2086 # words
    case_is "1 GiB over $1" "$(over "$1" --full $version --case 'every size' $plugin)"
}
