#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# preload.sh - libdualpipe-preload.so: pinned memory is placed and counted, everything else passes through
# unchanged, and programs without CUDA do not notice it.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

library=$PWD/offload/.libs/libdualpipe-preload.so
job=tests/preload/preload-job
calls=$PWD/tests/preload/.libs/preload_calls.so
case $DP_CC in
*-fsanitize* | *--coverage*)
    echo 'skipped: a library that is built with a sanitizer or for coverage cannot be preloaded'
    exit 77
    ;;
esac
[ -e "$library" ] || {
    echo 'skipped: no shared library was built'
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/sys/bus/pci/devices/0000:3b:00.0"
echo 0 >"$work/root/sys/bus/pci/devices/0000:3b:00.0/numa_node"

# with [NAME=VALUE...] COMMAND... - run it with the library; its output is in $work/out and $work/err.
with()
{
    env LD_PRELOAD="$library" DUALPIPE_PRELOAD_ROOT="$work/root" "$@" >"$work/out" 2>"$work/err"
}

# lacks FILE PATTERN - nothing if a line of it matches.
lacks()
{
    grep -qE -e "$2" "$1" || {
        echo "no line matches '$2':"
        cat "$1"
    }
}

# ---- pinned memory ----------------------------------------------------------------------------------

# A container may refuse memory policies; then nothing is placed, and all else is the same.
if $job local "$calls" >"$work/plain" 2>&1 && with $job local "$calls" &&
    ! grep -q 'is refused' "$work/err"; then
    placed=1 is_placed=yes
else
    placed=0 is_placed=no
fi
for call in cudaHostAlloc cudaMallocHost cudaHostRegister cuMemHostAlloc cuMemAllocHost_v2 \
    cuMemHostRegister_v2 cuMemAllocHost cuMemHostRegister; do
    case_is "$call: the policy holds in the call and not after it" \
        "$(lacks "$work/out" "^$call: status 0, policy $placed, then 0, errno 7\$")"
done
case_is 'an error of CUDA is passed on' \
    "$(lacks "$work/out" "^a failing cudaHostAlloc: status 2, policy $placed, then 0, errno 7\$")"
case_is 'everything but the policy is as without the library' \
    "$(sed 's/policy [0-9]*/policy/; / pages on node /d' "$work/plain" >"$work/plain.cut"
        sed 's/policy [0-9]*/policy/; / pages on node /d' "$work/out" | diff "$work/plain.cut" - || :)"
case_is 'nothing is printed unless asked' "$(cat "$work/err")"

with DUALPIPE_PRELOAD_REPORT="$work/report" RANK=3 $job local "$calls" || :
case_is 'the report counts calls and copies' \
    "$(lacks "$work/report" '^dualpipe-preload: preload-job, process [0-9]+, rank 3$'
        lacks "$work/report" 'pinned memory  8 calls, 8388608 bytes;'
        lacks "$work/report" 'to the device 2 \(8192 bytes\), to the host 1 \(4096 bytes\), other 1')"
if [ $is_placed = yes ]; then
    case_is 'every page is on the node' \
        "$(lacks "$work/report" '100\.0 % of 2048 pages on the nearest node, 0 pages not known, 0 calls')"
else
    case_skipped 'this system refuses memory policies, so no page is placed'
fi
with DUALPIPE_PRELOAD_REPORT=- DUALPIPE_PRELOAD_PINNED=0 $job local "$calls" || :
case_is 'placing can be switched off' \
    "$(lacks "$work/out" '^cudaHostAlloc: status 0, policy 0, then 0'
        lacks "$work/err" ' 8 calls not placed$')"
with DUALPIPE_PRELOAD_REPORT=- DUALPIPE_PRELOAD_ROOT="$work" $job local "$calls" || :
case_is 'a device without a NUMA node changes nothing' \
    "$(lacks "$work/out" '^cudaHostAlloc: status 0, policy 0, then 0'
        lacks "$work/err" ' 8 calls not placed$')"
with DUALPIPE_PRELOAD_NOED=1 $job local "$calls" || :
case_is 'a wrong option is named, and the job goes on without the library' \
    "$(lacks "$work/err" 'did you mean DUALPIPE_PRELOAD_NODE'
        lacks "$work/out" '^cudaHostAlloc: status 0, policy 0, then 0')"
with DUALPIPE_PRELOAD_REPORT="$work/no/such/folder" $job local "$calls" || echo failed >>"$work/err"
case_is 'a report that cannot be written is said, and is no failure' \
    "$(lacks "$work/err" 'not written: No such file'
        grep failed "$work/err" || :)"
with DUALPIPE_PRELOAD_REPORT="$work/forks" $job fork "$calls" || :
case_is 'a forked child goes on, and reports by itself' \
    "$([ "$(grep -c '^dualpipe-preload' "$work/forks")" = 2 ] || cat "$work/forks")"
