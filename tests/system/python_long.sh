#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python_long.sh - the tests of the PyTorch package that take long: the trainer, GPUs, exceptions at every
# callback.
DP_PYTHON_LONG=yes
. "$DP_TOP_SRCDIR/tests/system/python.sh"
