#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train.sh - `dualpipe train`: what it refuses, and that every schedule over every transport prints
# the numbers of the plain loop. Signals and dying ranks: test_train.c.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
text=text # a name without blanks, wherever the sources are
cp "$DP_TOP_SRCDIR/LICENSE" $text || exit 1

# What learns takes 40 steps. Under a sanitizer there are fewer: more of them run the same code.
case $DP_CC in
*-fsanitize*) steps=4 learning=12 learned=5.2 ;;
*) steps=6 learning=40 learned=4 ;;
esac
# A model that is as small as the largest of the pipelines below allows.
small="--data $text --layers 8 --width 8 --heads 2 --context 16 --batch 16 --sample 20"
small="$small --steps $steps --eval-every $((steps / 2))"

# refuses_bad_input WHAT-IT-SAYS OPTIONS
refuses_bad_input()
{
    options=$(echo "$2" | sed "s|@|$text|")
    # shellcheck disable=SC2086 # words
    refuses 2 "$1" train $options || return
    [ ! -s "$work/out" ] || wrong "train $options prints $(cat "$work/out")" || return
    [ ! -e t.svg ] || wrong "train $options leaves a file"
}

# numbers_of ARGUMENT... - steps, losses, norms and held-out losses to the last digit; the sample.
numbers_of()
{
    # shellcheck disable=SC2086 # words
    run train $small --json "$@" || return
    sed -n -e 's/.*"step":\([0-9]*\),"loss":\([^,]*\),"norm":\([^,]*\).*/\1 \2 \3/p' \
        -e 's/.*"first_loss":\([^,]*\),.*"held_out":\([^,]*\),.*\("sample":.*\)}/\1 \2 \3/p' \
        "$work/out"
}

# OpenBLAS, asked to, says which it has taken when it is loaded.
computes_with_the_kernels_of_this_processor()
{
    (unset OPENBLAS_CORETYPE && OPENBLAS_VERBOSE=2 run train $small --steps 1) || return
    grep -q '^flags.* avx2 .*' /proc/cpuinfo || return 0
    ! sed -n 's/^Core: //p' "$work/err" | tail -n 1 | grep -E 'Prescott|Core2|Nehalem|Barcelona|Opteron'
}

prints_the_numbers_of_the_plain_loop()
{
    if [ ! -s "$work/expected" ]; then
        numbers_of --schedule none --dropout 0.1 --clip 0.5 >"$work/expected" || return
        [ "$(wc -l <"$work/expected")" = $((steps + 1)) ] ||
            wrong "few numbers: $(cat "$work/expected")" || return
    fi
    numbers_of --dropout 0.1 --clip 0.5 "$@" >"$work/numbers" || return
    diff "$work/expected" "$work/numbers"
}

# late_updates_print_the_numbers_of_the_plain_loop OPTIONS... - gradients are used a step later: so the
# second step has the first one's weights, and the third has others.
late_updates_print_the_numbers_of_the_plain_loop()
{
    set -- --clip 0.5 --delay-update "$@"
    if [ ! -s "$work/expected-late" ]; then
        numbers_of --schedule none --clip 0.5 --delay-update >"$work/expected-late" || return
        numbers_of --schedule none --clip 0.5 --lr 1e-5 --delay-update >"$work/never" || return
        [ "$(sed -n 2p "$work/never")" = "$(sed -n 2p "$work/expected-late")" ] ||
            wrong 'the first gradient is used too early' || return
        [ "$(sed -n 3p "$work/never")" != "$(sed -n 3p "$work/expected-late")" ] ||
            wrong 'the first gradient is not used in time' || return
    fi
    numbers_of "$@" >"$work/numbers" || return
    diff "$work/expected-late" "$work/numbers"
}

# tied_prints_the_numbers_of_the_plain_loop OPTIONS... - the head is the table of the embedding.
tied_prints_the_numbers_of_the_plain_loop()
{
    set -- --dropout 0.1 --clip 0.5 --order-blocks 4 --tie-embeddings "$@"
    if [ ! -s "$work/expected-of-tied" ]; then
        numbers_of --dropout 0.1 --clip 0.5 --order-blocks 4 --schedule none >"$work/apart" || return
        apart=$(sed -n 's/.*"parameters":\([0-9]*\).*/\1/p' "$work/out")
        numbers_of "$@" --schedule none -P 1 -D 1 --execution list >"$work/expected-of-tied" || return
        says "\"parameters\":$((apart - 256 * 8))," || return
        ! cmp -s "$work/apart" "$work/expected-of-tied" || wrong 'nothing is tied' || return
    fi
    numbers_of "$@" >"$work/numbers" || return
    diff "$work/expected-of-tied" "$work/numbers"
}

