/* SPDX-License-Identifier: Apache-2.0
 *
 * names.c - words for numbers, and numbers for rates.
 */
#include "fabric.h"

#define NAME_OF(names, i)                                                                          \
    ((size_t)(i) < sizeof(names) / sizeof((names)[0]) && (names)[i] ? (names)[i] : "unknown")

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    static const char *const names[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error",
        [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
        [IBV_WC_LOC_ACCESS_ERR] = "local access error",
        [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
        [IBV_WC_REM_ACCESS_ERR] = "remote access error",
        [IBV_WC_REM_OP_ERR] = "remote operation error",
        [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
        [IBV_WC_FATAL_ERR] = "fatal error",
        [IBV_WC_GENERAL_ERR] = "general error",
    };

    return NAME_OF(names, status);
}

EXPORT const char *ibv_event_type_str(enum ibv_event_type event)
{
    static const char *const names[] = {
        [IBV_EVENT_CQ_ERR] = "CQ error",
        [IBV_EVENT_QP_FATAL] = "local work queue catastrophic error",
        [IBV_EVENT_QP_REQ_ERR] = "invalid request local work queue error",
        [IBV_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
        [IBV_EVENT_COMM_EST] = "communication established",
        [IBV_EVENT_DEVICE_FATAL] = "local catastrophic error",
        [IBV_EVENT_PORT_ACTIVE] = "port active",
        [IBV_EVENT_PORT_ERR] = "port error",
        [IBV_EVENT_LID_CHANGE] = "LID change",
        [IBV_EVENT_GID_CHANGE] = "GID table change",
    };

    return NAME_OF(names, event);
}

EXPORT const char *ibv_port_state_str(enum ibv_port_state state)
{
    static const char *const names[] = {
        [IBV_PORT_NOP] = "no state change (NOP)", [IBV_PORT_DOWN] = "down",
        [IBV_PORT_INIT] = "init",                 [IBV_PORT_ARMED] = "armed",
        [IBV_PORT_ACTIVE] = "active",             [IBV_PORT_ACTIVE_DEFER] = "active defer",
    };

    return NAME_OF(names, state);
}

EXPORT const char *ibv_node_type_str(enum ibv_node_type type)
{
    return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

/* Units of 2.5 Gbit/s of each rate. */
static const struct {
    enum ibv_rate rate;
    int mult;
} rates[] = {
    {IBV_RATE_2_5_GBPS, 1},  {IBV_RATE_5_GBPS, 2},    {IBV_RATE_10_GBPS, 4},
    {IBV_RATE_20_GBPS, 8},   {IBV_RATE_30_GBPS, 12},  {IBV_RATE_40_GBPS, 16},
    {IBV_RATE_60_GBPS, 24},  {IBV_RATE_80_GBPS, 32},  {IBV_RATE_120_GBPS, 48},
    {IBV_RATE_25_GBPS, 10},  {IBV_RATE_50_GBPS, 20},  {IBV_RATE_100_GBPS, 40},
    {IBV_RATE_200_GBPS, 80}, {IBV_RATE_400_GBPS, 160}, {IBV_RATE_800_GBPS, 320},
};

EXPORT int ibv_rate_to_mult(enum ibv_rate rate)
{
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        if (rates[i].rate == rate)
            return rates[i].mult;
    return -1;
}

EXPORT enum ibv_rate mult_to_ibv_rate(int mult)
{
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        if (rates[i].mult == mult)
            return rates[i].rate;
    return IBV_RATE_MAX;
}

EXPORT int ibv_rate_to_mbps(enum ibv_rate rate)
{
    const int mult = ibv_rate_to_mult(rate);

    return mult < 0 ? -1 : mult * 2500;
}

EXPORT enum ibv_rate mbps_to_ibv_rate(int mbps)
{
    return mult_to_ibv_rate(mbps / 2500);
}
