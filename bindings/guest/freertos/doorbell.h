/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef DOORBELL_H
#define DOORBELL_H

#include "FreeRTOS.h"
#include "task.h"

/* The task that Linux's doorbell wakes, by ulTaskNotifyTake. */
void doorbell_wakes(TaskHandle_t task);

#endif
