#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# circles.sh - the files of a folder do not call each other in a circle: a file that needs a function or
# a variable of another one is above it. Found by the symbols of the objects.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

command -v nm >/dev/null || {
    echo "skipped: no nm here"
    exit 77
}

# "definer symbol" and "user symbol" of the objects of a folder, by file name without what libtool adds.
symbols_of()
{
    sources=$(cd "$DP_TOP_SRCDIR/$1" && printf ' %s' *.c)
    find "$1" -maxdepth 2 -name '*.o' ! -name '*_test*' -exec nm -A {} + 2>/dev/null |
        awk -v sources="$sources " '
        {
            file = $1
            sub(/:[0-9a-f]*$/, "", file)
            sub(/.*[\/-]/, "", file)
            sub(/\.o$/, "", file)
            if (!index(sources, " " file ".c "))
                next
            if ($2 == "U")
                print "use", file, $3
            else if (NF == 3 && $2 ~ /[TDRBCV]/)
                print "def", file, $3
        }'
}

# Files that reach themselves, with what they reach in one step: "a -> b (symbol)".
circles()
{
    symbols_of "$1" | awk '
        $1 == "def" { owner[$3] = $2 }
        $1 == "use" { use[++uses] = $2 " " $3 }
        END {
            for (i = 1; i <= uses; i++) {
                split(use[i], w, " ")
                to = owner[w[2]]
                if (to == "" || to == w[1])
                    continue
                if (!((w[1], to) in edge))
                    why[w[1], to] = w[2]
                edge[w[1], to] = reach[w[1], to] = 1
                node[w[1]] = node[to] = 1
            }
            for (k in node)
                for (a in node)
                    if ((a, k) in reach)
                        for (b in node)
                            if ((k, b) in reach)
                                reach[a, b] = 1
            for (pair in edge) {
                split(pair, w, SUBSEP)
                if ((w[2], w[1]) in reach)
                    printf "%s.c -> %s.c (%s)\n", w[1], w[2], why[pair]
            }
        }' | sort
}

# Folders of the command and of tests that still have some.
known=' tests/conformance tests/fakes tests/fakes/ibverbs tests/simcuda tools/bench tools/checkpoint '
known="$known tools/doctor tools/mix tools/train tools/train/cuda tools/tune "

# Of the whole tree; what is not built here (a test, CUDA) has no objects to look at.
for folder in $(cd "$DP_TOP_SRCDIR" && find libdualpipe offload nccl-plugin tools tests -type d \
    ! -path '*/include*' | sort); do
    [ -d "$folder" ] || continue
    found=$(circles "$folder")
    case "$known" in
    *" $folder "*)
        [ -z "$found" ] || case_skipped "circles in $folder: known, $(echo "$found" | wc -l) calls" ;;
    *) case_is "circles in $folder" "$found" ;;
    esac
done
cases_end
