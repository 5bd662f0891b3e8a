/* SPDX-License-Identifier: Apache-2.0
 *
 * check_links.c - every PCIe link between a GPU or a network card and its processor: as wide and as
 * fast as both ends can.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <string.h>

/* What the function and the one above it can both do; a number of the file max_link_..., else 0. */
static double both_can(struct doctor *d, const char *path, const char *above, const char *what)
{
    double mine, theirs;

    if (!tree_number(&d->tree, &mine, "%s/max_link_%s", path, what))
        return 0;
    if (*above && tree_number(&d->tree, &theirs, "%s/max_link_%s", above, what) && theirs > 0 &&
        theirs < mine)
        return theirs;
    return mine;
}

static bool look_at_width(struct doctor *d, const char *path, const char *above, const char *name)
{
    double now, can = both_can(d, path, above, "width");

    if (!tree_number(&d->tree, &now, "%s/current_link_width", path) || now <= 0 || now >= can)
        return true;
    doctor_add(d, DOCTOR_WARNING,
               doctor_text(d, "the PCIe link of %s, on the way to %s, has %.0f of %.0f lanes",
                           tree_base(path), name, now, can),
               doctor_text(d, "%s/current_link_width, max_link_width", path),
               doctor_text(d, "at most %.0f %% of its bandwidth", 100 * now / can),
               "reseat the card, try another slot; look into the BIOS for bifurcation");
    return false;
}

/* An idle GPU lets its link slow down. */
static bool look_at_speed(struct doctor *d, const char *path, const char *above,
                          const struct device *device)
{
    double now, can = both_can(d, path, above, "speed");

    if (!tree_number(&d->tree, &now, "%s/current_link_speed", path) || now <= 0 || now >= can)
        return true;
    doctor_add(d, device->gpu ? DOCTOR_UNKNOWN : DOCTOR_WARNING,
               doctor_text(d, "the PCIe link of %s, on the way to %s, runs at %g of %g GT/s",
                           tree_base(path), device->name, now, can),
               doctor_text(d, "%s/current_link_speed, max_link_speed", path),
               device->gpu ? "slow, unless the GPU is idle: then its link rests"
                           : doctor_text(d, "at most %.0f %% of its bandwidth", 100 * now / can),
               device->gpu ? "look again while the GPU works"
                           : "reseat the card, try another slot; look for errors of the "
                             "link in the kernel's log (AER)");
    return false;
}

static int generation(double gigatransfers)
{
    static const double speeds[] = {2.5, 5, 8, 16, 32, 64}; /* of generation 1 and so on */
    int g = 0;

    while (g < 6 && speeds[g] <= gigatransfers)
        g++;
    return g;
}

/* A link runs as both ends can; for a GPU it is also said what the card could do in another slot.
 */
static void look_at_slot(struct doctor *d, const struct device *gpu)
{
    const char *path = gpu->path.text;
    const struct tree_path above = devices_parent(d, path);
    double speed, width;

    if (!tree_number(&d->tree, &speed, "%s/max_link_speed", path) ||
        !tree_number(&d->tree, &width, "%s/max_link_width", path))
        return;
    const double slot_speed = both_can(d, path, above.text, "speed");
    const double slot_width = both_can(d, path, above.text, "width");
    const bool is_less = slot_speed < speed || slot_width < width;
    doctor_add(d, is_less ? DOCTOR_NOTE : DOCTOR_FINE,
               doctor_text(d,
                           "%s can do PCIe generation %d with %.0f lanes, its slot generation "
                           "%d with %.0f",
                           gpu->name, generation(speed), width, generation(slot_speed), slot_width),
               doctor_text(d, "%s/max_link_speed, max_link_width", path),
               is_less ? doctor_text(d, "copies reach %.0f %% of the card's bandwidth",
                                     100 * slot_speed * slot_width / (speed * width))
                       : NULL,
               is_less ? "use a slot that has as much" : NULL);
}

/* Every link up to the processor. */
static bool look_at_way(struct doctor *d, const struct device *device)
{
    struct tree_path at = device->path;
    bool good = true;

    while (*at.text) {
        struct tree_path above = devices_parent(d, at.text);
        good &= look_at_width(d, at.text, above.text, device->name);
        good &= look_at_speed(d, at.text, above.text, device);
        at = above;
    }
    return good;
}

void doctor_links(struct doctor *d)
{
    struct devices devices = devices_find(d);
    bool good = true;
    int seen = 0;

    for (size_t i = 0; i < devices.count; i++)
        if (*devices.items[i].path.text) {
            good &= look_at_way(d, &devices.items[i]);
            if (devices.items[i].gpu)
                look_at_slot(d, &devices.items[i]);
            seen++;
        }
    if (good && seen)
        doctor_fine(
            d, doctor_text(d, "the PCIe links of %d GPUs and network cards run as they can", seen),
            "/sys/bus/pci/devices/*/current_link_*");
    devices_free(&devices);
}
