/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_peers.c - `dualpipe bench wire` in turns with other libraries; wire.sh beside this runs it.
 */
#include "tests/bench/peers.h"

int main(int argc, char **argv)
{
    return wire_bench(argc, argv, &peer_ops);
}
