#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train_saved.sh - saved state of `dualpipe train`: a run that goes on from a checkpoint, under whatever
# layout, has the numbers of one that was never stopped; a kill harms no checkpoint; what is wrong with
# one is said.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1

# A model that is as small as the largest of the pipelines below allows.
small='--data text --layers 8 --width 8 --heads 2 --context 16 --batch 16 --steps 6 --eval-every 0'
small="$small --warmup 2 --dropout 0.1 --clip 0.5 --order-blocks 4 --sample 20"
alone='--schedule none --json'

# train OPTION... - the model above; what it prints is in $work/out.
train()
{
    # shellcheck disable=SC2086 # words
    run train $small --json "$@"
}

# numbers - of the steps that the last run took: step, loss, norm, rate; the end: held-out loss, sample.
numbers()
{
    sed -n -e 's/.*"event":"step","step":\([0-9]*\),\("loss":.*"rate":[^,]*\).*/\1 \2/p' \
        -e 's/.*"event":"end".*\("held_out":[^,]*\),.*\("sample":.*\)}/\1 \2/p' "$work/out"
}

# goes_on_from_step N FROM OPTION... - with the numbers of the run that was never stopped.
goes_on_from_step()
{
    step=$1 from=$2
    shift 2
    run train --data text --resume "$from" --eval-every 0 --sample 20 --json "$@" || return
    says "\"resumed_step\":$step" || return
    numbers >resumed
    sed "1,${step}d" whole | diff - resumed
}

# layout_saves_for_another SAVING RESUMING
layout_saves_for_another()
{
    rm -rf d
    # shellcheck disable=SC2086 # words
    train $1 --save d --save-every 2 || return
    says '"event":"save","step":2,"path":"d/step-000002"' '"step":6,"path":"d/step-000006"' || return
    numbers | diff whole - || return
    rm -r d/step-000006
    # shellcheck disable=SC2086 # words
    goes_on_from_step 4 d $2
    # shellcheck disable=SC2086 # words
    goes_on_from_step 2 d/step-000002 $2
}

saves_again_over_the_same_step()
{
    rm -rf d again
    train --schedule none --save d --save-every 2 || return
    mkdir again && cp -r d/step-000002 again || return
    run train --data text --resume again $alone --save again --save-every 2 || return
    ls again/step-000004 >names
    rm -r again/step-000006
    touch again/step-000004/rank-7.1.safetensors again/step-000004/rank-1.1.safetensors.partial # cut off
    run train --data text --resume again/step-000002 $alone --save again --save-every 2 || return
    [ "$(ls again/step-000004)" = "$(printf 'index.json\nrank-0.1.safetensors')" ] ||
        wrong "files: $(ls again/step-000004), before that $(cat names)" || return
    rm -r again/step-000006
    goes_on_from_step 4 again --schedule none
}

# One that was killed does not keep the next one from it.
one_job_at_a_time_saves_there()
{
    rm -rf d
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small --schedule none --steps 100000 --save d --save-every 1 >first 2>&1 </dev/null &
    pid=$! tries=0
    while [ "$(newest_step d)" = 0 ] && [ $tries -lt 2400 ] && kill -0 $pid; do
        sleep 0.05
        tries=$((tries + 1))
    done
    refuses_to_go_on 2 "--save ./d: another job saves there, process $pid on $(uname -n); expected" \
        --schedule none --steps 2 --save ./d
    refused=$?
    kill -9 $pid
    wait $pid 2>/dev/null
    [ $refused = 0 ] || return
    run train --data text --resume d --save d --steps $(($(newest_step d) + 1)) $alone
}

# The head's bias is there, its weights are the embedding's; neither is its state of the optimizer.
saves_a_tied_table_once()
{
    rm -rf d
    train -P 2 --save d || return
    run checkpoint show d || return
    says 'token embedding/mean' 'head bias/mean' || return
    ! grep -E "(^|[ '])head( |'|/|$)" "$work/out" | grep -v 'head bias' ||
        wrong 'the head is there twice' || return
    run train --resume d --prompt 'You ' --sample 8 --temperature 0
}

newest_step()
{
    for index in "$1"/step-*/index.json; do
        [ ! -e "$index" ] || newest=$(basename "${index%/index.json}")
    done
    newest=${newest#step-}
    echo "$((1${newest:-000000} - 1000000))"
}

losses()
{
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\).*/\1 \2/p' "$work/out"
}

