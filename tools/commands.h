/* SPDX-License-Identifier: Apache-2.0
 *
 * commands.h - the functions that the tables of commands name, one a file.
 */
#ifndef DP_TOOLS_COMMANDS_H
#define DP_TOOLS_COMMANDS_H

int run_bench(int argc, char **argv);
int run_checkpoint(int argc, char **argv);
int run_doctor(int argc, char **argv);
int run_info(int argc, char **argv);
int run_mix(int argc, char **argv);
int run_plan(int argc, char **argv);
int run_run(int argc, char **argv);
int run_schedule(int argc, char **argv);
int run_stat(int argc, char **argv);
int run_topo(int argc, char **argv);
int run_train(int argc, char **argv);
int run_tune(int argc, char **argv);

int run_bench_comm(int argc, char **argv);
int run_bench_net(int argc, char **argv);
int run_bench_offload(int argc, char **argv);
int run_bench_step(int argc, char **argv);
int run_bench_wire(int argc, char **argv);

int run_checkpoint_export(int argc, char **argv);
int run_checkpoint_show(int argc, char **argv);
int run_checkpoint_verify(int argc, char **argv);

int run_mix_check(int argc, char **argv);
int run_mix_show(int argc, char **argv);
int run_mix_simulate(int argc, char **argv);

int run_schedule_check(int argc, char **argv);
int run_schedule_compare(int argc, char **argv);
int run_schedule_export(int argc, char **argv);
int run_schedule_show(int argc, char **argv);
int run_schedule_simulate(int argc, char **argv);

int run_topo_diff(int argc, char **argv);
int run_topo_json(int argc, char **argv);
int run_topo_matrix(int argc, char **argv);
int run_topo_nccl_xml(int argc, char **argv);
int run_topo_nics(int argc, char **argv);
int run_topo_path(int argc, char **argv);
int run_topo_place(int argc, char **argv);
int run_topo_show(int argc, char **argv);
int run_topo_svg(int argc, char **argv);

int run_tune_explain(int argc, char **argv);
int run_tune_fit(int argc, char **argv);

#endif
