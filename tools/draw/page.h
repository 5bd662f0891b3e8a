/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h - page.html as strings, a line each; make writes page.c.
 */
#ifndef DP_TOOLS_DRAW_PAGE_H
#define DP_TOOLS_DRAW_PAGE_H

extern const char *const draw_page[]; /* ends with NULL */

#endif
