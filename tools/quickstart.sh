#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# quickstart.sh [--no-install] - from a fresh clone to a model that has been trained with DualPipe:
# installs the packages that are missing, builds in build/, trains a small GPT over four processes
# on text that every Debian and Ubuntu has, and says where to look at what happened.
set -eu

die()
{
    echo "quickstart.sh: $*" >&2
    exit 1
}

install=yes
for argument; do
    case $argument in
    --no-install) install=no ;;
    *) die "unknown argument '$argument'; expected --no-install or nothing" ;;
    esac
done
cd "$(dirname "$0")/.."

[ $install = no ] || sh tools/packages.sh build
echo "Building in build/ ..."
sh tools/build.sh build