# The norm alone is added up in another order; without clipping it matters nowhere.
pieces_of_the_state_are_put_together()
{
    rm -rf d
    train --schedule none --clip 0 || return
    losses >expected
    train --clip 0 -P 2 -D 2 --mix reduce-scatter --save d --save-every 4 || return
    rm -r d/step-000006
    run train --data text --resume d $alone --save d || return
    losses >resumed
    sed 1,4d expected | diff - resumed || return
    rm -r d/step-000006
    run train --data text --resume d --json -P 2 -s 1f1b --mix reduce-scatter || return
    losses | diff resumed -
}

# The gradients that are due are part of the checkpoint. Layouts: as of layout_saves_for_another.
late_updates_go_on()
{
    mv whole at-once
    train --schedule none --delay-update && numbers >whole || return
    layout_saves_for_another "$1 --delay-update" "$2"
    late_status=$?
    mv at-once whole
    return $late_status
}

# A checkpoint of updates at once has no gradients that are due.
late_updates_may_begin_later()
{
    rm -rf d
    train --schedule none --save d --save-every 2 || return
    rm -r d/step-000006
    run train --data text --resume d $alone --eval-every 0 --delay-update || return
    losses >resumed
    run train --data text --resume d $alone --eval-every 0 --delay-update --offload params \
        --device-memory 240K || return
    losses | diff resumed -
}

# The kill comes while a later checkpoint than the one that was waited for is computed, written or named.
# While the rate goes up it does not depend on the number of steps, so the killed runs have no end.
survives_kills()
{
    rm -rf d
    mkdir d
    many='--lr 10 --warmup 100000 --steps 100000 --sample 0' resume=
    for layout in '-P 2 -s 1f1b' '-s none --offload params,optimizer=. --device-memory 4M' '-s none' \
        '-P 2'; do
        # shellcheck disable=SC2086 # words
        "$dualpipe" train $small $many $resume $layout --save d --save-every 1 >killed 2>&1 </dev/null &
        pid=$! before=$(newest_step d) tries=0
        while [ "$(newest_step d)" -le "$before" ] && [ $tries -lt 2400 ] && kill -0 $pid; do
            sleep 0.05
            tries=$((tries + 1))
        done
        kill -9 $pid
        wait $pid
        [ "$(newest_step d)" -gt "$before" ] || wrong "no checkpoint after $before: $(cat killed)" || return
        resume='--resume d'
    done 2>/dev/null
    step=$(newest_step d)
    # shellcheck disable=SC2086 # words
    train $many --steps $((step + 2)) --schedule none || return
    losses | sed "1,${step}d" >expected
    run train --data text --resume d --steps $((step + 2)) --sample 0 $alone || return
    losses | diff expected -
}

# survives_a_kill_in_a_write SHELL-COMMAND WHAT-IT-SAYS
survives_a_kill_in_a_write()
{
    rm -rf d
    train --schedule none --save d --save-every 2 || return
    rm -r d/step-000006
    printf '#!/bin/sh\n%s\nulimit -f 8 && exec %s "$@"\n' "$1" "$dualpipe" >limited
    chmod +x limited
    command=$dualpipe dualpipe=./limited
    run train --data text --resume d --save d --save-every 1 -s none >/dev/null && wrong 'no kill' && return
    dualpipe=$command
    [ ! -e d/step-000005/index.json ] || wrong 'it was written' || return
    grep -qF -e "$2" "$work/err" || wrong "$(cat "$work/err")" || return
    goes_on_from_step 4 d -P 2
}

# refuses_to_go_on STATUS TEXT OPTION...
refuses_to_go_on()
{
    status_wanted=$1 text_wanted=$2
    shift 2
    refuses "$status_wanted" "$text_wanted" train --data text "$@"
}

# damaged COMMAND... - done to a copy of a checkpoint.
damaged()
{
    rm -rf broken && cp -r good broken && "$@"
}

