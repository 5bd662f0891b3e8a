#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tune.sh - `dualpipe tune`: what it explains, and what it makes of measurements.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

tables=$DP_TEST_DATA/tuner

# ---- explain

explains_every_collective()
{
    for collective in allreduce allgather reducescatter broadcast reduce; do
        run tune explain $collective --ranks 16 --nodes 2 --links intra=450,inter=400 &&
            says "$collective, 16 ranks on 2 nodes, links intra=450,inter=400" "1 KiB" "1 GiB" \
                "fastest by the model: " || return
    done
}

says_which_rule_it_is()
{
    run tune explain -n 16 -N 2 -T "$tables/example.csv" --smallest 64KiB --largest 128KiB &&
        says "8 rules of" "example.csv:3" "example.csv:4" "ring/ll" "tree/ll128" &&
        run tune explain broadcast -n 2 -T "$tables/example.csv" --smallest 4KiB --largest 8KiB &&
        says "example.csv:8 leaves it to NCCL" "NCCL's own" "no rule applies"
}

tells_pipe_ops_apart()
{
    run tune explain reduce -n 2 -T "$tables/example.csv" --smallest 4KiB --largest 4KiB &&
        says "example.csv:9" "ring/simple" || return
    run tune explain reduce -n 2 -T "$tables/example.csv" --smallest 4KiB --largest 4KiB --pipe-ops 8 &&
        says "example.csv:10" "tree/ll" || return
    run tune explain reduce -n 2 -T "$tables/example.csv" --smallest 4KiB --largest 4KiB --pipe-ops 9 &&
        says "no rule applies"
}

says_what_the_model_gains()
{
    run tune explain -n 16 -N 16 --links inter=3,inter_us=25 --smallest 512KiB --largest 1MiB &&
        says "model: 41 % less" "ring/ll128" "tree/ll128"
}

reads_a_topology()
{
    run tune explain --topology "dgx-h100 host:4" &&
        says "32 ranks on 4 nodes" "intra=450" "inter=400"
}

lets_links_come_before_the_topology()
{
    run tune explain --topology dgx-h100 --links intra=100 && says "8 ranks on 1 node" "intra=100"
}

takes_the_flags_of_topo()
{
    run topo json --synthetic 'dgx-h100 host:4' -o "$work/cluster.json" || return
    run tune explain --topology "$work/cluster.json" --largest 1KiB && mv "$work/out" "$work/file" &&
        run tune explain --synthetic 'dgx-h100 host:4' --largest 1KiB && cmp "$work/out" "$work/file" ||
        return
    run run --no-net --print --synthetic 'dgx-h100 host:4' &&
        says "DUALPIPE_TUNER_LINKS='intra=450,inter=400'" || return
    run topo show -t "$work/cluster.json" && [ ! -s "$work/err" ] || return
    run topo show -i "$work/cluster.json" && grep -q 'i is now called -t' "$work/err" || return
    run topo show --input "$work/cluster.json" || return
    grep -q -- '--input is now called --topology' "$work/err" || return
    refuses 2 'expected one of --topology, --sysfs and --synthetic' tune explain \
        --topology "$work/cluster.json" --synthetic dgx-h100
}

reads_a_placement()
{
    run topo place 1f1b -P 4 --synthetic 'host:2 numa:1 gpu:2 nic:1 net=100Gb/s' -f assignment \
        -o "$work/place.txt" || return
    run tune explain --placement "$work/place.txt" || return
    says "4 ranks on 2 nodes" "inter=12.5" || return
    run tune explain --placement "$work/place.txt" --links inter=25 && says "inter=25" || return
    refuses 2 "--topology and --placement: expected one" tune explain --placement "$work/place.txt" \
        --topology dgx-h100
}

