/* SPDX-License-Identifier: Apache-2.0
 *
 * pci.h - where on the PCI bus something is, as NCCL wants to know it.
 */
#ifndef DPN_NET_PCI_H
#define DPN_NET_PCI_H

/* device: a link in sysfs, like /sys/class/net/eth0/device. The directory of the device's PCI
 * function, malloc'ed; NULL if it has none. */
char *dpn_pci_path(const char *device);

#endif
