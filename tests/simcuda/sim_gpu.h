/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_gpu.h - the GPU that CUDA and NVML both tell of.
 */
#ifndef DP_TESTS_SIMCUDA_SIM_GPU_H
#define DP_TESTS_SIMCUDA_SIM_GPU_H

#define SIM_GPU_BUS_ID "0000:1b:00.0"
#define SIM_GPU_UUID   "simulated GPU 0"
#define SIM_GPU_MAJOR  8
#define SIM_GPU_MINOR  0

#endif