answers_as_the_plugin_would()
{
    export DUALPIPE_TUNER_TABLE="$tables/example.csv" DUALPIPE_TUNER_LINKS=intra=450,inter=50
    run tune explain -n 16 -N 2 --smallest 128KiB --largest 128KiB &&
        says "links intra=450,inter=50" "8 rules of" "example.csv:4" "tree/ll128" \
            "from the environment: DUALPIPE_TUNER_TABLE DUALPIPE_TUNER_LINKS" || return
    run tune explain -n 16 -N 2 --links inter=12,intra=50 --smallest 128KiB --largest 128KiB &&
        says "links intra=50,inter=12" "from the environment: DUALPIPE_TUNER_TABLE" || return
    DUALPIPE_TUNER_REGISTERED=maybe
    export DUALPIPE_TUNER_REGISTERED
    refuses 2 "DUALPIPE_TUNER_REGISTERED=maybe: expected one of ignore, trust" tune explain -n 8
}

answers_by_the_placement_as_the_plugin_would()
{
    export DUALPIPE_TUNER_LINKS=placement
    refuses 2 "DUALPIPE_PLACEMENT names no file" tune explain -n 8 || return
    run topo place 1f1b -P 4 --synthetic 'host:2 numa:1 gpu:2 nic:1 net=100Gb/s' -f assignment \
        -o "$work/place.txt" || return
    export DUALPIPE_PLACEMENT="$work/place.txt"
    run tune explain && says "4 ranks on 2 nodes" "inter=12.5"
}

warns_of_a_table_for_other_sizes()
{
    run tune explain -n 80 -N 10 -T "$tables/example.csv" reducescatter || return
    grep -q "no rule about reducescatter is for 80 ranks on 10 nodes; they are for 8 ranks on 1 node" \
        "$work/err" || wrong "$(cat "$work/err")" || return
    fit -o "$work/table.csv" && run tune explain broadcast -n 16 -N 2 -T "$work/table.csv" || return
    grep -q "table.csv: no rule is about broadcast" "$work/err" || wrong "$(cat "$work/err")" || return
    run tune explain -n 16 -N 2 -T "$work/table.csv" || return
    [ ! -s "$work/err" ] || wrong "$(cat "$work/err")"
}

warns_that_the_plugin_does_not_ask_for_registration()
{
    run tune explain reducescatter -n 8 -T "$tables/example.csv" --registered &&
        grep -q "unless DUALPIPE_TUNER_REGISTERED=trust" "$work/err" || wrong "$(cat "$work/err")" ||
        return
    export DUALPIPE_TUNER_REGISTERED=trust
    run tune explain reducescatter -n 8 -T "$tables/example.csv" --registered || return
    [ ! -s "$work/err" ] || wrong "$(cat "$work/err")"
}

shows_what_the_rule_says_was_measured_beside_the_model()
{
    fit -o "$work/table.csv" || return
    run tune explain -n 16 -N 2 --table "$work/table.csv" --links intra=450,inter=50 --smallest 8MiB \
        --largest 8MiB && says "table.csv:26: measured 151 us, NCCL's own 286 us"
}

takes_nvls_where_the_topology_has_it()
{
    run tune explain --topology dgx-h100 --largest 64MiB && says "nvls/simple" || return
    run tune explain --topology 'dgx-h100 host:2' --largest 1GiB && says "nvls_tree/simple" || return
    run tune explain --topology hgx-a100 --largest 64MiB || return
    ! grep -q nvls "$work/out" || wrong "$(cat "$work/out")" || return
    run tune explain -n 8 --links intra=450 --largest 1KiB &&
        says "NVLS is left out: the links do not say" "--algorithms ring,tree,pat,nvls"
}

explains_in_json()
{
    command -v jq >/dev/null || skip "jq is not installed"
    run tune explain -n 8 --links intra=450 --format json --algorithms ring,nvls || return
    jq -e '.collective == "allreduce" and .ranks == 8 and .nodes == 1 and
           (.sizes | length) == 21 and (.sizes[0] | .bytes == 1024 and .source == "nccl" and
           .answer.algorithm == "ring" and .answer.us > 0) and .crossings[0].from_bytes == 0 and
           (.crossings[-1].algorithm == "nvls")' "$work/out" >/dev/null ||
        wrong "$(cat "$work/out")"
}

# ---- fit

