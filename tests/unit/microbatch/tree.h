/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.h - directories like /sys out of one file (tests/data/topology/NAME.tree), which says how.
 */
#ifndef DP_TESTS_TREE_H
#define DP_TESTS_TREE_H

/* Write the files of tests/data/topology/NAME.tree below a new directory, whose name is returned;
 * fails the test otherwise. tree_remove also frees the name. */
char *tree_unpack(const char *name);
void tree_remove(char *root);

#endif
