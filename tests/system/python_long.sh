#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python_long.sh - the tests of the PyTorch package that take long: the trainer and its checkpoints.
DP_PYTHON_LONG='test_trainer test_checkpoint'
. "$DP_TOP_SRCDIR/tests/system/python.sh"
