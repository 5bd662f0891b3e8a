/* SPDX-License-Identifier: Apache-2.0
 *
 * net_cases.h - the cases: what a net plugin must do, one sentence each.
 */
#ifndef DP_TESTS_NET_CASES_H
#define DP_TESTS_NET_CASES_H

struct net_case {
    const char *name;
    void (*run)(void);
};

/* Ends with a NULL name. */
extern const struct net_case net_data_cases[], net_life_cases[], net_trouble_cases[];

#endif
