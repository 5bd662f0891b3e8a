#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# golden.sh - tests/golden passes what is right, fails what is not, and counts nothing as passed
# that it cannot check.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
golden=$DP_TEST_DATA/golden
DUALPIPE_BUILD=$DP_TOP_BUILDDIR
MAKEFLAGS=
export DUALPIPE_BUILD MAKEFLAGS

# expect STATUS LINE... - it returns STATUS for $dir/files, and says every line.
expect()
{
    wanted=$1
    shift
    status=0
    report=$("$DP_TOP_SRCDIR/tests/golden" "$dir/files" 2>&1) || status=$?
    for line; do
        if [ $status != "$wanted" ] || ! echo "$report" | grep -qF -- "$line"; then
            echo "golden.sh: expected status $wanted and '$line', got $status and:"
            echo "$report"
            exit 1
        fi
    done
}

expect 2 "'$dir/files' is no directory"
mkdir "$dir/files"
echo '{}' >"$dir/files/README"
expect 1 '0 passed, 0 failed, 0 skipped'

cp "$golden/dualpipe_P4_M8.json" "$golden/dualpipev_P2_M4_fwd.json" "$golden/asyncpipe_partition_vectors.json" "$dir/files"
expect 0 'passed: dualpipe_P4_M8.json: dualpipe P=4 M=8, all 226 events' \
    'passed: asyncpipe_partition_vectors.json: ' '3 passed, 0 failed, 0 skipped'

sed 's/"op": "COMMIT", "n": 3/"op": "COMMIT", "n": 2/' "$golden/dualpipe_P4_M8.json" >"$dir/files/a.json"
sed '/COMMIT/d; /SEND/d; /RECV/d; /FREE/d' "$golden/dualpipe_P4_M8.json" >"$dir/files/b.json"
sed 's/\[1,1,\[1\]/[1,1,[2]/' "$golden/chunk_size_vectors.json" >"$dir/files/c.json"
echo '[{"layers": 3}]' >"$dir/files/d.json"
expect 1 'failed: a.json: rank 0, op 35: recorded was |5| c2, we build |5| c3' \
    'failed: b.json: 62 events, of which no trace can be made' \
    'failed: c.json: row 0: 1 rows in 1 chunks are cut otherwise by us' \
    'failed: d.json: of no kind that is known here' \
    '3 passed, 4 failed, 0 skipped'
