/* Prints what the header makes of the layout, for crates/tautline/tests/vbus_c.rs to compare with the Rust side. */
#include "tautline_vbus.h"

#include <inttypes.h>
#include <stdio.h>

#define OFFSET(type, field) printf(#type "." #field " %zu\n", offsetof(struct tlb_##type, field))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct tlb_##type))
#define NUMBER(name) printf(#name " %" PRIu64 "\n", (uint64_t)TLB_##name)

static void print_shape(uint16_t kind, uint32_t depth, uint32_t message_bytes_max)
{
	struct tlb_shape shape = {kind, depth, message_bytes_max};

	printf("shape.%u.%" PRIu32 ".%" PRIu32, (unsigned)kind, depth, message_bytes_max);
	if (tlb_check_shape(shape) != TLB_OK) {
		printf(" 0\n");
		return;
	}
	printf(" %" PRIu64 "\n", tlb_producer_bytes(shape));
	printf("slot.%u.%" PRIu32 ".%" PRIu32 " %" PRIu32 "\n", (unsigned)kind, depth, message_bytes_max, tlb_slot_bytes(shape));
	printf("class.%u.%" PRIu32 ".%" PRIu32 " %" PRIu32 "\n", (unsigned)kind, depth, message_bytes_max,
	       tlb_class_bytes(shape));
}

int main(void)
{
	static const uint32_t depths[] = {0, 1, 2, 3, 64, 4096, 8192};
	static const uint32_t sizes[] = {0, 1, 40, 41, 64, 1000, 65536, 65537, 16777216, 16777217};
	size_t depth;
	size_t size;

	NUMBER(MAGIC);
	NUMBER(VERSION);
	NUMBER(ROLE_PRODUCER);
	NUMBER(ROLE_CONSUMER);
	NUMBER(KIND_QUEUING);
	NUMBER(KIND_SAMPLING);
	NUMBER(CLASS_COUNT);
	NUMBER(CELL_COUNT);
	NUMBER(PRODUCERS_MAX);
	NUMBER(DEPTH_MAX);
	NUMBER(NAME_BYTES);
	NUMBER(MESSAGE_BYTES_MAX);
	NUMBER(MEMORY_BYTES_MAX);
	NUMBER(PAGE_BYTES);
	NUMBER(LINE_BYTES);
	NUMBER(CLASS_STAGGER_BYTES);
	NUMBER(FIRST_SLOT);
	NUMBER(FIRST_CONNECTION);
	NUMBER(SLOT_HEAD_BYTES);
	NUMBER(CONNECTION_BYTES);
	SIZE(identity);
	OFFSET(producer_head, kick);
	OFFSET(producer_head, latest);
	OFFSET(producer_head, published);
	OFFSET(producer_head, dropped_full);
	OFFSET(consumer_head, waiting);
	OFFSET(connection, epoch);
	OFFSET(connection, taken);
	OFFSET(connection, corrupt);
	OFFSET(connection, overwritten);
	OFFSET(connection, reading);
	OFFSET(slot, turn);
	OFFSET(slot, length);
	OFFSET(slot, arrival_ns);
	OFFSET(slot, sequence);
	OFFSET(slot, priority);
	printf("consumer_bytes %" PRIu64 "\n", tlb_consumer_bytes());
	for (depth = 0; depth < sizeof(depths) / sizeof(*depths); depth++)
		for (size = 0; size < sizeof(sizes) / sizeof(*sizes); size++) {
			print_shape(TLB_KIND_QUEUING, depths[depth], sizes[size]);
			print_shape(TLB_KIND_SAMPLING, depths[depth], sizes[size]);
		}
	return 0;
}