# replicas_print_the_numbers_of_one OPTIONS... - in the fixed order.
replicas_print_the_numbers_of_one()
{
    set -- --dropout 0.1 --clip 0.5 --batch 32 -M 32 --order-blocks 8 "$@"
    if [ ! -s "$work/expected-of-one" ]; then
        numbers_of --schedule none --dropout 0.1 --clip 0.5 --batch 32 -M 32 --order-blocks 8 \
            >"$work/expected-of-one" || return
    fi
    numbers_of "$@" >"$work/numbers" || return
    diff "$work/expected-of-one" "$work/numbers"
}

# The norm alone is added up in another order; without clipping it matters nowhere.
losses_of()
{
    numbers_of "$@" --clip 0 --dropout 0.1 --batch 32 -M 32 --order-blocks 8 | cut -d ' ' -f 1,2
}

optimizers_with_a_share_learn_the_same()
{
    if [ ! -s "$work/expected-losses" ]; then
        losses_of --schedule none >"$work/expected-losses" || return
    fi
    losses_of --mix reduce-scatter "$@" >"$work/numbers" || return
    diff "$work/expected-losses" "$work/numbers"
}

# Updates in the middle of a step against those after it: the limit is never reached.
mixing_without_clipping_begins_early()
{
    numbers_of --mix "$@" --clip 0 >"$work/early" || return
    numbers_of --mix "$@" --clip 1e9 >"$work/late" || return
    diff "$work/late" "$work/early"
}

# pipelines_mix_like_whole_replicas D GRAPH PIPELINE... - as many replicas of one rank, in the fixed order.
pipelines_mix_like_whole_replicas()
{
    fixed="-D $1 --mix $2 --clip 0.5 --dropout 0.1 --batch 32 -M 32 --order-blocks 8"
    shift 2
    # shellcheck disable=SC2086 # words
    numbers_of --schedule none $fixed >"$work/whole-replicas" || return
    # shellcheck disable=SC2086 # words
    numbers_of $fixed "$@" >"$work/numbers" || return
    diff "$work/whole-replicas" "$work/numbers"
}

# replicas_mix HOW OPTIONS... - and the average of their models has learned.
replicas_mix()
{
    numbers_of --lr 0.02 --steps $learning --batch 32 -M 16 --mix "$@" >"$work/numbers" || return
    tail -n 1 "$work/numbers" | awk '{ exit !($1 > 6 && $2 < '$learned') }' || wrong "$(cat "$work/numbers")"
}

refuses_to_mix_that_way()
{
    for way in '--mix-algorithm local-sgd|expected --mix with a graph' \
        '--mix ring --local-steps 2|expected --mix-algorithm local-sgd' \
        '--mix all-reduce -D 1 --survive|expected -D 2 or more, or --schedule dualpipe' \
        '--mix complete -D 1 --survive|--survive: expected -D 2 or more' \
        '--mix all-reduce --survive --restart 1|expected --spare instead of --restart' \
        '--mix ring --restart 2|--restart 2: expected --survive' \
        '--mix ring --survive --transport mpi|expected --transport auto, shm or tcp' \
        '--mix ring --survive --save folder|expected no --save' \
        '--mix ring --mix-local 3|workers of a node: 3, expected a divisor of 4' \
        '--mix-local 2|expected --mix with the name of a graph' \
        '--mix rign|did you mean ring?' \
        '--mix alternating-exp-ring --mix-local 4|at least 2 nodes' \
        '--mix ring --mix-algorithm exact-diffusion|expected one of d-psgd, local-sgd' \
        '--mix-compress int8|expected --mix with a graph' \
        '--mix-staleness 1|expected --mix with a graph' \
        '--mix ring --mix-staleness 1 --mix-compress int8|expected one of the two' \
        '--mix directed-exp --mix-staleness 1|without push-sum' \
        '--mix ring --mix-compress topk=0.1|expected one of none, int8' \
        '--mix directed-exp --mix-compress int8|without push-sum' \
        '--mix ring --mix-compress int8 --mix-algorithm local-sgd|expected --mix-algorithm d-psgd' \
        '--mix ring --width 63|--width 63: expected a multiple' \
        '--mix directed-exp --mix-algorithm local-sgd|without push-sum'; do
        # shellcheck disable=SC2086 # words
        refuses 2 "${way#*|}" train $small --schedule none -D 4 ${way%|*} || return
    done
}

