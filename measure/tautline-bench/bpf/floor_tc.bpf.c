// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The floor for the hook at traffic control: the same source, compiled for another context. */
#define TL_AT_TRAFFIC_CONTROL
#include "floor.bpf.c"
