#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python_cuda.sh - the PyTorch package on GPUs, which are simulated, and exceptions at every callback.
DP_PYTHON_LONG='test_cuda test_stress'
. "$DP_TOP_SRCDIR/tests/system/python.sh"
