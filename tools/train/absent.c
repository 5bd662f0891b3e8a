/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c - `dualpipe train` and `plan` in a build without BLAS: says what to do about it.
 */
#include "command.h"
#include "commands.h"

int run_train(int argc, char **argv)
{
    (void)argc, (void)argv;
    return command_broke("'dualpipe train' and 'plan' were not built, because configure found no "
                         "OpenBLAS; "
                         "install it (Debian, Ubuntu: libopenblas-dev), configure and make again");
}

int run_plan(int argc, char **argv)
{
    return run_train(argc, argv);
}
