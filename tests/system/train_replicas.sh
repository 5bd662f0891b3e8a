#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train_replicas.sh - replicas of `dualpipe train` print the numbers of one, whether they sum or mix: a
# part of train.sh.
. "$DP_TOP_SRCDIR/tests/system/train.sh"
