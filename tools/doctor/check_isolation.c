/* SPDX-License-Identifier: Apache-2.0
 *
 * check_isolation.c - what sends traffic between two devices round by the processor: the IOMMU when
 * it translates, and ACS, with which a PCIe switch passes such traffic up instead of across.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* PCIe base specification 7.7.11, and the extended capabilities' list at 0x100. */
enum {
    CONFIG_EXTENDED = 0x100,
    CONFIG_LEN = 0x1000,
    CAPABILITY_ACS = 0x0d,
    ACS_CONTROL = 6,
    ACS_REQUEST_REDIRECT = 1 << 2,
    ACS_COMPLETION_REDIRECT = 1 << 3
};

static unsigned little(const char *bytes, int count)
{
    unsigned value = 0;

    while (count--)
        value = value << 8 | (unsigned char)bytes[count];
    return value;
}

/* The control register of ACS, 0 if there is none. */
static unsigned acs_control(const char *config, size_t len)
{
    size_t at = CONFIG_EXTENDED;

    /* A list that goes round is no list. */
    for (int hops = 0; hops < 64 && at >= CONFIG_EXTENDED && at + 8 <= len; hops++) {
        unsigned head = little(config + at, 4);
        if ((head & 0xffff) == CAPABILITY_ACS)
            return little(config + at + ACS_CONTROL, 2);
        at = head >> 20;
    }
    return 0;
}

struct seen {
    int redirecting, hidden, bridges;
    const char *first; /* that redirects, or else that is hidden */
};

static void look_at_bridge(struct doctor *d, const char *path, struct seen *seen)
{
    size_t len = 0;
    char *config = tree_read(&d->tree, &len, "%s/config", path);
    bool hidden = !config || len <= CONFIG_EXTENDED;
    bool redirects =
        !hidden && acs_control(config, len) & (ACS_REQUEST_REDIRECT | ACS_COMPLETION_REDIRECT);

    seen->bridges++;
    seen->hidden += hidden;
    seen->redirecting += redirects;
    if (redirects && seen->redirecting == 1)
        seen->first = doctor_text(d, "%s/config", path);
    else if (hidden && !seen->first)
        seen->first = doctor_text(d, "%s/config", path);
    free(config);
}

static void look_at_acs(struct doctor *d, const struct devices *devices)
{
    struct seen seen = {0};

    for (size_t i = 0; i < devices->count; i++) {
        struct tree_path at = devices->items[i].path;
        while (*at.text && *(at = devices_parent(d, at.text)).text)
            look_at_bridge(d, at.text, &seen);
    }
    if (seen.redirecting)
        doctor_add(d, DOCTOR_WARNING,
                   doctor_text(d,
                               "ACS sends traffic between devices up to the processor, at %d "
                               "of %d bridges",
                               seen.redirecting, seen.bridges),
                   doctor_text(d, "%s, ACS control", seen.first),
                   "GPUDirect and peer copies are slow, or hang in a virtual machine",
                   doctor_text(d,
                               "switch ACS off in the BIOS, or for each: setpci -s %s "
                               "ECAP_ACS+6.w=0",
                               tree_base(devices_parent(d, seen.first).text)));
    else if (seen.hidden)
        doctor_add(d, DOCTOR_UNKNOWN,
                   doctor_text(d, "whether ACS is on at %d bridges cannot be seen", seen.hidden),
                   seen.first, "if it is, GPUDirect and peer copies are slow",
                   "run as root, on the host");
    else if (seen.bridges)
        doctor_fine(d, "ACS redirects nothing above the GPUs and cards",
                    "/sys/bus/pci/devices/*/config");
}

/* "identity" passes addresses through; "DMA" and "DMA-FQ" translate. */
static void look_at_iommu(struct doctor *d, const struct devices *devices)
{
    const char *first = NULL;
    char type[256];
    int translated = 0;

    for (size_t i = 0; i < devices->count; i++)
        if (*devices->items[i].path.text &&
            tree_line(&d->tree, type, "%s/iommu_group/type", devices->items[i].path.text) &&
            !strncmp(type, "DMA", 3) && !translated++)
            first = doctor_text(d, "%s/iommu_group/type: %s", devices->items[i].path.text, type);
    if (translated)
        doctor_add(
            d, DOCTOR_WARNING,
            doctor_text(d, "the IOMMU translates the addresses of %d GPUs and cards", translated),
            first, "GPUDirect goes through the processor, and may fail",
            "boot with iommu=pt, or switch the IOMMU off where no virtual machine "
            "needs it");
    else
        doctor_fine(d, "the IOMMU translates nothing for GPUs and cards",
                    "/sys/bus/pci/devices/*/iommu_group/type");
}

void doctor_isolation(struct doctor *d)
{
    struct devices devices = devices_find(d);

    if (devices.count) {
        look_at_iommu(d, &devices);
        look_at_acs(d, &devices);
    }
    devices_free(&devices);
}