# Outputs of tests/data/tuner/results, which its README describes.
fit()
{
    cd "$tables/results" || return
    run tune fit allreduce-own.txt ring/ll=allreduce-ring-ll.txt ring/ll128=allreduce-ring-ll128.txt \
        tree/ll=allreduce-tree-ll.txt allreduce-tree-ll128.txt ring/simple=allreduce-ring-simple.txt \
        tree/simple=allreduce-tree-simple.txt allgather-*.json "$@"
}

makes_a_table()
{
    fit -o "$work/table.csv" || return
    grep -qF "allreduce, 16 ranks on 2 nodes: 7 of 21 sizes changed, up to 47 % less time" \
        "$work/err" || wrong "$(cat "$work/err")" || return
    grep -q '^allreduce,5931642,11863283,16,2,any,any,tree,ll128,any,any,151.1,286.295$' \
        "$work/table.csv" || wrong "$(cat "$work/table.csv")" || return
    run tune explain -n 16 -N 2 --table "$work/table.csv" --smallest 8MiB --largest 64MiB &&
        says "tree/ll128" "table.csv:26" "151" "286" "leaves it to NCCL"
}

converts_a_table_of_an_older_release()
{
    refuses 2 "old.json: JSON, expected lines of text: \`dualpipe tune fit --convert $tables/old.json\` writes them" \
        tune explain -n 8 --table "$tables/old.json" || return
    run tune fit --convert "$tables/old.json" || return
    cmp "$work/out" - <<EOF
collective,min_bytes,max_bytes,ranks,nodes,registered,pipe_ops,algorithm,protocol,channels,chunk_bytes,time_us,default_us
allreduce,0,65536,2-8,any,any,any,ring,ll128,any,32768,any,any
allreduce,0,any,any,any,yes,any,ring,simple,any,any,12.5,15
EOF
}

# refuses_old TEXT OLD - the command refuses to convert OLD, and says TEXT.
refuses_old()
{
    printf '%s\n' "$2" >"$work/old.json"
    refuses 2 "$1" tune fit --convert "$work/old.json"
}

wants_more_for_a_change()
{
    fit --gain 50 -o "$work/table.csv" || return
    grep -q "0 of 21 sizes changed" "$work/err" || wrong "$(cat "$work/err")"
}

keeps_what_a_full_disk_leaves()
{
    [ -c /dev/full ] || skip 'this system has no /dev/full'
    fit -o /dev/full >/dev/null
    [ "$status" = 1 ] || wrong "exits with $status" || return
    grep -q 'sizes changed' "$work/err" || wrong 'no summary'
}

never_writes_over_its_results()
{
    cp "$tables/results/allreduce-own.txt" "$work/own.txt"
    refuses 2 "--output $work/own.txt: is also an input" tune fit "$work/own.txt" -o "$work/own.txt" || return
    refuses 2 'is also an input' tune fit "tree/ll=$work/own.txt" -o "$work/own.txt" || return
    cmp "$work/own.txt" "$tables/results/allreduce-own.txt"
}

says_what_was_not_measured()
{
    head -n 40 "$tables/results/allreduce-own.txt" >"$work/own.txt"
    run tune fit "$work/own.txt" "tree/ll=$tables/results/allreduce-tree-ll.txt" || return
    grep -q "sizes left out: NCCL's own choice was not measured there" "$work/err"
}

# takes TEXT ARGUMENT... - makes a table of tests/data/tuner/texts, and says TEXT, if it is not empty.
takes()
{
    cd "$tables/texts" && said=$1 && shift && run tune fit "$@" -o "$work/table.csv" || return
    grep -qF "$said" "$work/err" || wrong "$(cat "$work/err")"
}

# gives RULE - the table has that rule.
gives()
{
    rule=$1
    shift
    takes "$@" && { grep -qx "$rule" "$work/table.csv" || wrong "$(cat "$work/table.csv")"; }
}

refuses_text()
{
    cd "$tables/texts" && said=$1 && shift && refuses 2 "$said" tune fit "$@"
}