refuses_to_survive_that_way()
{
    for way in '--schedule dualpipev --survive|expected -D 2 or more, or --schedule dualpipe, whose mirrors' \
        '--survive -P 2 -D 2 --mix complete|expected --mix all-reduce or reduce-scatter' \
        '--survive --delay-update|expected no --delay-update' \
        '--survive --checkpoint always --checkpoint-stages 0|expected no --checkpoint-stages' \
        '--survive --restart 1|expected --spare instead of --restart' \
        '--survive --transport mpi|expected --transport auto, shm or tcp' \
        '--spare 1|--spare 1: expected --survive' \
        '--schedule none -D 2 --mix ring --survive --spare 1|--spare 1: expected a pipeline'; do
        # shellcheck disable=SC2086 # words
        refuses 2 "${way#*|}" train $small ${way%|*} || return
    done
}

learns()
{
    # shellcheck disable=SC2086 # words
    run train $small -P 2 --schedule 1f1b --steps $learning --lr 0.02 || return
    says 'model     8 blocks' 'schedule  1f1b on 2 ranks' "step $learning/$learning  loss" "done      $learning steps" \
        'bubble' 'memory' 'sample' || return
    awk '/^loss/ { exit !($2 > 6 && $5 < '$learned' && $8 < '$learned') }' "$work/out" || wrong "$(cat "$work/out")"
}

says_what_is_on_the_device()
{
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --offload params --device-memory 240K || return
    says 'offload   ' '0 on the host, 72 recomputed; parameters in passing; ' 'overlap   ' 'limited by' ||
        return
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --offload params --device-memory 240K --json || return
    says '"offload":{"sets":80,' '"kept_share":0.0,' '"params_on_host":true' '"limited_by":"' || return
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --offload params --device-memory 500K --device-share 0.4 || return
    says ' % of the parameters always; ' 'limited by'
}

mixed_precision_is_that_of_the_plain_loop()
{
    set -- --schedule none --dropout 0.1 --clip 0.5 --order-blocks 2 --dtype bf16
    numbers_of "$@" >"$work/expected-of-bf16" || return
    numbers_of "$@" --offload params,optimizer --device-memory 320K >"$work/numbers" || return
    says '"offload":{"sets":' || return
    diff "$work/expected-of-bf16" "$work/numbers" || return
    numbers_of "$@" --offload params --device-memory 500K --device-share 0.5 >"$work/numbers" || return
    diff "$work/expected-of-bf16" "$work/numbers" || return
    numbers_of "$@" --dtype f32 >"$work/numbers" || return
    ! cmp -s "$work/expected-of-bf16" "$work/numbers" || wrong 'nothing was rounded'
}

keeps_a_share_in_a_pipeline()
{
    prints_the_numbers_of_the_plain_loop -P 2 --offload params --device-memory 4M --device-share 1 || return
    says '"params_on_host":true,"kept_share":1.0,' || return
    # shellcheck disable=SC2086 # words
    run train $small -P 2 --offload params --device-memory 4M --device-share 0.6 || return
    says '; parameters in passing, ' ' % of the parameters always; ' || return
    refuses 2 '--device-share: expected --offload params' train $small -P 2 --offload activations \
        --device-memory 4M --device-share 0.6
}

says_how_much_memory_would_do()
{
    # shellcheck disable=SC2086 # words
    refuses 1 'offload: rank 0 takes ' train $small --schedule none --offload params --device-memory 20000
    need=$(sed -n 's/.*takes \([0-9]*\) bytes with .*/\1/p' "$work/err")
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --offload params --device-memory "$need"
}

