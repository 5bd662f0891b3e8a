#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# checkpoint.sh - `dualpipe checkpoint`: what is damaged or missing is named, what is there is shown, and
# an exported model is the same whatever layout it was saved under.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1

# save DIR OPTION... - three steps of a model that is as small as its pipeline allows.
save()
{
    dir=$1
    shift
    run train --data text --layers 8 --width 8 --heads 2 --context 16 --batch 16 --steps 3 --eval-every 0 \
        --order-blocks 4 --sample 0 --save "$dir" --json "$@"
}

says_that_all_is_there()
{
    run checkpoint verify "$1" || return
    says "$1/step-000003/index.json: whole: 408 tensors"
}

# names_the_fault TEXT DONE... - to a copy of the checkpoint in `good`.
names_the_fault()
{
    text=$1
    shift
    rm -rf broken && cp -r good broken && (cd broken/step-000003 && "$@") || return
    run checkpoint verify broken >/dev/null && wrong 'it is whole' && return
    [ "$status" = 1 ] || wrong "status $status" || return
    grep -qF -e "$text" "$work/err" || wrong "no '$text' in $(cat "$work/err")" || return
    [ -z "${may_export:-}" ] || return 0
    run checkpoint export broken -o never.safetensors >/dev/null && wrong 'it is exported' && return
    [ ! -e never.safetensors ]
}

flip_in_data()
{
    size=$(wc -c <"$1")
    printf '\377' | dd of="$1" bs=1 seek=$((size - $2)) conv=notrunc 2>/dev/null
}

flip_twice()
{
    flip_in_data rank-0.0.safetensors 9 && flip_in_data rank-1.0.safetensors 9
}

names_every_fault()
{
    may_export=yes names_the_fault "tensor '" flip_twice || return
    [ "$(grep -c 'rank-[01].0.safetensors.: tensor .* it was damaged' "$work/err")" = 2 ] ||
        wrong "$(cat "$work/err")" || return
    says 'CANNOT be used: 2 faults in 408 tensors'
}

without()
{
    sed -e "\\|\"$1\": |d" -e 's/dualpipe.index_crc32c/unchecked/' index.json >i && mv i index.json
}

# verifies_as_it_resumes OPTIONS TENSOR - without that tensor, if there is one: neither does it.
verifies_as_it_resumes()
{
    rm -rf d
    # shellcheck disable=SC2086 # words
    run train --data text --layers 4 --width 8 --heads 2 --context 16 --batch 16 -M 8 --steps 2 --sample 0 $1 --save d || return
    [ -z "$2" ] || (cd d/step-000002 && without "$2") || return
    [ -z "$2" ] || ! grep -q "\"$2\": " d/step-000002/index.json || wrong 'it is still there' || return
    verified=0 resumed=0
    run checkpoint verify d >/dev/null || verified=$status
    says_of_verify=$(cat "$work/err")
    # shellcheck disable=SC2086 # words
    run train --data text --resume d --steps 3 --sample 0 >/dev/null || resumed=$status
    [ "$((verified > 0))" = "$((resumed > 0))" ] ||
        wrong "verify: $verified, $says_of_verify; resume: $resumed, $(cat "$work/err")" || return
    [ -z "$2" ] || [ "$verified" = 1 ] || wrong 'nothing is missing'
}

shows_what_there_is()
{
    run checkpoint show good || return
    says 'step        3' '--layers=8' 'layout      --schedule=dualpipe --ranks=2 --slack=0 --' ' --replicas=1 ' \
        'parameters  102 tensors' 'state       306 tensors' 'rank-1.0.safetensors' \
        'block 3 qkv' '8 x 24' || return
    command -v jq >/dev/null || skip 'jq is not installed'
    run checkpoint show good --json || return
    jq -e '.step == 3 and (.tensors | length) == 408 and (.files | length) == 2 and
        ([.tensors[] | select(.parameter)] | length) == 102 and
        (.tensors[] | select(.name == "block 3 qkv") | .dtype == "F32" and .shape == [8, 24])' \
        "$work/out" >/dev/null || wrong "$(head -c 600 "$work/out")"
}

