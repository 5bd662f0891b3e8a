/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c - `dualpipe train` in a build without BLAS: says what to do about it.
 */
#include "command.h"
#include "commands.h"

int run_train(int argc, char **argv)
{
    (void)argc, (void)argv;
    return command_broke("'dualpipe train' was not built, because configure found no OpenBLAS; "
                         "install it (Debian, Ubuntu: libopenblas-dev), configure and make again");
}
