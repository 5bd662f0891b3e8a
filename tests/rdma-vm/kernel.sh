#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kernel.sh fetch|find - the kernel that the guests of run.sh boot: the distribution's own, unpacked
# into a cache and not installed. `fetch` gets what is not there yet, about 70 MB; `find` prints the
# directory that holds
#
#       vmlinux         the kernel, unpacked, so that the guest need not do it
#       modules/        what a guest loads, and in `order` the order in which
#
# or says what is missing and returns 1. DP_RDMA_VM_CACHE names another directory than
# ~/.cache/dualpipe-rdma-vm.
set -eu
PATH=$PATH:/usr/sbin:/sbin

# Each with all that it needs. crc32 and crc32c are found by name when the others ask for them.
modules='virtio_pci 9p 9pnet_virtio overlay i6300esb vmxnet3 crc32_generic crc32c_generic ib_uverbs
    rdma_ucm rdma_rxe sch_netem sch_prio sch_tbf cls_u32'

die()
{
    echo "kernel.sh: $*" >&2
    exit 1
}

command=${1-}
base=${DP_RDMA_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/dualpipe-rdma-vm}
# Another list of modules, another directory.
cache=$base/$(echo "$modules" | cksum | cut -d ' ' -f 1)

case $command in
find)
    [ -e "$cache/vmlinux" ] || die "no kernel in $base: 'sh tests/rdma-vm/kernel.sh fetch' gets one"
    echo "$cache"
    exit
    ;;
fetch) ;;
*) die "expected 'fetch' or 'find', not '$command'" ;;
esac

[ "$(uname -m)" = x86_64 ] || die "guests are x86-64 machines, this is $(uname -m)"
for tool in apt-get depmod dpkg flock modprobe xz; do
    command -v $tool >/dev/null || die "needs $tool, which is not there"
done
mkdir -p "$base"
exec 9>"$base/lock"
flock -w 300 9 || die "another process has been fetching a kernel into $base for five minutes"
[ ! -e "$cache/vmlinux" ] || exit 0

work=$(mktemp -d "$base/fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

package=$(apt-cache depends linux-image-amd64 2>/dev/null |
    awk '$1 == "Depends:" { print $2; exit }')
[ -n "$package" ] || die "apt knows no package linux-image-amd64: it is Debian's, after apt-get update"
version=${package#linux-image-}
(cd "$work" && timeout 300 apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) ||
    die "cannot download $package; after apt-get update, perhaps"
dpkg -x "$work/$package"_*.deb "$work/root"
depmod -b "$work/root" "$version"

# The compressed kernel is a small program that is followed by an xz stream.
image=$work/root/boot/vmlinuz-$version
start=$(LC_ALL=C grep -abom 1 -P '\xfd7zXZ\x00' "$image" | cut -d : -f 1)
[ -n "$start" ] || die "$package is not compressed by xz"
tail -c +$((start + 1)) "$image" | xz -dc --single-stream >"$work/vmlinux" 2>/dev/null || :
[ -s "$work/vmlinux" ] || die "cannot unpack the kernel of $package"

mkdir "$work/modules"
for module in $modules; do
    modprobe -d "$work/root" -S "$version" --show-depends "$module" >"$work/needs" ||
        die "$package has no module $module"
    sed -n 's/^insmod \([^ ]*\).*/\1/p' "$work/needs"
done | awk '!seen[$0]++' >"$work/paths"
while read -r path; do
    cp "$path" "$work/modules/"
    echo "${path##*/}"
done <"$work/paths" >"$work/modules/order"
! grep -v '\.ko$' "$work/modules/order" || die "$package has compressed modules"

mkdir -p "$cache"
rm -rf "$cache/modules"
mv "$work/modules" "$cache/modules"
mv "$work/vmlinux" "$cache/vmlinux"
