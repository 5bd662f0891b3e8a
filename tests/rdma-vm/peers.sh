# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# peers.sh - sourced by what runs in a guest: one program that waits for another, or meets it.
#
#       serve ibv_rc_pingpong -d rxe0
#       case_is 'one end' "$(visit ibv_rc_pingpong -d rxe1 10.10.0.1)"
#       served
#       case_is 'the other end' "$server_wrong"

peer_limit_s=60

# said FILE COMMAND... - run it, its output in FILE; print that, and the status, if it fails.
said()
{
    said_in=$1
    shift
    timeout -k 5 $peer_limit_s "$@" </dev/null >"$said_in" 2>&1 ||
        printf '%s: status %s\n%s\n' "$1" $? "$(cat "$said_in")"
}

# serve COMMAND... - in the background.
serve()
{
    said /run/server.out "$@" >/run/server.wrong &
    server=$!
}

# Await its end; $server_wrong is what was wrong with it. Not in a sub-shell, whose child it is not.
served()
{
    wait "$server" || :
    # shellcheck disable=SC2034 # for who sources this
    server_wrong=$(cat /run/server.wrong)
}

# visit COMMAND... - what is wrong with a client, which is refused until its server listens.
visit()
{
    tries=0
    while
        wrong=$(said /run/client.out "$@")
        tries=$((tries + 1))
        [ -n "$wrong" ] && [ $tries -lt 50 ] && kill -0 "$server" 2>/dev/null
    do sleep 0.2; done
    [ -z "$wrong" ] || echo "$wrong"
}
