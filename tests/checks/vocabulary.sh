#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# vocabulary.sh - retired words do not come back: every idea is found under the field's word for it, in
# the names of files, in identifiers, comments, messages and documents. Programs are things: "it", and
# not "he" or "whoever".
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR" || exit 1

# What is retired, what to write, and where, if the word is right elsewhere: a star graph, a virtual
# machine's guest and a letter of a command line are the field's words. An underscore ends a word. The
# last column is an extended regular expression for paths; nothing means everywhere.
words='
seats?                          assignment, worker
stars?|cards?                   rendezvous, endpoint           ^libdualpipe/comm/
blames?|blamed                  abort record
naps?                           backoff
relax                           cpu_pause
movers?                         progress thread
come_back|go_away|is_away       progress_start, progress_stop
wired                           wire communicator
mesh                            peers                          ^(libdualpipe/(comm|wire)|nccl-plugin)/
doors?                          acceptor
guests?                         pending connection             ^(libdualpipe/(comm|wire)|nccl-plugin)/
patience                        handshake timeout
deals?                          rendezvous transfer            ^(libdualpipe/wire|nccl-plugin)/
letters?                        mapping announcement           ^(libdualpipe/wire|nccl-plugin/net)/
shm_maps                        mapping cache
shm_ways                        path selection
halves\.[ch]|half\.h            fixed-order accumulator, fp16
lives\.[ch]|moments\.[ch]       lifetimes
grants?                         clear-to-send                  ^(nccl-plugin|tests/fuzz)/
keepers?                        watchdog
talks?                          control messages               ^nccl-plugin/
speakers?                       emitter
parcels?                        message in flight
words_read|words_write          text_read, text_write
usual\.[ch]|usual_[a-z_]+       defaults, assumed rates
eldest                          oldest
lanes?                          queue, row, channel            ^(tools/(draw|bench/net)|tests/bench/dp_bench/copy|libdualpipe/(wire/|comm/[^cr]|comm/comm)|tests/(stream|shuffled)_comm)
heed|heeds|heeded|heeding       handle, honour
form\.[ch]                      format
he|him|his|himself              it
whoever|whomever                what, the caller, the peer
nobody|somebody|everybody|anybody|whom  no rank, a process, all workers  ^(libdualpipe|nccl-plugin|offload|tools|[A-Z])
'

paths()
{
    for dir in .ci libdualpipe nccl-plugin offload tools tests; do
        [ ! -d $dir ] || find $dir -type f ! -path '*/.libs/*' ! -path 'tests/data/*' \
            ! -path 'tests/checks/vocabulary.sh'
    done | grep -E '(\.(c|h|sh|awk|inc|md|map|pc\.in|[1-9]|bash)|/run|/dualpipe)$'
    ls configure.ac Makefile.am m4/dualpipe.m4 CONTRIBUTING.md README.md
}

# found REGEX - the lines, and the names of files, that have one of these words.
found()
{
    # shellcheck disable=SC2046 # words
    {
        grep -niE -e "(^|[^[:alnum:]])($1)([^[:alnum:]]|\$)" $(cat "$work/paths") /dev/null || :
        grep -iE -e "(^|[^[:alnum:]])($1)([^[:alnum:]]|\$)" "$work/paths" || :
    }
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
paths | sort >"$work/all"
echo "$words" | while read -r retired; do
    [ -n "$retired" ] || continue
    echo "$retired"
done >"$work/words"
while read -r retired; do
    where=${retired##* }
    case $where in '^'*) retired=${retired% *} ;; *) where= ;; esac
    word=${retired%% *}
    instead=$(echo "${retired#* }" | sed 's/^ *//; s/ *$//')
    grep -E -e "${where:-.}" "$work/all" >"$work/paths" || :
    [ -s "$work/paths" ] || continue
    case_is "retired: $word; write: $instead" "$(found "$word")"
done <"$work/words"
cases_end
