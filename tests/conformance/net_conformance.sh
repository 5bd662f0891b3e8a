#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# net_conformance.sh - the net plugin does what NCCL asks of it over the wire that it chooses; and the
# program that says so is not easily pleased. One wire after the other: the scripts beside this one.
. "$DP_TOP_SRCDIR/tests/conformance/conform.sh"

case_is 'v12 over the best wire' "$(conform --quick --version 12 $plugin)"
counters=$(mktemp -d)
case_is 'v12 over the best wire, counting' \
    "$(DUALPIPE_NET_STAT=1 DUALPIPE_NET_STAT_DIR=$counters conform --quick --version 12 $plugin)"
rm -rf "$counters"
case_is 'a plugin without devices passes' \
    "$(DUALPIPE_NET_DEVICES=0 conform --quick --version 12 $plugin | grep -q 'status 1' || echo yes)"

# It finds out what is wrong with another plugin, too.
for fault in no-devices one-receive unfilled flips grows; do
    case_is "a plugin passes that has the fault $fault" \
        "$(BROKEN_NET=$fault BROKEN_NET_PLUGIN=$PWD/$plugin DUALPIPE_NET_WIRE=shm \
            conform --quick --version 12 tests/fakes/net/.libs/broken_net.so |
            grep -q 'failed to' || echo yes)"
done

# refused STATUS TEXT ARGUMENT... - what it says to what it cannot try.
refused()
{
    status=$1 text=$2
    shift 2
    out=$($program "$@" 2>&1) && status_is=0 || status_is=$?
    [ "$status_is" = "$status" ] || echo "status $status_is"
    case $out in *"$text"*) ;; *) printf '%s\n' "$out" ;; esac
}

for version in '' abc 5 13 -1; do
    case_is "version '$version'" \
        "$(refused 2 "--version $version: expected a number from 6 to 12" --version "$version" $plugin)"
done
case_is 'no such case' "$(refused 2 "no case has the words 'of none'" --case 'of none' $plugin)"
case_is 'no file' "$(refused 2 'cannot open shared object file' /nowhere/plugin.so)"
case_is 'no name' "$(refused 2 'usage: net-conformance' '')"
case_is 'another library' "$(refused 2 'is no net plugin: it has none of ncclNetPlugin_v6 to _v12' \
    libdualpipe/.libs/libdualpipe.so)"
case_is 'a plugin without this version' \
    "$(BROKEN_NET_PLUGIN=$PWD/$plugin refused 2 'has no ncclNetPlugin_v6' --version 6 \
        tests/fakes/net/.libs/broken_net.so)"
half=$(mktemp)
head -c 40000 $plugin >"$half"
case $DP_CC in
*-fsanitize*) case_skipped 'a plugin that is cut off: a sanitizer catches the signal' ;;
*) case_is 'a plugin that is cut off' "$(refused 2 'dies when it is loaded (Bus error)' "$half")" ;;
esac
rm "$half"
cases_end