flip()
{
    printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

damage_is_named()
{
    damaged truncate -s 1000 broken/step-000006/rank-0.0.safetensors || return
    refuses_to_go_on 2 "broken/step-000006/rank-0.0.safetensors': " --resume broken || return
    damaged flip broken/step-000006/rank-1.0.safetensors 100 || return
    refuses_to_go_on 2 "broken/step-000006/rank-1.0.safetensors': " --resume broken || return
    size=$(wc -c <good/step-000006/rank-1.0.safetensors)
    damaged flip broken/step-000006/rank-1.0.safetensors $((size - 9)) || return
    refuses_to_go_on 1 "rank-1.0.safetensors': tensor '" --resume broken --steps 9 --schedule none || return
    damaged sed -i 's/--seed=1/--seed=2/' broken/step-000006/index.json || return
    refuses_to_go_on 2 "broken/step-000006/index.json': it does not have the checksum" --resume broken || return
    damaged rm broken/step-000006/rank-1.0.safetensors || return
    refuses_to_go_on 2 'cannot open it: No such file or directory' --resume broken
}

version()
{
    "$dualpipe" --version | sed -n '1s/dualpipe //p'
}

wrong_input_is_named()
{
    mkdir -p empty other
    echo '{"weight_map": {}}' >other/index.json
    refuses_to_go_on 2 '--resume nowhere: No such file or directory; expected a folder' --resume nowhere || return
    refuses_to_go_on 2 '--resume empty: no checkpoint there; expected index.json' --resume empty || return
    refuses_to_go_on 2 "expected a checkpoint of 'dualpipe train'; this file is another" --resume other || return
    refuses_to_go_on 2 "text'" --resume text || return
    damaged sed -i 's/dualpipe.index_crc32c/unchecked/; s/--seed=1/--seed=1\\",\\"--brightness=3/' \
        broken/step-000006/index.json || return
    refuses_to_go_on 2 "written by version $(version) with --brightness=3, which this one, $(version), does not have" \
        --resume broken --steps 9 || return
    refuses_to_go_on 2 '--trace good/step-000006/x: is in the folder of the checkpoint' --resume good \
        --trace good/step-000006/x || return
    refuses_to_go_on 2 '--width 16: expected 8, as the model in good/step-000006/index.json has it' \
        --resume good --width 16 || return
    refuses_to_go_on 2 '--tie-embeddings: expected none, as the model in good/' --resume good \
        --tie-embeddings || return
    refuses_to_go_on 2 '--layers 4: expected 8' --resume good --layers 4 -P 2 || return
    refuses_to_go_on 2 '--steps 6: expected more than the 6 that are done' --resume good || return
    refuses_to_go_on 2 '--save-every 3: expected --save' --save-every 3 || return
    refuses_to_go_on 2 '--save text: Not a directory' --save text || return
    refuses_to_go_on 2 '--save no/such/d: No such file or directory' --save no/such/d || return
    refuses_to_go_on 2 '--mix ring: expected all-reduce, as in good/' --resume good -D 2 --mix ring || return
    refuses_to_go_on 2 '--prompt: expected --resume' --prompt a || return
    refuses_to_go_on 2 '--prompt with --data text: expected one of them' --resume good --prompt a || return
    refuses 2 '--prompt with --save: expected' train --resume good --prompt a --save d || return
    refuses 2 '--temperature -1: expected' train --resume good --prompt a --temperature -1 || return
    [ ! -e no ]
}

# options_are_incomplete SED-SCRIPT SENTENCE - by who goes on, who writes and who verifies.
options_are_incomplete()
{
    damaged sed -i "s/dualpipe.index_crc32c/unchecked/; $1" broken/step-000006/index.json || return
    refuses 2 "broken/step-000006/index.json: $2" train --resume broken --prompt hi || return
    refuses_to_go_on 2 "broken/step-000006/index.json: $2" --resume broken --steps 9 || return
    "$dualpipe" checkpoint verify broken >out 2>err && wrong 'is verified' && return 1
    grep -qF "dualpipe: broken/step-000006/index.json: $2" err || wrong "$(cat err)"
}

another_text_is_noticed()
{
    sed 's/the/THE/' text >another
    run train --data another --resume good --steps 7 --sample 0 || return
    says 'after 6 steps, from good/step-000006/index.json; they learned from another text than --data' || return
    run train --data another --resume good --steps 7 --sample 0 --json || return
    says '"other_data":true' || return
    run train --data text --resume good --steps 7 --sample 0 || return
    ! grep -q 'another text' "$work/out"
}

# A file system that takes no files says so when one is made, whatever its permissions are.
a_folder_that_takes_no_files_is_refused_before_any_step()
{
    [ -d /proc/self ] || skip 'this system has no /proc'
    refuses_to_go_on 2 '--save /proc/saved: No such file or directory; expected a folder' --save /proc/saved || return
    refuses_to_go_on 2 '--save /proc: ' --save /proc || return
    [ ! -s "$work/out" ] || wrong "it began: $(cat "$work/out")"
}

writes_text_from_a_saved_model()
{
    run train --resume "$1" --prompt 'You ' --sample 40 --json || return
    says '"event":"sample","step":6,"prompt":"You ","sample":"' || return
    cp "$work/out" first
    run train --resume "$1" --prompt 'You ' --sample 40 --json || return
    cmp "$work/out" first || return
    run train --resume "$1" --prompt 'You ' --sample 40 --json --seed 2 || return
    ! cmp -s "$work/out" first || wrong 'the seed changes nothing' || return
    run train --resume "$1" --prompt 'You ' --sample 40 --temperature 0 || return
    cp "$work/out" first
    run train --resume "$1" --prompt 'You ' --sample 40 --temperature 0 --seed 2 || return
    cmp "$work/out" first && says 'You '
}

# The text at the end of a run is drawn from the weights that were saved then.
writes_what_the_run_wrote()
{
    sed -n 's/.*"event":"end".*"sample":\(.*\)}/\1/p' whole_run >expected
    run train --resume good --prompt '' --sample 20 --json || return
    sed -n 's/.*"sample":\(.*\)}/\1/p' "$work/out" | diff expected -
}

# mixing_goes_on STEP OPTION...
mixing_goes_on()
{
    at=$1
    shift
    rm -rf d
    train "$@" || return
    losses >expected
    [ "$(wc -l <expected)" = 6 ] || wrong "few losses: $(cat expected)" || return
    train "$@" --save d --save-every 1 || return
    losses | diff expected - || return
    run checkpoint verify d || return
    run train --data text --resume "d/step-00000$at" --eval-every 0 --sample 20 --json || return
    says "\"resumed_step\":$at" || return
    losses >resumed
    sed "1,${at}d" expected | diff - resumed || return
    writes_text_from_a_saved_model d
}

# keeps_the_layout SAVING RESUMING WHAT-IT-SAYS - of the run that goes on; to say "dualpipe: ..." it fails.
keeps_the_layout()
{
    rm -rf d
    # shellcheck disable=SC2086 # words
    run train --data text --layers 4 --width 8 --heads 2 --context 8 --batch 8 --steps 1 --sample 0 $1 \
        --save d || return
    # shellcheck disable=SC2086 # words
    case $3 in
    dualpipe:*) refuses 2 "${3#dualpipe: }" train --data text --sample 0 --resume d --steps 2 $2 ;;
    *) run train --data text --sample 0 --json --resume d --steps 2 $2 && says "$3" '"resumed_step":1' ;;
    esac
}

