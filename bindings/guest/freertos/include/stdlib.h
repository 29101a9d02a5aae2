/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS includes this header, and needs nothing of it without a heap.
 */
