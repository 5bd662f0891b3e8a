/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* its name: another one may have another interface */

#include "nccl-plugin/net/shared.h"

#include "base/shared.h"

#include <dlfcn.h>
#include <stdatomic.h>

/* Whatever name space it was loaded into, as languages other than C do. It stays loaded with
 * that. */
void dpn_shared_look(void)
{
    static atomic_bool is_found;

    if (atomic_load(&is_found))
        return;
    void *library = dlopen(LIBDUALPIPE_SONAME, RTLD_LAZY | RTLD_NOLOAD);
    dp_shared_find_fn *find =
        library ? (dp_shared_find_fn *)dlsym(library, "dp_shared_find") : NULL;
    if (find)
        dp_shared_ask(find);
    atomic_store(&is_found, find != NULL);
}
