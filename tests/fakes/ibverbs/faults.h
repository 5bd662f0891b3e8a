/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.h - what goes wrong: by chance, as FAKE_VERBS_FAULTS says, or because a test said so.
 */
#ifndef DP_TESTS_FAULTS_H
#define DP_TESTS_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

enum fv_fault {
    FV_REORDER,
    FV_ACK,
    FV_SHORT,
    FV_ERROR,
    FV_REG,
    FV_MODIFY,
    FV_PORT,
    FV_GID,
    FV_QP,
    FV_DEVICE,
    FV_TWICE,
    FV_FAULTS
};

void fv_faults_read(void);
/* Whether event n of the kind strikes; object: of which queue pair, or 0. */
bool fv_strikes(enum fv_fault kind, uint64_t object, uint64_t n);
/* A number below `below`, of the same event. */
unsigned fv_draw(enum fv_fault kind, uint64_t object, uint64_t n, unsigned below);
/* Milliseconds that a port stays down. */
unsigned fv_port_ms(void);

/* The error of this call of a function, or 0. */
int fv_call_error(const char *function);
bool fv_fail_call(const char *function, int n, int error);
/* Wait while this function is held; without the fabric's lock. */
void fv_wait_if_held(const char *function);
bool fv_hold_call(const char *function);
int fv_held_calls(void);
void fv_pass_calls(void);

#endif