# Read by hand: the header's length, the header, tensors without gaps.
is_plain_safetensors()
{
    command -v python3 >/dev/null || skip 'python3 is not installed'
    run checkpoint export good -o model.safetensors || return
    python3 - model.safetensors <<'PYTHON'
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
length, = struct.unpack('<Q', data[:8])
header = json.loads(data[8:8 + length])
assert all(isinstance(v, str) for v in header.pop('__metadata__').values())
assert len(header) == 102 and not any('/' in name for name in header), sorted(header)
at = 0
for name, t in sorted(header.items(), key=lambda item: item[1]['data_offsets']):
    begin, end = t['data_offsets']
    count = 1
    for n in t['shape']:
        count *= n
    assert begin == at and t['dtype'] == 'F32' and end - begin == 4 * count, (name, t)
    at = end
assert at == len(data) - 8 - length
assert header['block 3 qkv']['shape'] == [8, 24]
PYTHON
}

exports_the_same_model()
{
    rm -rf d
    # shellcheck disable=SC2086 # words
    save d $1 || return
    run checkpoint verify d || return
    run checkpoint export d -o other.safetensors || return
    cmp good.safetensors other.safetensors
}

takes_the_newest()
{
    cp -r good two && cp -r good/step-000003 two/step-000010 && mkdir two/step-000011 || return
    run checkpoint show two && says 'checkpoint  two/step-000010/index.json' || return
    run checkpoint show two/step-000003 && says 'two/step-000003/index.json' || return
    run checkpoint verify good.safetensors && says 'good.safetensors: whole: 102 tensors'
}

refuses_bad_input()
{
    refuses 2 "'dualpipe checkpoint verify' needs DIR" checkpoint verify || return
    refuses 2 "'more' is too much" checkpoint show good more || return
    refuses 2 'nowhere: No such file or directory; expected a folder' checkpoint verify nowhere || return
    mkdir -p empty
    refuses 2 'empty: no checkpoint there; expected index.json' checkpoint verify empty || return
    refuses 2 '--output is missing: expected the file' checkpoint export good || return
    refuses 2 '--output -: expected the file' checkpoint export good -o - || return
    refuses 1 "text'" checkpoint verify text || return
    refuses 1 'no/such/file' checkpoint export good -o no/such/file || return
    refuses 2 'is also an input' checkpoint export good -o good/step-000003/rank-1.0.safetensors || return
    refuses 2 'is also an input' checkpoint export good -o good/step-000003/index.json || return
    says_that_all_is_there good
}

save good -P 2 || exit 1
run checkpoint export good -o good.safetensors || exit 1
it says_that_all_is_there good
# The last tensor of a file is the optimizer's.
may_export=yes
it names_the_fault "rank-1.0.safetensors': tensor '" flip_in_data rank-1.0.safetensors 9
may_export=
it names_the_fault "rank-0.0.safetensors': " truncate -s 1000 rank-0.0.safetensors
it names_the_fault "rank-1.0.safetensors': cannot open it: No such file" rm rank-1.0.safetensors
it names_the_fault "index.json': line" truncate -s 300 index.json
may_export=yes
it names_the_fault "tensor 'block 5 up' is missing" without 'block 5 up'
it names_the_fault "tensor 'head' is missing" without head
it names_the_fault "tensor 'position embedding' is missing" without 'position embedding'
it names_the_fault "tensor 'head/mean' is missing" without head/mean
it names_the_fault "index.json': it does not have the checksum that it says" sed -i 's/--layers=8/--layers=4/' index.json
it names_every_fault
# What --resume reads is whole, and what it does not read is not.
it verifies_as_it_resumes '-s none --delay-update' ''
it verifies_as_it_resumes '-s none --delay-update' 'late/step'
it verifies_as_it_resumes '-P 2 --delay-update' 'block 3 qkv/late'
it verifies_as_it_resumes '-P 2 --tie-embeddings' 'token embedding'
it verifies_as_it_resumes '-P 2 -D 2 --mix reduce-scatter' ''
it verifies_as_it_resumes '-P 2 -D 2 --mix reduce-scatter' 'head\[[0-9:]*\]/square'
it verifies_as_it_resumes '-s none -D 2 --mix ring' ''
it verifies_as_it_resumes '-s none -D 2 --mix ring' 'replica 1/block 2 up'
it verifies_as_it_resumes '-s 1f1b -P 2 -D 2 --mix ring' 'replica 1 stage 1/head/mean'
it verifies_as_it_resumes '-s 1f1b -P 2 -D 2 --mix ring' 'replica 0 stage 0/mixer/numbers'
it shows_what_there_is
it is_plain_safetensors
it exports_the_same_model '--schedule none'
it exports_the_same_model '-P 4 -s dualpipev'
it exports_the_same_model '-P 2 -D 2 -s 1f1b'
it takes_the_newest
it refuses_bad_input
finish