# trains_in_what_it_asks_for OPTIONS... - in the least device memory the numbers are the same, and no more
# than that is used.
trains_in_what_it_asks_for()
{
    # shellcheck disable=SC2086 # words
    refuses 1 'offload: rank ' train $small --dropout 0.1 --clip 0.5 --device-memory 1K "$@" || return
    need=$(sed -n 's/.*takes \([0-9]*\) bytes with .*/\1/p' "$work/err" | head -n 1)
    prints_the_numbers_of_the_plain_loop "$@" --device-memory "$need" || return
    used=$(sed -n 's/.*"device_bytes":\([0-9]*\),.*/\1/p' "$work/out")
    [ "$used" -gt 0 ] && [ "$used" -le "$need" ] || wrong "$used of $need bytes" || return
    case $* in
        *zb1p*) ;; # its last rank holds the most, and frees nothing between I and W
        *activations*)
            grep -q '"evicted":[1-9]\|"recomputed":[1-9]' "$work/out" || wrong 'all are kept' ;;
    esac
}

draws_the_last_step()
{
    # shellcheck disable=SC2086 # words
    run train $small --timeline step.svg --trace step.json || return
    says 'timeline  step.svg' 'trace     step.json' || return
    grep -q '</svg>' step.svg && grep -q '"traceEvents"' step.json || wrong 'bad files' || return
    width=$(sed -n '1s/.* width="\([0-9]*\)".*/\1/p' step.svg)
    [ "$width" -le 1000 ] || wrong "wider than a page: $width px"
}

# carries_out_a_list FORMAT KIND -P N
carries_out_a_list()
{
    # shellcheck disable=SC2086 # words
    run schedule export $2 "$3" "$4" -M 8 --format "$1" -o list || return
    prints_the_numbers_of_the_plain_loop --file list
}

# By hand: messages, actions that are passed over, and a rank that waits.
carries_out_a_list_with()
{
    {
        i=0 row0='' row1=''
        while [ $i -lt 8 ]; do
            row0="$row0,0F$i,0SEND_F$i,,0RECV_B$i,0B$i"
            row1="$row1,1RECV_F$i,1F$i,1I$i,1SEND_B$i,1W$i"
            i=$((i + 1))
        done
        echo "0UNSHARD$row0,0REDUCE_GRAD"
        echo "1UNSHARD$row1,1REDUCE_GRAD"
    } >list
    prints_the_numbers_of_the_plain_loop --file list "$@"
}

replicas_carry_out_a_list()
{
    run schedule export zbv -P 2 -M 16 --format pytorch-csv -o list || return
    replicas_print_the_numbers_of_one --file list -D 2
}

refuses_a_list()
{
    printf '0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n' >list
    refuses 2 'schedule' train --data text --file list || return
    printf '0F0,0F1\n1F0,1F1\n' >list
    refuses 2 '--file list: no backward, expected' train --data text --file list || return
    run schedule export gpipe -P 2 -M 4 --format pytorch-csv -o list || return
    refuses 2 '-P 4: expected 2, as in --file list' train --data text --file list -P 4 || return
    refuses 2 '-M 8: expected 4, as in --file list' train --data text --file list -M 8 || return
    refuses 2 '--schedule gpipe and --file list: expected one' train --data text --file list -s gpipe || return
    refuses 2 '--survive: expected no --file' train --data text --file list -D 2 --survive || return
    refuses 2 '--virtual-stages 2: expected --schedule interleaved' train --data text --virtual-stages 2 || return
    refuses 2 '--file none: No such file' train --data text --file none || return
    echo 0F0,0Q0 >list
    refuses 2 "line 1, cell 2: '0Q0', expected an action" train --data text --file list
}