says_that_a_topology_has_no_gpus()
{
    cd "$DP_TEST_DATA/topology" || return
    refuses 2 'the topology has no GPUs' tune explain --synthetic numa:1 || return
    run tune explain --topology nccl-vm.xml --largest 1KiB || return
    grep -q 'NVLink and compute capability of GPUs without <gpu>: 2 of 3' "$work/err" ||
        wrong "$(cat "$work/err")"
}

it explains_every_collective
it says_which_rule_it_is
it tells_pipe_ops_apart
it says_what_the_model_gains
it reads_a_topology
it lets_links_come_before_the_topology
it takes_the_flags_of_topo
it reads_a_placement
it answers_as_the_plugin_would
it answers_by_the_placement_as_the_plugin_would
it warns_of_a_table_for_other_sizes
it warns_that_the_plugin_does_not_ask_for_registration
it shows_what_the_rule_says_was_measured_beside_the_model
it takes_nvls_where_the_topology_has_it
it explains_in_json
it makes_a_table
it converts_a_table_of_an_older_release
it refuses_old 'old.json:1: ' '{"dualpipe_tuning": 01}'
it refuses_old 'old.json:2: duplicate object key' '{"rules": [],
 "rules": []}'
it refuses_old 'old.json: expected a table of the tuner as JSON' '{"rules": []}'
it refuses_old 'old.json: expected a table of the tuner as JSON' '[{"dualpipe_tuning": 1, "rules": []}]'
it refuses_old 'old.json, as lines of text: no rules' '{"dualpipe_tuning": 1, "rules": []}'
it refuses_old 'rules[0].ranks: expected a string' '{"dualpipe_tuning": 1, "rules": [{"ranks": [1, 2]}]}'
it refuses_old 'rules[1].ranks: expected a string' \
    '{"dualpipe_tuning": 1, "rules": [{"collective": "reduce"}, {"ranks": "2,3"}]}'
it refuses_old "old.json, as lines of text:3: algorithm: 'rng'" '{"dualpipe_tuning": 1, "rules": [
    {"collective": "reduce"}, {"collective": "reduce", "algorithm": "rng"}]}'
it refuses_old "'protocl' is no column; did you mean protocol?" \
    '{"dualpipe_tuning": 1, "rules": [{"collective": "reduce", "protocl": "ll"}]}'
it refuses_old 'old.json, as lines of text' '{"dualpipe_tuning": 1, "rules": [3]}'
it wants_more_for_a_change
it keeps_what_a_full_disk_leaves
it never_writes_over_its_results
it says_what_was_not_measured
it says_that_a_topology_has_no_gpus
it gives 'allreduce,1449,2048,2,1,any,any,ring,ll,any,any,20,50' '' own.txt ring/ll=ll.txt
it takes 'cut.txt:9: 8 columns, expected 13 as in the line of names: passed over' own.txt ring/ll=cut.txt
it takes 'failed.txt:9: the test failed: gpu0: Test NCCL failure' own.txt ring/ll=failed.txt
it gives 'allreduce,1024,1024,2,2,any,any,tree,ll,any,any,30,50' '' --collective allreduce old-own.txt \
    tree/ll=old-tree.txt
it gives 'broadcast,1024,1024,2,2,any,any,ring,ll,any,any,20,50' '' --collective broadcast old-root.txt \
    ring/ll=old-root-ll.txt
it gives 'allreduce,1024,1024,2,1,any,any,default,default,any,any,50,50' '' labelled.txt
it refuses_text 'wrong.txt:8: 12 results are wrong' wrong.txt
it refuses_text 'outside.txt:7: 3 results are wrong' --collective allreduce outside.txt
it refuses_text 'alone.txt:4: rank 0 is there twice' alone.txt
it refuses_text 'one.txt is of one rank' one.txt
it refuses_text 'groups.txt:4: rank 1 is in another group' groups.txt
it refuses_text 'types.txt:9: allreduce of half, sum; expected float, sum' types.txt
it refuses_text 'max.txt:8: allreduce of float, max; expected float, sum' own.txt ring/ll=max.txt
it refuses_text "nccl1.txt:2: a column 'bytes', expected those of nccl-tests" --collective allreduce --ranks 2 nccl1.txt
it refuses_text 'heading.txt: no measurement' heading.txt
finish