layouts_are_kept_unless_told_otherwise()
{
    in='as in d/step-000001/index.json'
    # What is saved | how it goes on | how, or the mistake
    while IFS='|' read -r saving resuming outcome; do
        keeps_the_layout "$saving" "$resuming" "$outcome" ||
            wrong "saved with '$saving', went on with '$resuming'" || return
    done <<END
-s none -M 2||"schedule":"none","ranks":1
-s none -M 4|-P 2|"schedule":"dualpipe","ranks":2
-s none -M 2|-P 2|dualpipe: microbatches: 2, expected at least 4, twice the ranks; --microbatches=2 $in
-s 1f1b -P 2 -M 4 --blocks 1,3||"schedule":"1f1b","ranks":2
-s 1f1b -P 2 -M 4 --blocks 1,3|-P 4|"schedule":"1f1b","ranks":4
-s 1f1b -P 2 -M 4 --blocks 1,3|-s zb1p|"schedule":"zb1p","ranks":2
-s 1f1b -P 2 -M 4 --blocks 1,3|-s none|"schedule":"none","ranks":1
-s 1f1b -P 2 -M 4|-P 3|dualpipe: --layers 4: expected a multiple of 3, the number of stages; --layers=4 $in
-s interleaved -P 2 -M 4 --virtual-stages 2||"schedule":"interleaved","ranks":2
-s 1f1b -P 2 -D 2 -M 4 --mix reduce-scatter||"schedule":"1f1b","ranks":2,"replicas":2,"mix":"reduce-scatter"
-s none -D 2 -M 4|--offload params --device-memory 4M|"schedule":"none","ranks":1,"replicas":1
-s none -D 2 -M 4|-D 1|"schedule":"none","ranks":1,"replicas":1
-s none -D 2 -M 4|--batch 6|dualpipe: --batch 6: expected a multiple of 4, the number of micro-batches (-M); --microbatches=4 $in
END
}