reads_standard_input()
{
    losses='s/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p'
    # shellcheck disable=SC2086 # words
    set -- train ${small#--data text} --json -P 2
    run "$@" --data text || return
    sed -n "$losses" "$work/out" >"$work/numbers"
    "$dualpipe" "$@" --data - <text >"$work/out" 2>"$work/err" || wrong "$(cat "$work/err")" || return
    sed -n "$losses" "$work/out" | diff "$work/numbers" - || return
    head -c 3000 text >one && tail -c +3001 text >two
    "$dualpipe" "$@" --data one - <two >"$work/out" 2>"$work/err" || wrong "$(cat "$work/err")" || return
    sed -n "$losses" "$work/out" | diff "$work/numbers" - || return
    refuses 2 '--data: 0 bytes in all' train --data -
}

says_why_a_file_could_not_be_written()
{
    [ -c /dev/full ] || skip 'this system has no /dev/full'
    status=0
    # shellcheck disable=SC2086 # words
    run train $small --timeline /dev/full >/dev/null
    [ "$status" = 1 ] || wrong "status $status" || return
    grep -q 'cannot write /dev/full: No space left on device' "$work/err" || wrong "$(cat "$work/err")"
}

keeps_the_other_file_and_the_summary_of_a_full_disk()
{
    [ -c /dev/full ] || skip 'this system has no /dev/full'
    rm -f step.svg
    # shellcheck disable=SC2086 # words
    run train $small --trace /dev/full --timeline step.svg >/dev/null
    [ "$status" = 1 ] || wrong "status $status" || return
    says "done      $steps steps" 'sample' 'timeline  step.svg' && grep -q '</svg>' step.svg ||
        wrong 'the drawing is missing' || return
    ! grep -q '^trace' "$work/out" || wrong 'names a trace that was not written'
}

folds_its_lines()
{
    # shellcheck disable=SC2086 # words
    COLUMNS=44 run train $small --sample 200 || return
    says 'loss      ' '          ' 'sample    ' || return
    awk 'length($0) > 44 { print; wide = 1 } END { exit wide }' "$work/out" || wrong 'wider than COLUMNS'
}

refuses_to_write_over_its_input()
{
    cp $text book
    refuses 2 '--timeline ./book: is also an input, --data; expected a file of its own' \
        train --data book --timeline ./book || return
    ln -sf book linked
    refuses 2 'is also an input' train --layers 8 --trace book linked || return
    refuses 2 '--trace x: is also what --timeline writes; expected a file of its own' \
        train --data book --timeline x --trace x || return
    cmp book "$DP_TOP_SRCDIR/LICENSE"
}

# Between the first file of a rank and the last of its connections.
names_the_limit_of_open_files()
{
    printf '#!/bin/sh\nulimit -n %s && exec %s "$@"\n' "$1" "$dualpipe" >limited
    chmod +x limited
    dualpipe=./limited
    shift
    # shellcheck disable=SC2086 # words
    refuses 1 'Too many open files (this process may have ' train $small -P 4 "$@"
}

# OpenBLAS tries for ever where it gets no buffer.
names_the_limit_of_memory()
{
    case $DP_CC in *-fsanitize*) skip 'a sanitizer needs more address space' ;; esac
    printf '#!/bin/sh\nulimit -v 180000 && exec %s "$@"\n' "$dualpipe" >limited
    chmod +x limited
    dualpipe=./limited
    run --version || return
    # shellcheck disable=SC2086 # words
    refuses 1 "MiB of address space for its buffer: Cannot allocate memory; see 'ulimit -v'" \
        train $small "$@"
}

notices_that_output_is_lost()
{
    [ -c /dev/full ] || skip 'this system has no /dev/full'
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small "$@" >/dev/full 2>"$work/err" && wrong 'does not notice' && return
    grep -q 'cannot write to standard output: No space left on device' "$work/err" &&
        [ "$(wc -l <"$work/err")" = 1 ] || wrong "$(cat "$work/err")" || return
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small "$@" <&- >&- 2>"$work/err" && wrong 'does not notice that it is closed' && return
    grep -q 'cannot write to standard output: Bad file descriptor' "$work/err" || wrong "$(cat "$work/err")"
}

