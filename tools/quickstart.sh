#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# quickstart.sh [--no-install] - from a fresh clone to a model that has been trained with DualPipe:
# installs the packages that are missing, builds in build/, trains a small GPT over four processes
# on text that every Debian and Ubuntu has, and says where to look at what happened.
set -eu

usage="usage: sh tools/quickstart.sh [--no-install]

From a fresh clone to a model that has been trained with DualPipe: installs the packages that are
missing, builds in build/, trains a small GPT over four processes, and says where the drawing is.

  --no-install              install no packages
  --help                    this"

die()
{
    echo "quickstart.sh: $*" >&2
    exit 1
}

install=yes
for argument; do
    case $argument in
    --no-install) install=no ;;
    -h | --help)
        echo "$usage"
        exit 0
        ;;
    *) die "unknown argument '$argument'; --help lists what there is" ;;
    esac
done
cd "$(dirname "$0")/.."

[ $install = no ] || sh tools/packages.sh build
echo "Building in build/ ..."
sh tools/build.sh build


# Text to learn from: the licences that every Debian and Ubuntu carries, always in the same order;
# where they have been removed, this project's own sources.
text=build/text.txt
find /usr/share/common-licenses -type f 2>/dev/null | LC_ALL=C sort | xargs -r cat >$text
[ "$(wc -c <$text)" -ge 100000 ] || cat libdualpipe/*/*.[ch] tools/*.[ch] >>$text

set -- build/tools/dualpipe train --data $text --schedule dualpipe -P 4 -M 8 \
    --timeline build/step.svg --trace build/step.json
echo "$*"
"$@" || die "the training failed; what it said is above"

cat <<'END'

What four processes did in the last step, op by op:
  build/step.svg   a drawing, for any browser
  build/step.json  a trace, for ui.perfetto.dev
Next: 'build/tools/dualpipe --help', and 'sh tests/run.sh' to run the tests.
END
