#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# layers.sh - includes point down only, and never to a neighbour.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# Every layer with its height and the public headers that are its.
layers='
base        0  dualpipe library memory options parameter random
schedule    1  schedule partition
checkpoint  1  checkpoint
microbatch  1  microbatch batch_norm
topology    1  topology
placement   2  assignment placement
tuning      2  tuning
device      2  device
optimizer   3  optimizer
wire        2
comm        3  comm nccl
survival    4  survival
pipeline    5  stage pipeline batch_step trace
mixing      5  mixer mixing replicas
asyncpipe   6  asyncpipe
offload     6  offload
trainer     7  model trainer
'

# Lines "FILE:#include ..." that break the rule. What no layer owns is the system's.
upward()
{
    find libdualpipe offload -name '*.[ch]' -exec grep -H '^ *# *include *["<]' {} + |
        awk -v layers="$layers" '
        BEGIN {
            count = split(layers, line, "\n")
            for (i = 1; i <= count; i++) {
                n = split(line[i], word, " ")
                height[word[1]] = word[2]
                for (k = 3; k <= n; k++)
                    owner[word[k]] = word[1]
            }
        }
        function layer_of(path,    part) {
            if (path ~ /(^|\/)dualpipe\/[a-z0-9_]+\.h$/) {
                sub(/.*\//, "", path)
                sub(/\.h$/, "", path)
                return path in owner ? owner[path] : "a header without a layer"
            }
            split(path, part, "/")
            return part[1]
        }
        {
            file = target = $0
            sub(/:.*/, "", file)
            sub(/^(libdualpipe|offload\/include)\//, "", file)
            sub(/^[^"<]*["<]/, "", target)
            sub(/[">].*/, "", target)
            from = layer_of(file)
            to = layer_of(target)
            if (to ~ / / || from ~ / / || (from in height && to in height && from != to &&
                height[from] <= height[to]))
                print
            else if (target ~ /\.\./ || (file ~ /^include/ && /include *"/))
                print
        }'
}

# Tools see the public headers, the system and each other.
private()
{
    find tools -name '*.[ch]' -exec grep -H '^ *# *include *"' {} + |
        while IFS=: read -r file include; do
            header=${include#*\"}
            header=${header%\"*}
            case $header in nccl-plugin/net/caller.h | nccl-plugin/net/stat_page.h | nccl-plugin/profiler/page.h | offload/preload/page.h | base/page_file.h | base/page_reader.h | \
                base/utf8.h | checkpoint/newest.h | \
                config.h) continue ;; esac
            [ -f "tools/$header" ] || echo "$file: \"$header\""
        done
}

# The plugin stands on the lower layers. Of it the library knows the options only, to list them, and
# the tools what calls any plugin, and what ours counts.
around_plugin()
{
    find nccl-plugin -name '*.[ch]' -exec grep -H '^ *# *include *["<]' {} + |
        grep -vE 'include *(<[^/]*>|<(sys|net|netinet|arpa|infiniband)/[^>]*>|<dualpipe/(dualpipe|assignment|tuning)\.h>)' |
        grep -vE 'include *"((nccl-plugin|base|topology|tuning|wire|device)/[^"]*|placement/assignment[^"]*|config\.h)"' || :
    grep -rH 'include *"nccl-plugin/' libdualpipe tools |
        grep -v -e '^libdualpipe/areas\.c:.*"nccl-plugin/options\.h"' \
            -e '^tools/bench/net_plugin\.c:.*"nccl-plugin/net/caller\.h"' \
            -e '^tools/\(run/report\|stat/net\)\.c:.*"nccl-plugin/net/stat_page\.h"' \
            -e '^tools/stat/profile\.c:.*"nccl-plugin/profiler/page\.h"' || :
}

case_is 'sources outside all folders' "$(find . -maxdepth 1 -name '*.[ch]')"
case_is 'includes that do not point down' "$(upward)"
case_is 'includes of the plugin, or into it, that may not be' "$(around_plugin)"
case_is 'a tool that includes what is not public' "$(private)"
cases_end
