/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "doctor/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVIDIA = 0x10de, CLASS_DISPLAY = 0x03 };

static struct device *add(struct devices *devices)
{
    struct device *more = realloc(devices->items, (devices->count + 1) * sizeof(*more));

    if (!more)
        return NULL;
    devices->items = more;
    more[devices->count] = (struct device){.node = -1};
    return &more[devices->count++];
}

/* A virtio device is one level below its PCI function. */
static void place(struct doctor *d, struct device *device, const char *link)
{
    double node;

    if (!tree_real(&d->tree, &device->path, "%s", link))
        device->path.text[0] = 0;
    else if (!tree_has(&d->tree, "%s/class", device->path.text))
        device->path = devices_parent(d, device->path.text);
    if (*device->path.text && tree_number(&d->tree, &node, "%s/numa_node", device->path.text))
        device->node = (int)node;
}

static void find_gpus(struct doctor *d, struct devices *devices)
{
    struct tree_list list = tree_glob(&d->tree, "/sys/bus/pci/devices/*");

    for (size_t i = 0; i < list.count; i++) {
        double vendor, class;
        if (!tree_number(&d->tree, &vendor, "%s/vendor", list.paths[i]) || vendor != NVIDIA ||
            !tree_number(&d->tree, &class, "%s/class", list.paths[i]) ||
            ((int)class >> 16) != CLASS_DISPLAY)
            continue;
        struct device *gpu = add(devices);
        if (!gpu)
            break;
        gpu->gpu = true;
        snprintf(gpu->name, sizeof(gpu->name), "GPU %s", tree_base(list.paths[i]));
        place(d, gpu, list.paths[i]);
    }
    tree_list_free(&list);
}

bool devices_interface(struct doctor *d, const char *name, char interface[static 64])
{
    char line[256];
    struct tree_list list;
    bool found = tree_line(&d->tree, line, "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0",
                           name) && *line;

    /* Soft-RoCE and soft-iWARP name it another way. */
    found = found || (tree_line(&d->tree, line, "/sys/class/infiniband/%s/parent", name) && *line);
    if (!found) {
        list = tree_glob(&d->tree, "/sys/class/infiniband/%s/device/net/*", name);
        if ((found = list.count))
            snprintf(line, sizeof(line), "%s", tree_base(list.paths[0]));
        tree_list_free(&list);
    }
    if (found)
        snprintf(interface, 64, "%.63s", line);
    return found;
}

static void find_cards(struct doctor *d, struct devices *devices)
{
    struct tree_list list = tree_glob(&d->tree, "/sys/class/infiniband/*");

    for (size_t i = 0; i < list.count; i++) {
        struct device *card = add(devices);
        char interface[64];
        if (!card)
            break;
        snprintf(card->name, sizeof(card->name), "%s", tree_base(list.paths[i]));
        place(d, card, doctor_text(d, "%s/device", list.paths[i]));
        if (!*card->path.text && devices_interface(d, card->name, interface))
            place(d, card, doctor_text(d, "/sys/class/net/%s/device", interface));
    }
    tree_list_free(&list);
}

struct devices devices_find(struct doctor *d)
{
    struct devices devices = {0};

    find_gpus(d, &devices);
    find_cards(d, &devices);
    return devices;
}

void devices_free(struct devices *devices)
{
    free(devices->items);
    *devices = (struct devices){0};
}

int devices_gpu_count(struct doctor *d)
{
    struct devices devices = {0};

    find_gpus(d, &devices);
    int count = (int)devices.count;
    devices_free(&devices);
    return count;
}

struct tree_path devices_parent(struct doctor *d, const char *path)
{
    struct tree_path parent;

    snprintf(parent.text, sizeof(parent.text), "%.*s",
             (int)(strlen(path) - strlen(tree_base(path)) - (*path != 0)), path);
    if (!tree_has(&d->tree, "%s/class", parent.text))
        parent.text[0] = 0;
    return parent;
}
