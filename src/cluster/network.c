/* Networks by name, with the typical performance of their links. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <mgwfbp/cluster.h>

#include "base/locale.h"
#include "base/near.h"
#include "base/status.h"

/*
 * Latencies: for TCP, that of a transfer on 10 Gbit/s as measured in the MG-WFBP paper, 32 us; for
 * RDMA, PCIe and NVLink, those of a ring hop in NCCL's tuner (src/graph/tuning.cc: 14, 5.7 and 3.4
 * us). Bandwidths: for Ethernet and InfiniBand, the line rate minus 6% for headers; for NVLink, the
 * rate that NCCL's maintainers report as reachable (nccl-tests, issue 212: 370 of 450 GB/s, and the
 * same share of 300 GB/s for the previous generation); for PCIe, three quarters of the line rate.
 */
static const mgw_network networks[] = {
    {"1gbe", 32e-6, 0.94, "1 Gbit/s Ethernet, TCP"},
    {"10gbe", 32e-6, 9.4, "10 Gbit/s Ethernet, TCP"},
    {"25gbe", 32e-6, 23.5, "25 Gbit/s Ethernet, TCP"},
    {"100gbe", 14e-6, 94, "100 Gbit/s Ethernet, RDMA"},
    {"200gbe", 14e-6, 188, "200 Gbit/s Ethernet, RDMA"},
    {"400gbe", 14e-6, 376, "400 Gbit/s Ethernet, RDMA"},
    {"hdr", 14e-6, 188, "HDR InfiniBand, 200 Gbit/s"},
    {"ndr", 14e-6, 376, "NDR InfiniBand, 400 Gbit/s"},
    {"pcie4", 5.7e-6, 189, "PCIe 4, 16 lanes"},
    {"pcie5", 5.7e-6, 378, "PCIe 5, 16 lanes"},
    {"nvlink3", 3.4e-6, 1970, "NVLink 3 (A100)"},
    {"nvlink4", 3.4e-6, 2960, "NVLink 4 (H100, H200)"},
};

const mgw_network *mgw_network_list(size_t *count)
{
    *count = sizeof networks / sizeof *networks;
    return networks;
}

mgw_link mgw_network_link(const mgw_network *network)
{
    return (mgw_link){.alpha_s = network->latency_s, .beta_s_per_byte = 8e-9 / network->gbit_per_s};
}

/* A unit that may follow a number. */
typedef struct unit {
    const char *name;
    double factor;
} unit;

/* In any case, but for B and b: those are bytes and bits. */
static bool is_unit(const char *text, const char *name, size_t length)
{
    bool any_case = strstr(name, "bit") || strstr(name, "bps");
    return any_case ? !strncasecmp(text, name, length) : !strncmp(text, name, length);
}

static const char *read_quantity(const char *text, const unit *units, double *out)
{
    char *end = NULL;
    double number = strtod_l(text, &end, mgw_c_locale());
    if (end == text || !isfinite(number) || number < 0)
        return NULL;
    for (; units->name; units++) {
        size_t length = strlen(units->name);
        if (is_unit(end, units->name, length) && (end[length] == 0 || end[length] == ',')) {
            *out = number * units->factor;
            return end + length;
        }
    }
    return NULL;
}

/* "30us,100Gbit/s" */
static bool read_constants(const char *text, mgw_link *out)
{
    static const unit latencies[] = {
        {"us", 1e-6}, {"\xc2\xb5s", 1e-6}, {"ms", 1e-3}, {"s", 1}, {0}};
    static const unit bandwidths[] = {{"Gbit/s", 1e9 / 8}, {"Gbit", 1e9 / 8}, {"Gbps", 1e9 / 8},
                                      {"Gb/s", 1e9 / 8},   {"GB/s", 1e9},     {"Mbit/s", 1e6 / 8},
                                      {"Mbps", 1e6 / 8},   {"MB/s", 1e6},     {0}};
    double bytes_per_s = 0;
    const char *rest = read_quantity(text, latencies, &out->alpha_s);
    if (!rest || *rest != ',')
        return false;
    rest = read_quantity(rest + 1, bandwidths, &bytes_per_s);
    out->beta_s_per_byte = 1 / bytes_per_s;
    out->gamma_s_per_byte = 0;
    return rest && *rest == 0 && bytes_per_s > 0;
}

mgw_status mgw_network_parse(const char *name, mgw_link *out, mgw_error *error)
{
    char hint[MGW_NEAR_HINT];
    mgw_near near = mgw_near_to(name);
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
        if (!strcmp(networks[i].name, name)) {
            *out = mgw_network_link(&networks[i]);
            return MGW_OK;
        }
    if (read_constants(name, out))
        return MGW_OK;
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
        mgw_near_offer(&near, networks[i].name);
    mgw_near_hint(&near, hint);
    return mgw_fail(error, MGW_ERR_NOT_FOUND, "unknown network '%.80s'%s", name,
                    *hint ? hint
                          : ": give a name (see 'mgwfbp list networks') or the latency and "
                            "bandwidth of a link, as 30us,100Gbit/s");
}