# Replicas have a script of their own, so that none takes too long.
if [ "${0##*/}" = train_replicas.sh ]; then
    it replicas_print_the_numbers_of_one --schedule none -D 2
    it replicas_print_the_numbers_of_one --schedule none -D 4 --transport tcp
    it replicas_print_the_numbers_of_one -P 2 -D 2
    it replicas_print_the_numbers_of_one -P 4 -D 2 --transport tcp
    it replicas_print_the_numbers_of_one -P 2 -D 4
    it replicas_print_the_numbers_of_one -P 4 -D 2 -s dualpipev
    it replicas_print_the_numbers_of_one -P 2 -D 2 -s zb1p
    it replicas_print_the_numbers_of_one -P 2 -D 2 -s async --execution messages
    it optimizers_with_a_share_learn_the_same -P 1 -s gpipe
    it optimizers_with_a_share_learn_the_same --schedule none -D 4
    it optimizers_with_a_share_learn_the_same -P 2
    it optimizers_with_a_share_learn_the_same -P 2 -D 2 --transport tcp
    it optimizers_with_a_share_learn_the_same -P 4 -D 2
    it optimizers_with_a_share_learn_the_same -P 2 -D 4 -s 1f1b
    it mixing_without_clipping_begins_early ring -P 2 -D 2 --batch 16 -M 16
    run mix show star --workers 3 && cp "$work/out" path.txt
    it pipelines_mix_like_whole_replicas 2 ring -P 2
    it pipelines_mix_like_whole_replicas 2 one-peer-exp -P 4
    it pipelines_mix_like_whole_replicas 4 one-peer-exp -P 2
    it replicas_mix one-peer-exp --schedule none -D 4
    it replicas_mix path.txt --schedule none -D 3 -M 12 --batch 24 --transport tcp
    it replicas_mix ring -P 2 -D 2
    it replicas_mix one-peer-exp -P 2 -D 4 --schedule 1f1b
    it replicas_mix complete --schedule none -D 1
    it replicas_mix alternating-exp-ring --schedule none -D 4 --mix-local 2
    it replicas_mix torus -P 2 -D 2 --mix-algorithm local-sgd
    it replicas_mix complete --schedule none -D 4 --mix-algorithm local-sgd --local-steps 4 --outer-momentum 0.3
    it replicas_mix ring --schedule none -D 4 --mix-compress int8
    it replicas_mix one-peer-exp -P 2 -D 2 --mix-compress int8 --transport tcp
    it replicas_mix ring --schedule none -D 4 --mix-staleness 2
    finish
fi
while IFS='|' read -r options says; do
    case $options in '#'*) continue ;; esac
    it refuses_bad_input "$says" "$options"
done <"$DP_TEST_DATA/train/refused.txt"
for transport in shm tcp; do
    for schedule in '-P 4' '-P 2' '-P 4 -s dualpipev' '-P 4 -s zb1p' '-P 4 -s 1f1b' '-P 2 -s gpipe'; do
        # shellcheck disable=SC2086 # words
        it prints_the_numbers_of_the_plain_loop $schedule --transport $transport
    done
done
it prints_the_numbers_of_the_plain_loop -P 4 -s interleaved
it prints_the_numbers_of_the_plain_loop -P 2 -s interleaved --virtual-stages 4
it prints_the_numbers_of_the_plain_loop -P 4 -s zbv
it prints_the_numbers_of_the_plain_loop -P 4 --slack 1
it prints_the_numbers_of_the_plain_loop -P 2 -s dualpipev --slack 1
it carries_out_a_list pytorch-csv dualpipev -P 4
it carries_out_a_list pytorch-csv interleaved -P 4
it carries_out_a_list text zb1p -P 2
it carries_out_a_list json 'dualpipe --slack 1' -P 4
it carries_out_a_list pytorch-csv gpipe -P 8
it carries_out_a_list_with --checkpoint except_last --transport tcp
it replicas_carry_out_a_list
it refuses_a_list
it computes_with_the_kernels_of_this_processor
it reads_standard_input
it prints_the_numbers_of_the_plain_loop -P 1 --schedule gpipe
it prints_the_numbers_of_the_plain_loop -P 1 --schedule async
it prints_the_numbers_of_the_plain_loop -P 4 --schedule async --transport shm
it prints_the_numbers_of_the_plain_loop -P 2 --schedule async --transport tcp --checkpoint except_last
it prints_the_numbers_of_the_plain_loop -P 2 -s dualpipev --checkpoint always --checkpoint-stages 0,2-3
it prints_the_numbers_of_the_plain_loop -s none --offload params,optimizer --device-memory 240K
it prints_the_numbers_of_the_plain_loop -s none --offload params,activations --device-memory 240K
it prints_the_numbers_of_the_plain_loop -s none --offload params --device-memory 500K --device-share 0.4
it prints_the_numbers_of_the_plain_loop -s none --offload "params,activations,optimizer=$work" \
    --device-memory 500K --device-share 0.25
