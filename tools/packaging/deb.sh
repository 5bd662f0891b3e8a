#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# deb.sh TARBALL VERSION [VARIABLE=VALUE...] - build the tarball of `make dist` for /usr and make a
# Debian package of it, here; variables are for configure. What the package depends on is asked of
# dpkg-shlibdeps; libraries that are loaded at run time (CUDA, NCCL, libibverbs, MPI by mpi.so) are not
# among it, but for OpenBLAS, without which `dualpipe train` does nothing. The headers include DLPack's.
set -eu

tarball=$1 version=$2
shift 2

die()
{
    echo "deb.sh: $*" >&2
    exit 1
}

for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v $tool >/dev/null || die "no $tool: install dpkg-dev"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
architecture=$(dpkg-architecture -qDEB_HOST_ARCH)
output=$PWD/dualpipe_${version}_$architecture.deb
root=$work/root

# The make that runs this must not pass its job slots and its variables on.
unset MAKEFLAGS MFLAGS MAKELEVEL
mkdir "$work/sources" "$root"
tar -xf "$tarball" -C "$work/sources" --strip-components=1
(
    cd "$work/sources"
    ./configure --prefix=/usr --libdir="/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" \
        --sysconfdir=/etc "$@"
    make -s -j "$(nproc)"
    make -s install-strip DESTDIR="$root"
) >"$work/log" 2>&1 || {
    tail -n 25 "$work/log" >&2
    die "the package could not be built"
}

# dpkg-shlibdeps wants to be where a source package is.
mkdir "$work/debian"
printf 'Source: dualpipe\n\nPackage: dualpipe\nArchitecture: any\n' >"$work/debian/control"
lib=$(dirname "$(find "$root" -name 'libdualpipe.so.0' | head -n 1)")
[ -d "$lib" ] || die "no libdualpipe.so.0 below $root"
objects=$(find "$root" -type f ! -name mpi.so \
    \( -name '*.so' -o -name '*.so.*' -o -path '*/bin/dualpipe' \))
# shellcheck disable=SC2086 # a name a word
depends=$(cd "$work" &&
    dpkg-shlibdeps -O --ignore-missing-info "-l$lib" -xdualpipe $objects 2>/dev/null) ||
    die "dpkg-shlibdeps failed"
depends=$(printf '%s\n' "$depends" | sed -n 's/^shlibs:Depends=//p')
[ "$depends" ] || die "nothing that the programs depend on was found"
depends="$depends, libdlpack-dev"
! grep -q 'libopenblas\.so' "$root/usr/bin/dualpipe" || depends="$depends, libopenblas0"

mkdir -p "$root/DEBIAN" "$root/usr/share/doc/dualpipe"
cp "$work/sources/LICENSE" "$root/usr/share/doc/dualpipe/copyright"
find "$root" -name '*.la' -exec rm -f {} +
# Where Debian's zsh looks.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
cat >"$root/DEBIAN/control" <<CONTROL
Package: dualpipe
Version: $version
Architecture: $architecture
Maintainer: The dualpipe authors <dualpipe@localhost>
Section: science
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f 1)
Depends: $depends
Suggests: libibverbs1, ibverbs-providers, libopenmpi3
Description: pipeline-parallel and decentralized training, and plugins for NCCL
 The command dualpipe, the library with its headers, the net, tuner and
 profiler plugins for NCCL, and a library to preload that places pinned memory.
CONTROL
# Directories and files as packages have them, whatever the umask was.
find "$root" -type d -exec chmod 755 {} +
dpkg-deb --root-owner-group --build "$root" "$output" >/dev/null
echo "$output"
