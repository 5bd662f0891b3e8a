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

# What a run of AsyncPipe recorded may not differ in one event, nor a partition in one place.
events=$golden/asyncpipe_event_traces.json
partitions=$golden/asyncpipe_partition_vectors.json
rm "$dir/files/"*.json
sed 's/got<-1 Gra mb2 order0/the last/; s/got<-1 Gra mb0 order0/got<-1 Gra mb2 order0/
    s/the last/got<-1 Gra mb0 order0/' "$events" >"$dir/files/a.json"
sed 's/returned list len 3/returned list len 2/' "$events" >"$dir/files/b.json"
sed 's/send->1 Gra mb1 order3/send->1 Gra mb1 order2/' "$events" >"$dir/files/c.json"
sed 's/"seed_is_correct": *false/"seed_is_correct": true/' "$partitions" >"$dir/files/d.json"
sed 's/"correct_groups"/"groups"/' "$partitions" >"$dir/files/e.json"
sed 's/"dest": *"0@3"/"dest": "0@2"/' "$partitions" >"$dir/files/f.json"
expect 1 "failed: a.json: record 0: the schedule 'async' has other events" \
    "failed: b.json: record 0: the schedule 'async' has other events" \
    "failed: c.json: record 2: the schedule 'async' has other events" \
    'failed: d.json: record 4: seed_is_correct is true, not with us' \
    'failed: e.json: record 0: no correct_groups, expected a list' \
    'failed: f.json: record 4: the corrected partition is another one here' \
    '0 passed, 6 failed, 0 skipped'

# Further ones, by an oracle that shares no code with the library.
if ! command -v python3 >/dev/null; then
    echo "python3 is not installed, so that no further vectors could be made"
    exit 77
fi
rm "$dir/files/"*.json
for seed in 1 2; do
    python3 "$DP_TOP_SRCDIR/tests/system/asyncpipe_vectors.py" "$dir/files" "$seed"
    expect 0 'passed: partitions.json: 304 partitions' 'passed: events.json: 200 runs' \
        'passed: sizes.json: both rules, all 500 rows' '3 passed, 0 failed, 0 skipped'
done