it prints_the_numbers_of_the_plain_loop -s none --offload params,optimizer --device-memory 1M --device-share 1
it mixed_precision_is_that_of_the_plain_loop
it prints_the_numbers_of_the_plain_loop -s none --offload params --device-memory 240K --buffers 2
it prints_the_numbers_of_the_plain_loop -s none --offload params,activations --device-memory 400K \
    --buffers auto
for schedule in '-P 4' '-P 2 -s dualpipev' '-P 4 -s zb1p' '-P 2 -s 1f1b' '-P 2 -s interleaved' \
    '-P 2 -s zbv' '-P 1 -s gpipe' '-P 2 -s async'; do
    # shellcheck disable=SC2086 # words
    it trains_in_what_it_asks_for $schedule --offload params,activations,optimizer
done
it trains_in_what_it_asks_for -P 2 --offload activations
it trains_in_what_it_asks_for -P 2 --offload "optimizer=$work"
it prints_the_numbers_of_the_plain_loop -s none --offload "params,optimizer=$work" --device-memory 240K
it trains_in_what_it_asks_for -P 2 -s zb1p --offload activations,optimizer
it trains_in_what_it_asks_for -P 2 -s 1f1b --offload params
it trains_in_what_it_asks_for -P 2 --offload params,activations --device-share 0.6
it trains_in_what_it_asks_for -P 2 -s zb1p --offload "params,optimizer=$work" --device-share 0.6
it keeps_a_share_in_a_pipeline
it trains_in_what_it_asks_for -P 2 --offload optimizer
it prints_the_numbers_of_the_plain_loop -P 2 -s async --execution messages --offload params \
    --device-memory 4M
it late_updates_print_the_numbers_of_the_plain_loop -s none --offload params,optimizer --device-memory 240K
it late_updates_print_the_numbers_of_the_plain_loop -s none --offload "params,activations,optimizer=$work" \
    --device-memory 240K --buffers 2
it late_updates_print_the_numbers_of_the_plain_loop -s none --offload params --device-memory 600K \
    --device-share 0.5
it late_updates_print_the_numbers_of_the_plain_loop -P 2 --offload activations,params,optimizer \
    --device-memory 4M
it late_updates_print_the_numbers_of_the_plain_loop -P 2 -s 1f1b --offload params --device-memory 4M \
    --device-share 0.6
it late_updates_print_the_numbers_of_the_plain_loop -P 4 -s 1f1b
it says_what_is_on_the_device
it says_how_much_memory_would_do
it prints_the_numbers_of_the_plain_loop -P 1 --schedule async --execution messages
it prints_the_numbers_of_the_plain_loop -P 4 --schedule async --execution messages --transport tcp
it prints_the_numbers_of_the_plain_loop -P 2 -s async --execution messages --transport shm --checkpoint always
for schedule in '-P 4' '-P 2 -s dualpipev' '-P 4 -s 1f1b --transport tcp' '-P 2 -s zbv' '-P 1 -s gpipe' \
    '-P 2 -s interleaved' '-P 2 -s zb1p' '-P 2 -s async --execution messages --checkpoint always' \
    '-P 2 -D 2' '-s none -D 2'; do
    # shellcheck disable=SC2086 # words
    it tied_prints_the_numbers_of_the_plain_loop $schedule
done
it refuses_to_mix_that_way
it refuses_to_survive_that_way
it learns
it draws_the_last_step
it says_why_a_file_could_not_be_written
it keeps_the_other_file_and_the_summary_of_a_full_disk
it folds_its_lines
it refuses_to_write_over_its_input
for files in 8 9 10 11 12 14 16 18 19 20 21 22; do
    it names_the_limit_of_open_files $files
done
it names_the_limit_of_open_files 10 --transport tcp
it names_the_limit_of_open_files 18 --transport tcp
it names_the_limit_of_memory
it names_the_limit_of_memory --schedule none
it notices_that_output_is_lost
it notices_that_output_is_lost --schedule none
it notices_that_output_is_lost --json --transport tcp
finish
