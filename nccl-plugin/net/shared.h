/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.h - memory that the program shares by libdualpipe.so (dualpipe/memory.h), if it has that
 * loaded. The plugin has a list of its own inside, where nothing is.
 */
#ifndef DPN_NET_SHARED_H
#define DPN_NET_SHARED_H

/* From now on such memory is known here, too. Any number of times, any thread; not for hot
 * paths. */
void dpn_shared_look(void);

#endif