with $job absent || :
case_is 'without CUDA the interposed call says so' "$(echo 35 | diff - "$work/out" || :)"

with DUALPIPE_PRELOAD_REPORT="$work/spawned" $job spawn "$calls" || echo "status $?" >>"$work/err"
case_is 'a program that it starts by vfork and exec reports by itself' \
    "$(grep '^status' "$work/err" || [ "$(grep -c '^dualpipe-preload' "$work/spawned")" = 2 ] ||
        cat "$work/spawned")"
with $job reopen "$calls" || echo "status $?" >>"$work/err"
case_is 'a runtime that is closed and opened elsewhere' "$(cat "$work/err")"

# ---- a runtime that is linked statically ------------------------------------------------------------

mkdir "$work/driver"
cp "$PWD/tests/preload/.libs/libcudart_fake.so" "$work/driver/libcuda.so.1"
with DUALPIPE_PRELOAD_REPORT=- RANK=5 $job driver "$work/driver/libcuda.so.1" || echo "status $?" >>"$work/err"
case_is 'a runtime that is linked statically: that it is not seen is said' \
    "$(lacks "$work/err" '^dualpipe-preload: preload-job, process [0-9]+, rank 5$'
        lacks "$work/err" "CUDA's driver is loaded, and no call of it came here$"
        lacks "$work/err" 'not seen .*linked statically'
        grep '^status' "$work/err" || :)"
with $job driver "$work/driver/libcuda.so.1" || echo "status $?" >>"$work/err"
case_is 'and not unless asked' "$(cat "$work/err")"

with DUALPIPE_PRELOAD_STAGE=1 DUALPIPE_PRELOAD_STAGE_MIN=2097152 DUALPIPE_PRELOAD_REPORT=- $job large "$calls" || echo "status $?" >>"$work/err"
case_is 'a large copy where the driver lacks what staging needs' \
    "$(lacks "$work/err" 'to the device 1 \(4194304 bytes\)'
        lacks "$work/err" 'staged         to the device 0 '
        grep '^status' "$work/err" || :)"

# ---- the real runtime, where CUDA's toolkit is; without a driver its calls fail, and say so ------------

cat >"$work/real.c" <<'END'
#include <stdio.h>
int cudaHostAlloc(void **, unsigned long, unsigned), cudaMallocHost(void **, unsigned long);
int cudaHostRegister(void *, unsigned long, unsigned), cudaMemcpy(void *, const void *, unsigned long, int);
int cudaMemcpyAsync(void *, const void *, unsigned long, int, void *), cudaDeviceReset(void), cudaGetLastError(void);
int main(void)
{
    char a[8] = "1234567", b[8] = "";
    void *p = 0;
    printf("%d %d %d %d ", cudaHostAlloc(&p, 4096, 0), cudaGetLastError(), cudaMallocHost(&p, 4096),
           cudaHostRegister(a, 8, 0));
    printf("%d %d %d ", cudaMemcpy(b, a, 8, 0), cudaMemcpyAsync(b, a, 8, 4, 0), cudaDeviceReset());
    printf("%d %s\n", cudaGetLastError(), b);
    return 0;
}
END
toolkit=${CUDA_HOME:-/usr/local/cuda}/lib64
for runtime in "$toolkit"/libcudart.so.[0-9]* "$toolkit/libcudart_static.a"; do
    [ -e "$runtime" ] || {
        case_skipped "no ${runtime##*/} here"
        continue
    }
    # shellcheck disable=SC2086 # words
    $DP_CC -o "$work/real" "$work/real.c" "$runtime" "-Wl,-rpath,$toolkit" -ldl -lrt -lpthread
    "$work/real" >"$work/real.without" 2>&1 || :
    with DUALPIPE_PRELOAD_REPORT=- DUALPIPE_PRELOAD_STAGE=1 DUALPIPE_PRELOAD_STAGE_MIN=1 "$work/real" || :
    case_is "${runtime##*/} does with the library what it does without" "$(diff "$work/real.without" "$work/out" || :)"
    case $runtime in
    *.a) ;;
    *) case_is "calls of ${runtime##*/} come to the library" "$(lacks "$work/err" '^dualpipe-preload: real, process')" ;;
    esac
done

# ---- others that are preloaded, and what is not to be touched --------------------------------------

