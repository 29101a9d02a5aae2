/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS includes this header; the board has these functions.
 */
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