mixing_keeps_its_layout()
{
    why='replicas that mix their weights go on as they were'
    refuses_to_go_on 2 "--replicas 4: expected 2, as in d/step-000006/index.json; $why" \
        --resume d --steps 9 -D 4 || return
    refuses_to_go_on 2 '--mix all-reduce: expected ring' --resume d --steps 9 --mix all-reduce || return
    refuses_to_go_on 2 '--ranks 4: expected 2' --resume d --steps 9 -P 4 || return
    refuses_to_go_on 2 '--schedule 1f1b: expected dualpipe' --resume d --steps 9 -s 1f1b
}

train --schedule none || exit 1
numbers >whole
[ "$(wc -l <whole)" = 7 ] || wrong "few numbers: $(cat whole)" || exit 1
it layout_saves_for_another '-P 4' '-P 2 -s 1f1b'
it layout_saves_for_another '-P 2 -s dualpipev --transport tcp' '--schedule none'
it layout_saves_for_another '--schedule none -D 2' '-s none --offload params --device-memory 240K'
it layout_saves_for_another '-s none --offload params --device-memory 240K' '-P 2 -s zb1p'
it layout_saves_for_another '-P 2 --offload params,activations --device-memory 4M' '-s none'
it layout_saves_for_another '-s none --offload params --device-memory 500K --device-share 0.4' '-P 2 -s 1f1b'
it layout_saves_for_another '-P 2' '-s none --offload params,optimizer=. --device-memory 500K --device-share 0.4'
it layout_saves_for_another '-P 2 --offload params --device-memory 4M --device-share 0.6' \
    '-P 2 -s 1f1b --offload params,optimizer=. --device-memory 4M --device-share 0.4'
it late_updates_go_on '-s none --offload params --device-memory 240K' '-P 2 -s 1f1b'
it late_updates_go_on '-P 2' '-s none --offload params,optimizer=. --device-memory 240K'
it late_updates_may_begin_later
it pieces_of_the_state_are_put_together
it saves_again_over_the_same_step
it one_job_at_a_time_saves_there
it survives_kills
it survives_a_kill_in_a_write '' ''
it survives_a_kill_in_a_write "trap '' XFSZ" "d/step-000005/rank-0.0.safetensors': cannot write it: File too large"
untied=$small
small="$small --tie-embeddings"
mv whole whole_untied
train --schedule none || exit 1
numbers >whole
it layout_saves_for_another '-P 4' '-P 2 -s 1f1b'
it layout_saves_for_another '-P 2 -s 1f1b' '--schedule none'
it saves_a_tied_table_once
small=$untied
mv whole_untied whole
train -P 2 --save good || exit 1
cp "$work/out" whole_run
it writes_what_the_run_wrote
it writes_text_from_a_saved_model good
it another_text_is_noticed
it a_folder_that_takes_no_files_is_refused_before_any_step
it mixing_goes_on 1 -s none -D 2 --mix ring
it mixing_goes_on 3 -s none -D 4 --mix one-peer-exp --clip 0
it mixing_goes_on 2 -s none -D 2 --mix directed-exp
it mixing_goes_on 4 -P 2 -s 1f1b -D 2 --mix complete --mix-algorithm local-sgd --local-steps 3 --outer-momentum 0.3
it mixing_goes_on 3 -s none -D 2 --mix ring --mix-algorithm local-sgd --transport tcp
it mixing_goes_on 3 -s none -D 2 --mix ring --mix-compress int8 --mix-factor 0.5
it mixing_goes_on 2 -s none -D 4 --mix one-peer-exp --mix-compress int8
it mixing_goes_on 5 -P 2 -D 2 --mix ring
it mixing_keeps_its_layout
it layouts_are_kept_unless_told_otherwise
it damage_is_named
it options_are_incomplete 's/\\"--microbatches=[0-9]*\\",//' 'no --microbatches among its options, expected one'
it options_are_incomplete 's/--heads=2/--heads=3/' '--width=8 among its options, expected a multiple of 3, its --heads'
it wrong_input_is_named
finish
