/* SPDX-License-Identifier: Apache-2.0
 *
 * dp_bench.h - the commands of dp-bench; all return an EXIT_ value (command.h).
 */
#ifndef DP_TESTS_BENCH_DP_BENCH_H
#define DP_TESTS_BENCH_DP_BENCH_H

int run_bench_copy(int argc, char **argv);
int run_bench_executor(int argc, char **argv);
int run_bench_mixing(int argc, char **argv);
int run_bench_optimizer(int argc, char **argv);
int run_bench_schedule(int argc, char **argv);
int run_bench_topology(int argc, char **argv);

#endif
