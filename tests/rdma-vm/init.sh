#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
#
# init.sh - the guest's first process, and all that is in its first file system besides busybox and
# the modules: puts the host's file system, over which what is written goes to memory, in the place
# of the root, and goes on there with the script that run.sh has left in /run/rdma-vm.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order

# Large messages, and no question to the host that has been answered before.
shared=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$shared,ro,cache=loose" host /host
mount -t tmpfs -o size=75% written /written
mkdir /written/files /written/work
mount -t overlay -o lowerdir=/host,upperdir=/written/files,workdir=/written/work files /files

for dir in proc sys dev; do mount -o move /$dir /files/$dir; done
ln -s /proc/self/fd /files/dev/fd
ln -s /proc/self/fd/1 /files/dev/stdout
ln -s /proc/self/fd/2 /files/dev/stderr
mkdir /files/dev/shm
mount -t tmpfs shm /files/dev/shm
mount -t tmpfs run /files/run
mkdir /files/run/rdma-vm
mount -t 9p -o "$shared,cache=none" run /files/run/rdma-vm
exec chroot /files /bin/sh /run/rdma-vm/start
