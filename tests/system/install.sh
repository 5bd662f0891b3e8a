#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# install.sh - what `make install` puts down is whole: programs build and run with nothing but
# pkg-config's answers, the command runs, and `make uninstall` leaves nothing behind.
set -eu

# The make that runs the tests must not pass its job slots and its variables on.
unset MAKEFLAGS MFLAGS MAKELEVEL

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir "$root"
case $root in
*[[:blank:]]*)
    echo "libtool installs nothing in a directory with a blank in its name, as $work has"
    exit 77
    ;;
esac
cd "$DP_TOP_BUILDDIR"

fail()
{
    echo "install.sh: $*"
    exit 1
}

# home NAME - the directory that NAME was installed in.
home()
{
    path=$(find "$root" -name "$1" | head -n 1)
    [ -n "$path" ] || fail "$1 was not installed"
    dirname "$path"
}

make -s install DESTDIR="$root" >"$work/log" 2>&1 || {
    cat "$work/log"
    fail "make install failed"
}

libdir=$(home libdualpipe.so)
includedir=$(dirname "$(home dualpipe.h)")
LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PKG_CONFIG_PATH=$libdir/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$root
export LD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR

# Every installed header, in one program.
headers=$(cd "$includedir" && find dualpipe -name '*.h' | LC_ALL=C sort)
{
    for header in $headers; do echo "#include <$header>"; done
    cat <<'PROGRAM'
#include <stdio.h>
int main(void)
{
    return puts(dp_version()) < 0;
}
PROGRAM
} >"$work/program.c"

# shellcheck disable=SC2046,SC2086 # words
$DP_CC -Wall -Wextra -Werror $(pkg-config --cflags dualpipe) "$work/program.c" \
    $(pkg-config --libs dualpipe) -o "$work/program" || fail "a program does not build"
version=$(pkg-config --modversion dualpipe)
[ "$("$work/program")" = "$version" ] || fail "the program does not say $version"
command=$(find "$root" -path '*/bin/dualpipe')
[ "$("$command" --version)" = "dualpipe $version" ] || fail "the command is another version"
for plugin in net tuner; do
    [ -f "$libdir/libnccl-$plugin-dualpipe.so" ] || fail "no libnccl-$plugin-dualpipe.so for NCCL"
done
for name in dp_comm_split dp_pipeline_config dp_execution; do
    page=$(cat "$(home $name.3)/$name.3")
    [ -f "$(home $name.3)/../${page#.so }" ] && grep -q "^\.Nm $name " "$(home $name.3)/../${page#.so }" ||
        fail "the manual page of $name leads to '$page'"
done
[ -h "$libdir/libdualpipe.so" ] || fail "no link libdualpipe.so for the linker"

# The example of the README, as its reader would build and run it.
# shellcheck disable=SC2046,SC2086 # words
$DP_CC -Wall -Wextra -Werror "$DP_TOP_SRCDIR/tests/system/example_pipeline.c" \
    $(pkg-config --cflags --libs dualpipe) -o "$work/example" || fail "the example does not build"
WORLD_SIZE=2
MASTER_ADDR=127.0.0.1
export WORLD_SIZE MASTER_ADDR MASTER_PORT
for try in 1 2 3 4; do # a port may be taken: then another
    MASTER_PORT=$((20000 + ($$ * 7 + try * 1009) % 10000))
    RANK=1 "$work/example" >"$work/rank1" 2>&1 &
    RANK=0 "$work/example" >"$work/rank0" 2>&1 && break
    grep -q 'Address already in use' "$work/rank0" && [ $try -lt 4 ] ||
        fail "rank 0 of the example: $(cat "$work/rank0")"
    kill "$!"
    wait "$!" || :
done
wait "$!" || fail "rank 1 of the example: $(cat "$work/rank1")"
for rank in 0 1; do
    grep -qx "rank $rank learned 2.000 and 2.000" "$work/rank$rank" ||
        fail "the example learned something else: $(cat "$work/rank$rank")"
done

make -s uninstall DESTDIR="$root" >>"$work/log" 2>&1 || fail "make uninstall failed"
left=$(find "$root" ! -type d)
[ -z "$left" ] || fail "make uninstall left $left"
