/* SPDX-License-Identifier: Apache-2.0
 *
 * callbacks.h - is included before every test: cases, and callbacks that stand in for a caller's, take
 * arguments that few of them need. An option would have to come after -Wextra for clang, and does not.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"
