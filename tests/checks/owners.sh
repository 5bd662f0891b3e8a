#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# owners.sh - a state has an owner: a private struct of many members is used by five .c files at most, of those
# that can see its members. Structs that have more users are listed in owners.txt with their number, which may
# only become smaller.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_SRCDIR"

# "STRUCT HEADER USERS" for each private struct of at least 12 members.
owners()
{
    find libdualpipe nccl-plugin offload tools -name '*.[ch]' | sort | xargs awk '
        BEGIN { count = split("|libdualpipe/|libdualpipe/include/|offload/include/|tools/", root, "|") }
        FNR == 1 { file[++files] = FILENAME; exists[FILENAME] = 1; name = "" }
        /^ *# *include *["<]/ {
            target = $0
            sub(/^[^"<]*["<]/, "", target)
            sub(/[">].*/, "", target)
            includes[FILENAME] = includes[FILENAME] " " target
        }
        /^struct [a-z0-9_]+ \{$/ && FILENAME ~ /\.h$/ && FILENAME !~ /\/include\// { name = $2; members = 0 }
        name != "" && /;/ { line = $0; gsub(/\/\*.*|\([^()]*\)/, "", line); if (line ~ /;/) members += gsub(/,/, "", line) + 1 }
        name != "" && /^\}/ { if (members >= 12) header[name] = FILENAME; name = "" }
        {
            line = $0
            while (match(line, /struct [a-z0-9_]+/)) {
                names[FILENAME, substr(line, RSTART + 7, RLENGTH - 7)] = 1
                line = substr(line, RSTART + RLENGTH)
            }
        }
        function see(from, what,    list, n, i, r, path) {
            n = split(includes[what], list, " ")
            for (i = 1; i <= n; i++)
                for (r = 1; r <= count; r++) {
                    path = root[r] list[i]
                    if (path in exists && !((from, path) in sees)) {
                        sees[from, path] = 1
                        see(from, path)
                        break
                    }
                }
        }
        END {
            for (f = 1; f <= files; f++)
                if (file[f] ~ /\.c$/)
                    see(file[f], file[f])
            for (s in header) {
                users = 0
                for (f = 1; f <= files; f++)
                    users += ((file[f], s) in names) && ((file[f], header[s]) in sees)
                print s, header[s], users
            }
        }' | LC_ALL=C sort
}

list=$(owners)
case_is 'structs with more users than five, or than tests/checks/owners.txt says' "$(echo "$list" | awk '
    NR == FNR { if ($1 !~ /^#/) allowed[$1] = $2; next }
    $3 > (($1 in allowed) ? allowed[$1] : 5) { print $1 " of " $2 " is used by " $3 " files" }' \
    tests/checks/owners.txt -)"
case_is 'structs that tests/checks/owners.txt grants too much' "$(echo "$list" | awk '
    NR == FNR { if ($1 !~ /^#/) allowed[$1] = $2; next }
    { users[$1] = $3 }
    END { for (s in allowed) if (users[s] < allowed[s]) print s " has " users[s] + 0 " users, granted are " allowed[s] }' \
    tests/checks/owners.txt -)"
case_skipped "owners: known, $(grep -vc '^#' tests/checks/owners.txt) structs with more users than five"
cases_end
