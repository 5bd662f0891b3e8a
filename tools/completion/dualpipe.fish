# SPDX-License-Identifier: Apache-2.0
#
# fish completion for dualpipe: what `dualpipe --complete` offers.

function __dualpipe_offers
    set -l given (commandline -opc)
    set -l word (commandline -ct)
    for line in ($given[1] --complete $given[2..-1] "$word" 2>/dev/null)
        if test "$line" = :file
            set -l option (string replace -fr -- '^(--[^=]*=).*' '$1' "$word"; or echo)
            printf '%s\n' $option(__fish_complete_path (string replace -r -- '^--[^=]*=' '' "$word"))
        else
            echo $line
        end
    end
end
complete -c dualpipe -f -a '(__dualpipe_offers)'
