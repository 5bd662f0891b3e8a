# SPDX-License-Identifier: Apache-2.0
"""Classes of other packages by their own names."""