# With CUDA in the global scope: the other one looks nowhere else.
chain=$PWD/tests/preload/.libs/preload_chain.so
for order in "$chain:$library" "$library:$chain"; do
    LD_PRELOAD="$order:$PWD/tests/preload/.libs/libcudart_fake.so" DUALPIPE_PRELOAD_STAGE=1 DUALPIPE_PRELOAD_STAGE_MIN=2097152 DUALPIPE_PRELOAD_REPORT=- $job large "$calls" 2>"$work/err" || echo "status $?" >>"$work/err"
    case_is "a chain of preloads: ${order##*/} last" \
        "$(lacks "$work/err" '^chain: 1$'
            lacks "$work/err" 'to the device 1 \(4194304 bytes\)'
            grep '^status' "$work/err" || :)"
done
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    open=$(mktemp -d)
    chmod 755 "$open"
    for file in "$PWD/$job" "$calls" "$PWD/tests/preload/.libs/libcudart_fake.so" "$library"; do
        cp "$file" "$open"
    done
    chmod 4755 "$open/preload-job"
    LD_PRELOAD=libdualpipe-preload.so LD_LIBRARY_PATH=$open DUALPIPE_PRELOAD_REPORT="$open/report" setpriv \
        --reuid=65534 --clear-groups "$open/preload-job" absent >"$work/out" 2>"$work/err" || :
    case_is 'a setuid program runs without it' "$(lacks "$work/out" '^(-1|35)$'
        ls "$open/report" 2>/dev/null || :)"
    rm -r "$open"
else
    case_skipped 'a setuid program: that takes root and setpriv'
fi

# ---- who else can read it ---------------------------------------------------------------------------

# await COMMAND... - until it succeeds, no longer than a minute.
await()
{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 0
        sleep 0.1
    done
}

# has_counted - all calls.
has_counted()
{
    tools/dualpipe stat --json --dir "$work/pages" | grep -q '"copies_to_device_bytes": 8192'
}

mkfifo "$work/go"
mkdir -m 700 "$work/pages"
DUALPIPE_PRELOAD_ROOT="$work/root" DUALPIPE_NET_STAT_DIR="$work/pages" RANK=0 WORLD_SIZE=1 \
    tools/dualpipe run --report "$work/run.json" -- $job hold "$calls" <"$work/go" >/dev/null 2>"$work/run.err" &
run=$!
exec 3>"$work/go"
# It holds the page, and so knows in the end what was counted.
await grep -qs '\.preload' "/proc/$run/maps"
await has_counted
tools/dualpipe stat --dir "$work/pages" >"$work/stat.txt" 2>&1
tools/dualpipe stat --json --dir "$work/pages" >"$work/stat.json" 2>&1
tools/dualpipe stat --prometheus "$work/stat.prom" --dir "$work/pages" 2>&1
exec 3>&-
wait $run || echo "status $?" >>"$work/run.err"
case_is 'dualpipe stat shows what it counts' \
    "$(lacks "$work/stat.txt" 'preload: pinned 8.39 MB, .*copied 8.19 kB to the device, 4.1 kB to the host'
        lacks "$work/stat.json" '"copies_to_device_bytes": 8192'
        lacks "$work/stat.prom" '^dualpipe_preload_pinned_calls_total\{pid="[0-9]+",process="[^"]*"\} 8$')"
case_is 'the report of dualpipe run has it' \
    "$(lacks "$work/run.json" '"preload": \{"pinned_calls": 8, "pinned_bytes": 8388608,'
        lacks "$work/run.err" '^dualpipe: pinned 8.39 MB, '
        grep '^status' "$work/run.err" || :)"
case_is 'the page goes with its process' "$(ls "$work/pages")"

# ---- programs without CUDA --------------------------------------------------------------------------

# same NAME COMMAND... - prints and returns with the library what it does without.
same()
{
    command -v "$1" >/dev/null || {
        case_skipped "no $1 here"
        return
    }
    without=0 status=0
    "$@" >"$work/out.without" 2>"$work/err.without" </dev/null || without=$?
    with "$@" </dev/null || status=$?
    case_is "$1 with the library" "$(diff "$work/out.without" "$work/out"
        diff "$work/err.without" "$work/err"
        [ $status = $without ] || echo "status $status, expected $without")"
}

printf 'int main(void) { return 3; }\n' >"$work/three.c"
# shellcheck disable=SC2016 # the inner shell expands it
same sh -c 'for i in 1 2 3; do echo $i; done | cat; (exit 3)'
same python3 -c 'import subprocess, ctypes, os
print(subprocess.run(["true"]).returncode, sum(range(10)))
os.posix_spawn("/bin/true", ["true"], {})
raise SystemExit(4)'
same sh -c 'exec env true'
same git -C "$DP_TOP_SRCDIR" hash-object CHANGELOG.md
same gcc -o "$work/three" "$work/three.c"
same perl -e 'print join(",", map { $_ * 2 } 1 .. 5), "\n"; system("true"); exit 5'
same git -C "$DP_TOP_SRCDIR" --version
same java -XshowSettings:none -version
cases_end
