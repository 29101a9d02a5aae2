/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * V-Bus: messages and values between two programs that share memory. This is the memory and what is done with it, and
 * nothing else: no system call, no allocation, no dependency, C99, hosted or freestanding. How two programs come to
 * share memory is the platform's (on Linux: bindings/c/examples/vbus). The bytes are those of docs/reference/vbus.md,
 * the algorithms those of crates/tautline-shm/src/vbus; tests compile this header and talk to that code both ways.
 *
 * A connection leads from a producer to a consumer. The producer's memory holds the messages, in eight rings by
 * priority, or the four cells of a value. The consumer's holds how far it has come. Each side writes its own memory
 * only and has the other's mapped for reading. Every function here returns after a bounded number of steps, whatever
 * the other side's memory says; what it says is compared with limits of one's own before it is used.
 *
 * Porting. GCC, Clang and what is compatible with them need nothing. For another compiler define TLB_PORT and, before
 * this header, the macros of the section "Atomic access".
 *
 * One thread at a time may use a tlb_producer, and one a tlb_consumer.
 */
#ifndef TAUTLINE_VBUS_H
#define TAUTLINE_VBUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define TLB_ZEROS {}
#else
#define TLB_ZEROS {0}
#endif

/* ---- Layout ------------------------------------------------------------------------------------------------------ */

#define TLB_MAGIC UINT32_C(0x544c4231) /* "TLB1" */
#define TLB_VERSION 2
#define TLB_ROLE_PRODUCER 1
#define TLB_ROLE_CONSUMER 2
#define TLB_KIND_QUEUING 1
#define TLB_KIND_SAMPLING 2

#define TLB_CLASS_COUNT 8      /* priorities 0 to 7, 7 most urgent */
#define TLB_CELL_COUNT 4       /* two pairs of two */
#define TLB_PRODUCERS_MAX 32   /* connections of one consumer */
#define TLB_DEPTH_MAX 4096     /* slots of a class */
#define TLB_NAME_BYTES 32      /* a node's name, zero-terminated */
#define TLB_MESSAGE_BYTES_MAX 16777216
#define TLB_MEMORY_BYTES_MAX (UINT64_C(257) << 20)

#define TLB_PAGE_BYTES 4096
#define TLB_LINE_BYTES 64
#define TLB_CLASS_STAGGER_BYTES 128
#define TLB_FIRST_SLOT 512
#define TLB_FIRST_CONNECTION 512
#define TLB_SLOT_HEAD_BYTES 24
#define TLB_CONNECTION_BYTES 256

/* Identity of a memory, written by its owner. The epoch is written last. */
struct tlb_identity {
	uint32_t magic;
	uint16_t version;
	uint16_t role;
	uint64_t epoch; /* of this connection, as the consumer offered it; never 0 in use */
	uint64_t memory_bytes;
	uint16_t kind;
	uint16_t port;
	uint16_t peer_port; /* 0 in a consumer's memory */
	uint16_t class_count;
	uint32_t depth;
	uint32_t message_bytes_max;
	uint32_t slot_bytes;
	uint32_t class_bytes;
	uint32_t first_slot;
	uint32_t process;
	uint64_t made_ns; /* CLOCK_MONOTONIC */
	uint8_t node[TLB_NAME_BYTES];
	uint8_t peer_node[TLB_NAME_BYTES];
};

/* Head of a producer's memory. */
struct tlb_producer_head {
	struct tlb_identity identity;
	uint32_t kick; /* times that the producer has kicked; what a consumer sleeps on */
	uint8_t kick_rest[60];
	uint64_t latest; /* number of the newest value x 8, and three bits */
	uint8_t latest_rest[56];
	uint64_t published[TLB_CLASS_COUNT];    /* for watchers */
	uint64_t dropped_full[TLB_CLASS_COUNT]; /* for watchers */
	uint8_t rest[128];
};

/* Head of a consumer's memory. */
struct tlb_consumer_head {
	struct tlb_identity identity;
	uint64_t waiting; /* number of the sleep x 4, and how to wake */
	uint8_t waiting_rest[56];
	uint64_t ended_published; /* of producers that have gone; for watchers */
	uint8_t rest[312];
};

/* One connection in a consumer's memory. */
struct tlb_connection {
	uint64_t epoch; /* that a producer is to write into its identity; 0: nobody is expected */
	uint8_t epoch_rest[56];
	uint32_t taken[TLB_CLASS_COUNT]; /* position of the next message to take */
	uint64_t corrupt;                /* slots that made no sense and were skipped */
	uint64_t overwritten;            /* lost by a reader of a memory for many */
	uint8_t taken_rest[16];
	uint32_t reading; /* the pair of cells that is read: 0 or 1 */
	uint8_t reading_rest[60];
	uint8_t rest[64];
};

/* Slot header. */
struct tlb_slot {
	uint32_t turn; /* queue: position + 1 once the message is there; cell: number of the value */
	uint32_t length;
	uint64_t arrival_ns; /* CLOCK_MONOTONIC, when it was published */
	uint32_t sequence;
	uint32_t priority;
};

/* C99 has no static assertion: an array of negative size says the same. */
#define TLB_ASSERT(name, condition) typedef char tlb_assert_##name[(condition) ? 1 : -1]
TLB_ASSERT(identity, sizeof(struct tlb_identity) == 128);
TLB_ASSERT(identity_epoch, offsetof(struct tlb_identity, epoch) == 8);
TLB_ASSERT(identity_kind, offsetof(struct tlb_identity, kind) == 24);
TLB_ASSERT(identity_depth, offsetof(struct tlb_identity, depth) == 32);
TLB_ASSERT(identity_made, offsetof(struct tlb_identity, made_ns) == 56);
TLB_ASSERT(identity_peer_node, offsetof(struct tlb_identity, peer_node) == 96);
TLB_ASSERT(producer, sizeof(struct tlb_producer_head) == TLB_FIRST_SLOT);
TLB_ASSERT(producer_kick, offsetof(struct tlb_producer_head, kick) == 128);
TLB_ASSERT(producer_latest, offsetof(struct tlb_producer_head, latest) == 192);
TLB_ASSERT(producer_published, offsetof(struct tlb_producer_head, published) == 256);
TLB_ASSERT(producer_dropped, offsetof(struct tlb_producer_head, dropped_full) == 320);
TLB_ASSERT(consumer, sizeof(struct tlb_consumer_head) == TLB_FIRST_CONNECTION);
TLB_ASSERT(consumer_waiting, offsetof(struct tlb_consumer_head, waiting) == 128);
TLB_ASSERT(connection, sizeof(struct tlb_connection) == TLB_CONNECTION_BYTES);
TLB_ASSERT(connection_taken, offsetof(struct tlb_connection, taken) == 64);
TLB_ASSERT(connection_corrupt, offsetof(struct tlb_connection, corrupt) == 96);
TLB_ASSERT(connection_overwritten, offsetof(struct tlb_connection, overwritten) == 104);
TLB_ASSERT(connection_reading, offsetof(struct tlb_connection, reading) == 128);
TLB_ASSERT(slot, sizeof(struct tlb_slot) == TLB_SLOT_HEAD_BYTES);
TLB_ASSERT(slot_arrival, offsetof(struct tlb_slot, arrival_ns) == 8);
TLB_ASSERT(slot_priority, offsetof(struct tlb_slot, priority) == 20);

/* ---- Atomic access ----------------------------------------------------------------------------------------------- */

/* Whether loads and stores of 64 bits are single ones. Where they are not, the lower halves of `latest` and `waiting`
 * are used alone; the numbers in them then wrap earlier. Of a value's number `latest` has 29 bits then, and the turn of
 * its cell 32 as always.
 */
#ifndef TLB_WIDE
#if UINTPTR_MAX > 0xffffffff
#define TLB_WIDE 1
#else
#define TLB_WIDE 0
#endif
#endif

/* Of naturally aligned words of 32 bits, and of 64 where TLB_WIDE: a load or store of any order, a load that later
 * accesses do not overtake, a store that does not overtake earlier ones, a barrier between stores and loads, a copy of
 * bytes, and 1 where the most significant byte of a word comes first.
 */
#ifndef TLB_PORT
#define TLB_LOAD(word) __atomic_load_n((word), __ATOMIC_RELAXED)
#define TLB_LOAD_ACQUIRE(word) __atomic_load_n((word), __ATOMIC_ACQUIRE)
#define TLB_STORE(word, value) __atomic_store_n((word), (value), __ATOMIC_RELAXED)
#define TLB_STORE_RELEASE(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
#define TLB_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define TLB_COPY(to, from, bytes) __builtin_memcpy((to), (from), (bytes))
#define TLB_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
#endif

#if TLB_WIDE
typedef uint64_t tlb_word;
#define TLB_WORD(place) (place)
#else
typedef uint32_t tlb_word;
/* The lower half of a word of 64 bits, and the other half left zero. */
#define TLB_WORD(place) ((tlb_word *)(place) + (TLB_BIG_ENDIAN ? 1 : 0))
#endif

static inline tlb_word tlb_load_word(const uint64_t *place)
{
#if TLB_WIDE
	return TLB_LOAD_ACQUIRE(place);
#else
	return TLB_LOAD_ACQUIRE((const tlb_word *)place + (TLB_BIG_ENDIAN ? 1 : 0));
#endif
}

/* A counter for watchers, with one writer. */
static inline void tlb_count(uint64_t *counter)
{
#if TLB_WIDE
	TLB_STORE(counter, TLB_LOAD(counter) + 1);
#else
	*(volatile uint64_t *)counter = *(volatile uint64_t *)counter + 1;
#endif
}

/* ---- Shape: where everything lies -------------------------------------------------------------------------------- */

/* Capacity of a port. The consumer decides; both sides compute the same offsets from it. */
struct tlb_shape {
	uint16_t kind;
	uint32_t depth; /* a power of two, 2 to TLB_DEPTH_MAX; of no meaning to a sampling port */
	uint32_t message_bytes_max;
};

enum tlb_result {
	TLB_OK = 0,
	TLB_TOO_SMALL,     /* the memory is smaller than its shape */
	TLB_NOT_BUS,       /* another magic number */
	TLB_OTHER_VERSION, /* another version of the layout */
	TLB_OTHER_ROLE,    /* the other side's memory, or one's own, in the wrong place */
	TLB_OTHER_SHAPE    /* a field is beyond its limit, or contradicts the others */
};

static inline uint32_t tlb_classes(struct tlb_shape shape)
{
	return shape.kind == TLB_KIND_QUEUING ? TLB_CLASS_COUNT : 1;
}

static inline uint32_t tlb_depth(struct tlb_shape shape)
{
	return shape.kind == TLB_KIND_QUEUING ? shape.depth : TLB_CELL_COUNT;
}

/* Bytes from one slot of a class to the next. */
static inline uint32_t tlb_slot_bytes(struct tlb_shape shape)
{
	return (TLB_SLOT_HEAD_BYTES + shape.message_bytes_max + TLB_LINE_BYTES - 1) / TLB_LINE_BYTES * TLB_LINE_BYTES;
}

/* Bytes from one class to the next, of a shape within the limits. */
static inline uint32_t tlb_class_bytes(struct tlb_shape shape)
{
	return tlb_slot_bytes(shape) * tlb_depth(shape) + TLB_CLASS_STAGGER_BYTES;
}

static inline uint64_t tlb_whole_pages(uint64_t bytes)
{
	return (bytes + TLB_PAGE_BYTES - 1) / TLB_PAGE_BYTES * TLB_PAGE_BYTES;
}

/* Bytes of a producer's memory, also of a shape that is beyond the limits: tlb_check_shape asks here. */
static inline uint64_t tlb_producer_bytes(struct tlb_shape shape)
{
	uint64_t class_bytes = (uint64_t)tlb_slot_bytes(shape) * tlb_depth(shape) + TLB_CLASS_STAGGER_BYTES;
	return tlb_whole_pages(TLB_FIRST_SLOT + class_bytes * tlb_classes(shape));
}

/* Bytes of a consumer's memory. */
static inline uint64_t tlb_consumer_bytes(void)
{
	return tlb_whole_pages(TLB_FIRST_CONNECTION + TLB_PRODUCERS_MAX * TLB_CONNECTION_BYTES);
}

static inline enum tlb_result tlb_check_shape(struct tlb_shape shape)
{
	if (shape.kind != TLB_KIND_QUEUING && shape.kind != TLB_KIND_SAMPLING)
		return TLB_OTHER_SHAPE;
	if (shape.message_bytes_max < 1 || shape.message_bytes_max > TLB_MESSAGE_BYTES_MAX)
		return TLB_OTHER_SHAPE;
	if (shape.kind == TLB_KIND_QUEUING &&
	    (shape.depth < 2 || shape.depth > TLB_DEPTH_MAX || (shape.depth & (shape.depth - 1)) != 0))
		return TLB_OTHER_SHAPE;
	return tlb_producer_bytes(shape) <= TLB_MEMORY_BYTES_MAX ? TLB_OK : TLB_OTHER_SHAPE;
}

/* Identity of a memory for an owner of this role. The caller fills in ports, names, process and times. */
static inline struct tlb_identity tlb_identity_of(struct tlb_shape shape, uint16_t role)
{
	struct tlb_identity identity = TLB_ZEROS;
	bool producer = role == TLB_ROLE_PRODUCER;

	identity.magic = TLB_MAGIC;
	identity.version = TLB_VERSION;
	identity.role = role;
	identity.memory_bytes = producer ? tlb_producer_bytes(shape) : tlb_consumer_bytes();
	identity.kind = shape.kind;
	identity.class_count = (uint16_t)tlb_classes(shape);
	identity.depth = tlb_depth(shape);
	identity.message_bytes_max = shape.message_bytes_max;
	identity.slot_bytes = producer ? tlb_slot_bytes(shape) : TLB_CONNECTION_BYTES;
	identity.class_bytes = producer ? tlb_class_bytes(shape) : 0;
	identity.first_slot = producer ? TLB_FIRST_SLOT : TLB_FIRST_CONNECTION;
	return identity;
}

/* Owner: writes what the memory is, the epoch last. The memory is aligned to a page and filled with zeros. */
static inline void tlb_announce(void *memory, const struct tlb_identity *identity, uint64_t epoch)
{
	struct tlb_identity *place = (struct tlb_identity *)memory;
	struct tlb_identity unannounced = *identity;

	unannounced.epoch = 0;
	TLB_COPY(place, &unannounced, sizeof(unannounced));
#if TLB_WIDE
	TLB_STORE_RELEASE(&place->epoch, epoch);
#else
	TLB_STORE((tlb_word *)&place->epoch + (TLB_BIG_ENDIAN ? 0 : 1), (tlb_word)(epoch >> 32));
	TLB_STORE_RELEASE(TLB_WORD(&place->epoch), (tlb_word)epoch);
#endif
}

/* Judges what the other side's memory, of `bytes` bytes, says of itself. On TLB_OK `shape` is within the limits and the
 * memory is large enough for it. What the memory says later is not looked at again.
 */
static inline enum tlb_result tlb_check(const void *memory, uint64_t bytes, uint16_t role, struct tlb_shape *shape)
{
	struct tlb_identity found;
	struct tlb_identity expected;

	if (bytes < sizeof(found))
		return TLB_TOO_SMALL;
	TLB_COPY(&found, memory, sizeof(found));
	if (found.magic != TLB_MAGIC)
		return TLB_NOT_BUS;
	if (found.version != TLB_VERSION)
		return TLB_OTHER_VERSION;
	if (found.role != role)
		return TLB_OTHER_ROLE;
	shape->kind = found.kind;
	shape->depth = found.depth;
	shape->message_bytes_max = found.message_bytes_max;
	if (tlb_check_shape(*shape) != TLB_OK)
		return TLB_OTHER_SHAPE;
	expected = tlb_identity_of(*shape, role);
	if (bytes < expected.memory_bytes)
		return TLB_TOO_SMALL;
	if (found.memory_bytes != expected.memory_bytes || found.class_count != expected.class_count ||
	    found.depth != expected.depth || found.slot_bytes != expected.slot_bytes ||
	    found.class_bytes != expected.class_bytes || found.first_slot != expected.first_slot)
		return TLB_OTHER_SHAPE;
	return TLB_OK;
}

/* ---- Producer ---------------------------------------------------------------------------------------------------- */

/* How a consumer that sleeps is to be woken. */
enum tlb_kick {
	TLB_KICK_NONE = 0,      /* it is awake, or has been kicked for this sleep */
	TLB_KICK_FUTEX = 1,     /* FUTEX_WAKE on tlb_producer_head.kick, or what the platform has in its place */
	TLB_KICK_DESCRIPTOR = 2 /* write to the event descriptor that the consumer handed over */
};

/* The producer's place. Its fields are nobody else's business. */
struct tlb_producer {
	struct tlb_producer_head *head;
	const struct tlb_consumer_head *consumer;
	const struct tlb_connection *connection;
	struct tlb_shape shape;
	uint32_t slot_bytes;
	uint32_t class_bytes;
	uint32_t next[TLB_CLASS_COUNT];
	uint32_t taken[TLB_CLASS_COUNT]; /* as it was when last looked at */
	tlb_word kicked;
	tlb_word latest;
	tlb_word number; /* of the newest value; with its lower bits in `latest` and in the turn of its cell */
	uint32_t pair;
};

/* A producer of connection `index` (0 to TLB_PRODUCERS_MAX - 1). `memory` is its own and announced, nothing has been
 * published in it; `peer` is the consumer's and has passed tlb_check.
 */
static inline void tlb_producer_open(struct tlb_producer *producer, void *memory, struct tlb_shape shape, const void *peer,
				     uint32_t index)
{
	struct tlb_producer fresh = TLB_ZEROS;

	fresh.head = (struct tlb_producer_head *)memory;
	fresh.consumer = (const struct tlb_consumer_head *)peer;
	fresh.connection = (const struct tlb_connection *)((const uint8_t *)peer + TLB_FIRST_CONNECTION) +
			   index % TLB_PRODUCERS_MAX;
	fresh.shape = shape;
	fresh.slot_bytes = tlb_slot_bytes(shape);
	fresh.class_bytes = tlb_class_bytes(shape);
	*producer = fresh;
}

static inline struct tlb_slot *tlb_producer_slot(const struct tlb_producer *producer, uint32_t priority, uint32_t position)
{
	size_t offset = (size_t)priority * producer->class_bytes +
			(size_t)(position & (tlb_depth(producer->shape) - 1)) * producer->slot_bytes;

	return (struct tlb_slot *)((uint8_t *)producer->head + TLB_FIRST_SLOT + offset);
}

static inline void tlb_describe(struct tlb_slot *slot, uint32_t length, uint32_t sequence, uint32_t priority,
				uint64_t arrival_ns)
{
	TLB_STORE(&slot->length, length);
	TLB_STORE(&slot->sequence, sequence);
	TLB_STORE(&slot->priority, priority);
	slot->arrival_ns = arrival_ns;
}

/* The payload of the next message of a priority (0 to 7), to be filled in place: shape.message_bytes_max bytes, the
 * producer's until published. NULL: that priority is full. Not publishing it changes nothing.
 */
static inline void *tlb_borrow(struct tlb_producer *producer, uint32_t priority)
{
	uint32_t class_index = priority % TLB_CLASS_COUNT;
	uint32_t position = producer->next[class_index];

	if (position - producer->taken[class_index] >= producer->shape.depth) {
		/* The consumer's reads of the slot are done. A position that makes no sense counts as no room. */
		producer->taken[class_index] = TLB_LOAD_ACQUIRE(&producer->connection->taken[class_index]);
		if (position - producer->taken[class_index] >= producer->shape.depth)
			return NULL;
	}
	return tlb_producer_slot(producer, class_index, position) + 1;
}

/* Publishes what was borrowed last of this priority. Then, once for all that was published, ask tlb_wanted. */
static inline void tlb_publish(struct tlb_producer *producer, uint32_t priority, uint32_t length, uint32_t sequence,
			       uint64_t arrival_ns)
{
	uint32_t class_index = priority % TLB_CLASS_COUNT;
	uint32_t position = producer->next[class_index];
	struct tlb_slot *slot = tlb_producer_slot(producer, class_index, position);

	tlb_describe(slot, length, sequence, class_index, arrival_ns);
	producer->next[class_index] = position + 1;
	TLB_STORE_RELEASE(&slot->turn, position + 1);
	tlb_count(&producer->head->published[class_index]);
}

/* Counts a message of this priority that there was no room for. */
static inline void tlb_give_up(struct tlb_producer *producer, uint32_t priority)
{
	tlb_count(&producer->head->dropped_full[priority % TLB_CLASS_COUNT]);
}

/* Copies a message in and publishes it. False, and counted: it is too long, or that priority is full. */
static inline bool tlb_try_send(struct tlb_producer *producer, uint32_t priority, const void *message, uint32_t length,
				uint32_t sequence, uint64_t arrival_ns)
{
	void *payload = length <= producer->shape.message_bytes_max ? tlb_borrow(producer, priority) : NULL;

	if (payload == NULL) {
		tlb_give_up(producer, priority);
		return false;
	}
	TLB_COPY(payload, message, length);
	tlb_publish(producer, priority, length, sequence, arrival_ns);
	return true;
}

static inline uint32_t tlb_last_of(tlb_word latest, uint32_t pair)
{
	return (uint32_t)(latest >> (1 + pair)) & 1;
}

/* The cell for the next value, to be filled in place: shape.message_bytes_max bytes, the producer's until published. */
static inline void *tlb_borrow_value(struct tlb_producer *producer)
{
	/* The pair that the reader is not in, and there the cell that does not hold the pair's last value. */
	producer->pair = ~TLB_LOAD_ACQUIRE(&producer->connection->reading) & 1;
	return tlb_producer_slot(producer, 0, producer->pair * 2 + 1 - tlb_last_of(producer->latest, producer->pair)) + 1;
}

/* Makes the cell that was borrowed last the newest value. tlb_wanted must follow before the next tlb_borrow_value. */
static inline void tlb_publish_value(struct tlb_producer *producer, uint32_t length, uint32_t sequence, uint32_t priority,
				     uint64_t arrival_ns)
{
	uint32_t pair = producer->pair;
	struct tlb_slot *cell =
		tlb_producer_slot(producer, 0, pair * 2 + 1 - tlb_last_of(producer->latest, pair));
	tlb_word number = producer->number + 1;

	/* A `latest` of 32 bits has no room for this one: 0 would say that there has never been a value. */
	if ((tlb_word)(number << 3) == 0)
		number += 1;
	producer->number = number;
	tlb_describe(cell, length, sequence, priority, arrival_ns);
	TLB_STORE_RELEASE(&cell->turn, (uint32_t)number);
	producer->latest = (tlb_word)(number << 3) | ((producer->latest ^ ((tlb_word)2 << pair)) & 6) | pair;
	TLB_STORE_RELEASE(TLB_WORD(&producer->head->latest), producer->latest);
	tlb_count(&producer->head->published[0]);
}

/* After publishing: how the consumer is to be woken, if at all. The kick word has then changed already. A full
 * barrier. */
static inline enum tlb_kick tlb_wanted(struct tlb_producer *producer)
{
	tlb_word waiting;

	/* Partner: the fence in tlb_arm. */
	TLB_FENCE();
	waiting = tlb_load_word(&producer->consumer->waiting);
	if ((waiting & 3) == 0 || waiting == producer->kicked)
		return TLB_KICK_NONE;
	producer->kicked = waiting;
	TLB_STORE_RELEASE(&producer->head->kick, TLB_LOAD(&producer->head->kick) + 1);
	return (waiting & 3) == TLB_KICK_DESCRIPTOR ? TLB_KICK_DESCRIPTOR : TLB_KICK_FUTEX;
}

/* Copies a value in and publishes it. False: it is too long. Nothing else can be in its way. */
static inline bool tlb_write(struct tlb_producer *producer, const void *value, uint32_t length, uint32_t sequence,
			     uint32_t priority, uint64_t arrival_ns, enum tlb_kick *kick)
{
	*kick = TLB_KICK_NONE;
	if (length > producer->shape.message_bytes_max)
		return false;
	TLB_COPY(tlb_borrow_value(producer), value, length);
	tlb_publish_value(producer, length, sequence, priority, arrival_ns);
	*kick = tlb_wanted(producer);
	return true;
}

/* ---- Consumer ---------------------------------------------------------------------------------------------------- */

/* The consumer's place with one producer. Its fields are nobody else's business. */
struct tlb_consumer {
	struct tlb_consumer_head *head;
	struct tlb_connection *connection;
	const struct tlb_producer_head *producer;
	struct tlb_shape shape;
	uint32_t slot_bytes;
	uint32_t class_bytes;
	uint32_t next[TLB_CLASS_COUNT];
	tlb_word seen_latest; /* when our cell held the newest value; 0 before the first */
	uint32_t pair;
	uint32_t cell;
	uint32_t seen_number;
};

/* A message or value where it lies. The other side can write there at any time if it breaks the rules: copy, then
 * check, then use.
 */
struct tlb_message {
	const void *payload;
	uint32_t length;
	uint32_t sequence;
	uint32_t priority;
	uint64_t arrival_ns;
	uint32_t overwritten; /* values that were replaced unseen since the last read */
	bool fresh;           /* a value that is seen for the first time; always of a message */
};

/* The consumer of connection `index`. `memory` is its own; `peer` is the producer's and has passed tlb_check with this
 * shape, and its epoch is the one that was offered.
 */
static inline void tlb_consumer_open(struct tlb_consumer *consumer, void *memory, struct tlb_shape shape, const void *peer,
				     uint32_t index)
{
	struct tlb_consumer fresh = TLB_ZEROS;

	fresh.head = (struct tlb_consumer_head *)memory;
	fresh.connection =
		(struct tlb_connection *)((uint8_t *)memory + TLB_FIRST_CONNECTION) + index % TLB_PRODUCERS_MAX;
	fresh.producer = (const struct tlb_producer_head *)peer;
	fresh.shape = shape;
	fresh.slot_bytes = tlb_slot_bytes(shape);
	fresh.class_bytes = tlb_class_bytes(shape);
	*consumer = fresh;
}

static inline const struct tlb_slot *tlb_consumer_slot(const struct tlb_consumer *consumer, uint32_t priority,
						       uint32_t position)
{
	size_t offset = (size_t)priority * consumer->class_bytes +
			(size_t)(position & (tlb_depth(consumer->shape) - 1)) * consumer->slot_bytes;

	return (const struct tlb_slot *)((const uint8_t *)consumer->producer + TLB_FIRST_SLOT + offset);
}

/* Reads what a slot says, each field once. False: the length is beyond the limit. */
static inline bool tlb_look(const struct tlb_consumer *consumer, const struct tlb_slot *slot, struct tlb_message *message)
{
	message->payload = slot + 1;
	message->length = TLB_LOAD(&slot->length);
	message->sequence = TLB_LOAD(&slot->sequence);
	message->priority = TLB_LOAD(&slot->priority) % TLB_CLASS_COUNT;
	message->arrival_ns = *(const volatile uint64_t *)&slot->arrival_ns;
	message->overwritten = 0;
	message->fresh = true;
	return message->length <= consumer->shape.message_bytes_max;
}

/* Gives the slot of the oldest message of a priority back to the producer. */
static inline void tlb_release(struct tlb_consumer *consumer, uint32_t priority)
{
	uint32_t class_index = priority % TLB_CLASS_COUNT;

	consumer->next[class_index] += 1;
	TLB_STORE_RELEASE(&consumer->connection->taken[class_index], consumer->next[class_index]);
}

/* The slot of the oldest message of a class; NULL: it has none. */
static inline const struct tlb_slot *tlb_oldest(const struct tlb_consumer *consumer, uint32_t class_index)
{
	uint32_t position = consumer->next[class_index];
	const struct tlb_slot *slot = tlb_consumer_slot(consumer, class_index, position);

	return TLB_LOAD_ACQUIRE(&slot->turn) == position + 1 ? slot : NULL;
}

/* The oldest message of a priority; it stays until tlb_release. A slot that makes no sense is skipped and counted,
 * and then the answer is false though a message may follow.
 */
static inline bool tlb_peek(struct tlb_consumer *consumer, uint32_t priority, struct tlb_message *message)
{
	uint32_t class_index = priority % TLB_CLASS_COUNT;
	const struct tlb_slot *slot = tlb_oldest(consumer, class_index);

	if (slot == NULL)
		return false;
	if (!tlb_look(consumer, slot, message)) {
		tlb_count(&consumer->connection->corrupt);
		tlb_release(consumer, class_index);
		return false;
	}
	message->priority = class_index;
	return true;
}

/* The oldest message of the most urgent priority that has one; it stays until tlb_release(consumer,
 * message->priority). */
static inline bool tlb_peek_most_urgent(struct tlb_consumer *consumer, struct tlb_message *message)
{
	uint32_t priority;

	for (priority = TLB_CLASS_COUNT; priority-- > 0;)
		if (tlb_peek(consumer, priority, message))
			return true;
	return false;
}

/* The newest value; it stays as it is until the next tlb_read. False while there has never been one, or if what it
 * says makes no sense.
 */
static inline bool tlb_read(struct tlb_consumer *consumer, struct tlb_message *value)
{
	tlb_word latest = tlb_load_word(&consumer->producer->latest);
	const struct tlb_slot *cell;
	uint32_t ahead = 0;

	if (latest != consumer->seen_latest) {
		tlb_word first = latest;
		uint32_t pair = (uint32_t)latest & 1;

		if (pair != consumer->pair) {
			/* Our reads of the pair that we leave are done. */
			TLB_STORE_RELEASE(&consumer->connection->reading, pair);
			/* Partner: the barrier in tlb_wanted. Either the writer's next look sees the pair, or the load
			 * below sees what it wrote last into this pair.
			 */
			TLB_FENCE();
			latest = tlb_load_word(&consumer->producer->latest);
		}
		consumer->pair = pair;
		consumer->cell = tlb_last_of(latest, pair);
		/* A newer value may have gone to the other pair: then the next read must find that. */
		consumer->seen_latest = (latest & 1) == pair ? latest : first;
	} else if (latest == 0 && consumer->seen_number == 0) {
		/* Not so if a number of 64 bits has just zeros in the half that is seen here. */
		return false;
	}
	cell = tlb_consumer_slot(consumer, 0, consumer->pair * 2 + consumer->cell);
	if (!tlb_look(consumer, cell, value)) {
		tlb_count(&consumer->connection->corrupt);
		return false;
	}
	ahead = TLB_LOAD(&cell->turn) - consumer->seen_number;
	consumer->seen_number += ahead;
	value->fresh = ahead != 0;
	value->overwritten = ahead > 0 ? ahead - 1 : 0;
	return true;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* The consumer's sleeps, one for all its producers. */
struct tlb_sleeper {
	tlb_word count;
};

/* Announces a sleep. After this: remember tlb_kicks of each producer, look for messages once more, and sleep only if
 * there are none and only while those counts are the same (on Linux the kernel compares: FUTEX_WAIT, futex_waitv).
 */
static inline void tlb_arm(struct tlb_sleeper *sleeper, struct tlb_consumer_head *own, enum tlb_kick manner)
{
	sleeper->count += 1;
	TLB_STORE(TLB_WORD(&own->waiting), (tlb_word)(sleeper->count << 2) | (tlb_word)manner);
	/* Partner: the fence in tlb_wanted. */
	TLB_FENCE();
}

/* It is awake. A kick that is on its way is harmless. */
static inline void tlb_disarm(struct tlb_sleeper *sleeper, struct tlb_consumer_head *own)
{
	TLB_STORE(TLB_WORD(&own->waiting), (tlb_word)(sleeper->count << 2));
}

/* How often a producer has kicked. */
static inline uint32_t tlb_kicks(const struct tlb_producer_head *producer)
{
	return TLB_LOAD_ACQUIRE(&producer->kick);
}

/* ---- Window: the bus in memory that is just there ---------------------------------------------------------------- */

/* A guest and Linux share one piece of memory: first the region that Linux writes, then the guest's. Linux's head lists
 * the connections; both sides compute from the list where each memory lies. This is the guest's side:
 *
 *     struct tlw_window window;
 *     struct tlw_port port;
 *     struct tlw_address from;
 *     struct tlb_message message;
 *
 *     while (tlw_join(&window, memory, bytes) != TLB_OK)
 *             ;
 *     tlw_port_open(&port, &window, 7);
 *     for (;;) {
 *             tlw_beat(&window);
 *             if (tlw_receive(&port, &message, &from)) {
 *                     tlw_send(&port, from, message.priority, message.payload, message.length, 0);
 *                     tlw_release(&port, &message);
 *                     if (tlw_wanted(&port))
 *                             ring the doorbell
 *             }
 *     }
 */

#define TLW_MAGIC UINT32_C(0x544c5731) /* "TLW1" */
#define TLW_VERSION 1
#define TLW_SIDE_LINUX 1
#define TLW_SIDE_GUEST 2
#define TLW_TO_GUEST 1
#define TLW_TO_LINUX 2
#define TLW_CONNECTIONS_MAX 32
#define TLW_PEERS_MAX 64
#define TLW_HEAD_BYTES 8192
#define TLW_ADDRESS_BYTES 8
#define TLW_WINDOW_BYTES_MAX (UINT64_C(256) << 20)

/* A connection in the table of a region's head. */
struct tlw_connection {
	uint16_t kind;
	uint16_t port; /* the guest's */
	uint16_t direction;
	uint16_t zero;
	uint32_t depth; /* 0 sampling */
	uint32_t message_bytes_max; /* with the address */
	uint8_t rest[48];
};

/* A name in the table of Linux's region. */
struct tlw_peer {
	uint32_t turn; /* even: the name is whole; 0: there is none */
	uint8_t rest[28];
	uint8_t name[TLB_NAME_BYTES];
};

/* Head of a region. */
struct tlw_head {
	uint32_t magic;
	uint16_t version;
	uint16_t side;
	uint64_t generation; /* of its writer's life; written last; 0: not there */
	uint64_t region_bytes;
	uint64_t peer_generation; /* of the other side, as noted */
	uint64_t window_bytes;
	uint32_t connection_count;
	uint32_t silence_max_ms; /* of the other side, before it is taken for dead; 0: any */
	uint8_t rest[16];
	uint32_t heartbeat;
	uint32_t doorbells; /* rung by this side, for people */
	uint8_t life_rest[56];
	uint8_t more_rest[128];
	struct tlw_connection connections[TLW_CONNECTIONS_MAX];
	uint8_t page_rest[1792];
	struct tlw_peer peers[TLW_PEERS_MAX];
};

TLB_ASSERT(window_connection, sizeof(struct tlw_connection) == 64);
TLB_ASSERT(window_peer, sizeof(struct tlw_peer) == 64);
TLB_ASSERT(window_head, sizeof(struct tlw_head) == TLW_HEAD_BYTES);
TLB_ASSERT(window_heartbeat, offsetof(struct tlw_head, heartbeat) == 64);
TLB_ASSERT(window_connections, offsetof(struct tlw_head, connections) == 256);
TLB_ASSERT(window_peers, offsetof(struct tlw_head, peers) == 4096);

/* Sender or receiver of a message. To answer, send to where a message came from. */
struct tlw_address {
	uint16_t peer;
	uint16_t turn;
	uint16_t port;
};

/* A window that was joined. Its fields are nobody else's business. */
struct tlw_window {
	const struct tlw_head *linux_side;
	struct tlw_head *own;
	uint64_t generation;
	uint32_t count;
	struct tlw_connection connections[TLW_CONNECTIONS_MAX];
};

/* A port of a window, one thread at a time. Its fields are nobody else's business. */
struct tlw_port {
	const struct tlw_window *window;
	uint32_t in;  /* index of the connection to us; TLW_CONNECTIONS_MAX: none */
	uint32_t out; /* from us */
	bool in_is_open;
	uint64_t in_epoch;
	uint64_t out_epoch;
	struct tlb_consumer consumer;
	struct tlb_producer producer;
	struct tlb_sleeper sleeper;
	uint32_t sequence;
	bool wakes;
};

static inline uint64_t tlw_load(const uint64_t *place)
{
#if TLB_WIDE
	return TLB_LOAD_ACQUIRE(place);
#else
	uint64_t low = TLB_LOAD_ACQUIRE((const uint32_t *)place + (TLB_BIG_ENDIAN ? 1 : 0));

	return low | (uint64_t)TLB_LOAD((const uint32_t *)place + (TLB_BIG_ENDIAN ? 0 : 1)) << 32;
#endif
}

static inline void tlw_store(uint64_t *place, uint64_t value)
{
#if TLB_WIDE
	TLB_STORE_RELEASE(place, value);
#else
	TLB_STORE((uint32_t *)place + (TLB_BIG_ENDIAN ? 0 : 1), (uint32_t)(value >> 32));
	TLB_STORE_RELEASE((uint32_t *)place + (TLB_BIG_ENDIAN ? 1 : 0), (uint32_t)value);
#endif
}

static inline struct tlb_shape tlw_shape(const struct tlw_connection *connection)
{
	struct tlb_shape shape = TLB_ZEROS;

	shape.kind = connection->kind;
	shape.depth = connection->depth;
	shape.message_bytes_max = connection->message_bytes_max;
	return shape;
}

/* Offset of the memory that a side writes for connection `index`; with `count` as index, the bytes of its region. */
static inline uint64_t tlw_offset(const struct tlw_connection *connections, uint32_t index, uint16_t side)
{
	uint64_t at = TLW_HEAD_BYTES;
	uint32_t i;

	for (i = 0; i < index; i++) {
		uint16_t producer = connections[i].direction == TLW_TO_GUEST ? TLW_SIDE_LINUX : TLW_SIDE_GUEST;

		at += producer == side ? tlb_producer_bytes(tlw_shape(&connections[i])) : tlb_consumer_bytes();
	}
	return at;
}

/* Reads the table of Linux's region into `window` and judges it. */
static inline enum tlb_result tlw_check(struct tlw_window *window, const void *memory, uint64_t bytes)
{
	const struct tlw_head *head = (const struct tlw_head *)memory;
	uint64_t linux_bytes;
	uint64_t both;
	uint32_t i;
	uint32_t j;

	if (bytes < TLW_HEAD_BYTES)
		return TLB_TOO_SMALL;
	if (tlw_load(&head->generation) == 0 || head->magic != TLW_MAGIC)
		return TLB_NOT_BUS;
	if (head->version != TLW_VERSION)
		return TLB_OTHER_VERSION;
	if (head->side != TLW_SIDE_LINUX)
		return TLB_OTHER_ROLE;
	window->count = head->connection_count;
	if (window->count == 0 || window->count > TLW_CONNECTIONS_MAX)
		return TLB_OTHER_SHAPE;
	for (i = 0; i < window->count; i++) {
		struct tlw_connection *one = &window->connections[i];

		TLB_COPY(one, &head->connections[i], sizeof(*one));
		if (tlb_check_shape(tlw_shape(one)) != TLB_OK || one->message_bytes_max <= TLW_ADDRESS_BYTES)
			return TLB_OTHER_SHAPE;
		if (one->direction != TLW_TO_GUEST && one->direction != TLW_TO_LINUX)
			return TLB_OTHER_SHAPE;
		for (j = 0; j < i; j++)
			if (window->connections[j].port == one->port && window->connections[j].direction == one->direction)
				return TLB_OTHER_SHAPE;
	}
	linux_bytes = tlw_offset(window->connections, window->count, TLW_SIDE_LINUX);
	both = linux_bytes + tlw_offset(window->connections, window->count, TLW_SIDE_GUEST);
	if (head->region_bytes != linux_bytes || head->window_bytes != both || both > TLW_WINDOW_BYTES_MAX)
		return TLB_OTHER_SHAPE;
	if (bytes < both)
		return TLB_TOO_SMALL;
	window->linux_side = head;
	return TLB_OK;
}

static inline void tlw_zero(void *memory, uint64_t bytes)
{
	volatile uint32_t *word = (volatile uint32_t *)memory;

	for (; bytes >= sizeof(*word); bytes -= sizeof(*word))
		*word++ = 0;
}

/* Joins the window that lies at `memory`, aligned to a page. Anything but TLB_OK: Linux is not there yet, or it is no
 * window of this version.
 */
static inline enum tlb_result tlw_join(struct tlw_window *window, void *memory, uint64_t bytes)
{
	enum tlb_result result = tlw_check(window, memory, bytes);
	struct tlw_head *own;
	uint64_t generation;
	uint32_t i;

	if (result != TLB_OK)
		return result;
	own = (struct tlw_head *)((uint8_t *)memory + tlw_offset(window->connections, window->count, TLW_SIDE_LINUX));
	/* Another one in each life: Linux's is new whenever the memory is, and in the same memory they count up. */
	generation = tlw_load(&window->linux_side->generation);
	if (own->magic == TLW_MAGIC && tlw_load(&own->peer_generation) == generation && tlw_load(&own->generation) != 0)
		generation = tlw_load(&own->generation) + 1;
	tlw_store(&own->generation, 0);
	own->magic = TLW_MAGIC;
	own->version = TLW_VERSION;
	own->side = TLW_SIDE_GUEST;
	own->region_bytes = tlw_offset(window->connections, window->count, TLW_SIDE_GUEST);
	own->window_bytes = window->linux_side->window_bytes;
	own->connection_count = window->count;
	own->silence_max_ms = 0;
	tlw_store(&own->peer_generation, tlw_load(&window->linux_side->generation));
	for (i = 0; i < window->count; i++) {
		uint8_t *mine = (uint8_t *)own + tlw_offset(window->connections, i, TLW_SIDE_GUEST);

		TLB_COPY(&own->connections[i], &window->connections[i], sizeof(window->connections[i]));
		/* An earlier life may have announced something here. */
		tlw_store(&((struct tlb_identity *)mine)->epoch, 0);
	}
	window->own = own;
	window->generation = generation;
	tlw_store(&own->generation, generation);
	return TLB_OK;
}

/* Tells Linux that the guest is alive. More often than the silence that Linux accepts. */
static inline void tlw_beat(struct tlw_window *window)
{
	TLB_STORE(&window->own->heartbeat, window->own->heartbeat + 1);
}

/* Silence that Linux accepts, in milliseconds; 0: any. */
static inline uint32_t tlw_silence_max_ms(const struct tlw_window *window)
{
	return window->linux_side->silence_max_ms;
}

static inline uint32_t tlw_find(const struct tlw_window *window, uint16_t port, uint16_t direction)
{
	uint32_t i;

	for (i = 0; i < window->count; i++)
		if (window->connections[i].port == port && window->connections[i].direction == direction)
			return i;
	return TLW_CONNECTIONS_MAX;
}

static inline uint8_t *tlw_own_memory(const struct tlw_window *window, uint32_t index)
{
	return (uint8_t *)window->own + tlw_offset(window->connections, index, TLW_SIDE_GUEST);
}

static inline const uint8_t *tlw_linux_memory(const struct tlw_window *window, uint32_t index)
{
	return (const uint8_t *)window->linux_side + tlw_offset(window->connections, index, TLW_SIDE_LINUX);
}

/* Opens a port of the guest that Linux has listed. False: it has not. */
static inline bool tlw_port_open(struct tlw_port *port, const struct tlw_window *window, uint16_t number)
{
	struct tlw_port fresh = TLB_ZEROS;

	fresh.window = window;
	fresh.in = tlw_find(window, number, TLW_TO_GUEST);
	fresh.out = tlw_find(window, number, TLW_TO_LINUX);
	*port = fresh;
	if (fresh.in != TLW_CONNECTIONS_MAX) {
		const struct tlw_connection *shape = &window->connections[fresh.in];
		uint8_t *memory = tlw_own_memory(window, fresh.in);
		struct tlb_identity identity = tlb_identity_of(tlw_shape(shape), TLB_ROLE_CONSUMER);

		tlw_zero(memory, tlb_consumer_bytes());
		identity.port = number;
		port->in_epoch = window->generation * TLW_CONNECTIONS_MAX + fresh.in + 1;
		tlw_store(&((struct tlb_connection *)(memory + TLB_FIRST_CONNECTION))->epoch, port->in_epoch);
		tlb_announce(memory, &identity, port->in_epoch);
	}
	return fresh.in != TLW_CONNECTIONS_MAX || fresh.out != TLW_CONNECTIONS_MAX;
}

/* Whether the other end of the receiving connection is there. */
static inline bool tlw_connect_in(struct tlw_port *port)
{
	const uint8_t *peer;
	struct tlb_shape shape;
	struct tlb_shape own;

	if (port->in_is_open || port->in == TLW_CONNECTIONS_MAX)
		return port->in_is_open;
	peer = tlw_linux_memory(port->window, port->in);
	own = tlw_shape(&port->window->connections[port->in]);
	if (tlw_load(&((const struct tlb_identity *)peer)->epoch) != port->in_epoch ||
	    tlb_check(peer, tlb_producer_bytes(own), TLB_ROLE_PRODUCER, &shape) != TLB_OK || shape.kind != own.kind ||
	    shape.message_bytes_max != own.message_bytes_max || tlb_depth(shape) != tlb_depth(own))
		return false;
	tlb_consumer_open(&port->consumer, tlw_own_memory(port->window, port->in), own, peer, 0);
	port->in_is_open = true;
	return true;
}

/* Whether the other end of the sending connection is there. */
static inline bool tlw_connect_out(struct tlw_port *port)
{
	const uint8_t *peer;
	uint8_t *memory;
	struct tlb_shape own;
	struct tlb_shape shape;
	struct tlb_identity identity;
	uint64_t offered;
	uint32_t class_index;
	uint32_t position;

	if (port->out_epoch != 0)
		return true;
	/* Until Linux has noted this life, what it offers is of the one before. */
	if (port->out == TLW_CONNECTIONS_MAX ||
	    tlw_load(&port->window->linux_side->peer_generation) != port->window->generation)
		return false;
	peer = tlw_linux_memory(port->window, port->out);
	own = tlw_shape(&port->window->connections[port->out]);
	offered = tlw_load(&((const struct tlb_identity *)peer)->epoch);
	if (offered == 0 || tlb_check(peer, tlb_consumer_bytes(), TLB_ROLE_CONSUMER, &shape) != TLB_OK ||
	    shape.kind != own.kind || shape.message_bytes_max != own.message_bytes_max)
		return false;
	memory = tlw_own_memory(port->window, port->out);
	tlw_zero(memory, TLB_FIRST_SLOT);
	tlb_producer_open(&port->producer, memory, own, peer, 0);
	for (class_index = 0; class_index < tlb_classes(own); class_index++)
		for (position = 0; position < tlb_depth(own); position++)
			TLB_STORE(&tlb_producer_slot(&port->producer, class_index, position)->turn, 0);
	identity = tlb_identity_of(own, TLB_ROLE_PRODUCER);
	identity.port = port->window->connections[port->out].port;
	tlb_announce(memory, &identity, offered);
	port->out_epoch = offered;
	return true;
}

/* Whether the port is open in all its directions. Receiving and sending see to that by themselves. */
static inline bool tlw_is_open(struct tlw_port *port)
{
	bool in = port->in == TLW_CONNECTIONS_MAX || tlw_connect_in(port);
	bool out = port->out == TLW_CONNECTIONS_MAX || tlw_connect_out(port);

	return in && out;
}

static inline bool tlw_strip(struct tlb_message *message, struct tlw_address *from)
{
	if (message->length < TLW_ADDRESS_BYTES)
		return false;
	TLB_COPY(from, message->payload, sizeof(*from));
	message->payload = (const uint8_t *)message->payload + TLW_ADDRESS_BYTES;
	message->length -= TLW_ADDRESS_BYTES;
	return true;
}

/* The most urgent message, which stays until tlw_release, and who sent it. False: there is none. */
static inline bool tlw_receive(struct tlw_port *port, struct tlb_message *message, struct tlw_address *from)
{
	(void)tlw_is_open(port);
	if (!port->in_is_open || !tlb_peek_most_urgent(&port->consumer, message))
		return false;
	if (tlw_strip(message, from))
		return true;
	tlb_release(&port->consumer, message->priority);
	return false;
}

/* Whether a message waits that is more urgent than this priority. A guest that copies a long message in pieces looks
 * between two of them.
 */
static inline bool tlw_has_more_urgent(const struct tlw_port *port, uint32_t priority)
{
	uint32_t above;

	if (!port->in_is_open)
		return false;
	for (above = TLB_CLASS_COUNT - 1; above > priority % TLB_CLASS_COUNT; above--)
		if (tlb_oldest(&port->consumer, above) != NULL)
			return true;
	return false;
}

/* Gives the place of a message back. */
static inline void tlw_release(struct tlw_port *port, const struct tlb_message *message)
{
	tlb_release(&port->consumer, message->priority);
}

/* The newest value of a sampling port, which stays as it is until the next call; value->fresh tells whether it is
 * new. False: there has never been one.
 */
static inline bool tlw_read(struct tlw_port *port, struct tlb_message *value, struct tlw_address *from)
{
	(void)tlw_is_open(port);
	return port->in_is_open && tlb_read(&port->consumer, value) && tlw_strip(value, from);
}

/* Address of a port of a node whose name Linux's table has. False: it has not. */
static inline bool tlw_find_peer(const struct tlw_window *window, const char *name, uint16_t number,
				 struct tlw_address *address)
{
	uint32_t i;
	uint32_t at;

	for (i = 0; i < TLW_PEERS_MAX; i++) {
		const struct tlw_peer *peer = &window->linux_side->peers[i];
		uint32_t turn = TLB_LOAD_ACQUIRE(&peer->turn);

		if (turn == 0 || (turn & 1) != 0)
			continue;
		for (at = 0; at < TLB_NAME_BYTES && name[at] != 0; at++)
			if (((const volatile uint8_t *)peer->name)[at] != (uint8_t)name[at])
				break;
		if (at == TLB_NAME_BYTES || name[at] != 0 || ((const volatile uint8_t *)peer->name)[at] != 0)
			continue;
		TLB_FENCE();
		if (TLB_LOAD(&peer->turn) != turn)
			continue;
		address->peer = (uint16_t)i;
		address->turn = (uint16_t)turn;
		address->port = number;
		return true;
	}
	return false;
}

/* Place of a message, or a value, of `length` bytes to a peer, behind its address, once Linux is there. NULL: too long,
 * or (counted) its priority is full.
 */
static inline void *tlw_place(struct tlw_port *port, struct tlw_address to, uint32_t priority, uint32_t length)
{
	uint32_t bytes = length + TLW_ADDRESS_BYTES;
	uint16_t address[4];
	uint8_t *payload;

	if (bytes < length || bytes > port->producer.shape.message_bytes_max)
		return NULL;
	if (port->producer.shape.kind == TLB_KIND_QUEUING)
		payload = (uint8_t *)tlb_borrow(&port->producer, priority);
	else
		payload = (uint8_t *)tlb_borrow_value(&port->producer);
	if (payload == NULL) {
		tlb_give_up(&port->producer, priority);
		return NULL;
	}
	address[0] = to.peer;
	address[1] = to.turn;
	address[2] = to.port;
	address[3] = 0;
	TLB_COPY(payload, address, sizeof(address));
	return payload + TLW_ADDRESS_BYTES;
}

/* Place of a message of `length` bytes to a peer, which the caller fills, and then tlw_publish. Meanwhile it can
 * receive and send messages of other priorities. NULL: Linux is not there, the port has values, it is too long, or
 * (counted) its priority is full. Not publishing it changes nothing.
 */
static inline void *tlw_borrow(struct tlw_port *port, struct tlw_address to, uint32_t priority, uint32_t length)
{
	if (!tlw_connect_out(port) || port->producer.shape.kind != TLB_KIND_QUEUING)
		return NULL;
	return tlw_place(port, to, priority, length);
}

/* Sends what was borrowed last of this priority, with that length or less. Then, as after tlw_send, ask tlw_wanted. */
static inline void tlw_publish(struct tlw_port *port, uint32_t priority, uint32_t length, uint64_t now_ns)
{
	tlb_publish(&port->producer, priority, length + TLW_ADDRESS_BYTES, port->sequence++, now_ns);
}

/* Sends a message to a peer, or makes it the newest value for it. `now_ns` is the time that Linux is to take for its
 * arrival; 0: when Linux sees it. False: Linux is not there, it is too long, or (counted) its priority is full. Then,
 * once for all that was sent from this port, ask tlw_wanted.
 */
static inline bool tlw_send(struct tlw_port *port, struct tlw_address to, uint32_t priority, const void *message,
			    uint32_t length, uint64_t now_ns)
{
	void *place;

	if (!tlw_connect_out(port))
		return false;
	place = tlw_place(port, to, priority, length);
	if (place == NULL)
		return false;
	TLB_COPY(place, message, length);
	if (port->producer.shape.kind == TLB_KIND_QUEUING) {
		tlw_publish(port, priority, length, now_ns);
	} else {
		tlb_publish_value(&port->producer, length + TLW_ADDRESS_BYTES, port->sequence++,
				  priority % TLB_CLASS_COUNT, now_ns);
		port->wakes |= tlb_wanted(&port->producer) != TLB_KICK_NONE;
	}
	return true;
}

/* After sending: whether Linux sleeps and its doorbell is to be rung. */
static inline bool tlw_wanted(struct tlw_port *port)
{
	bool wanted = port->wakes;

	port->wakes = false;
	if (port->out_epoch != 0 && tlb_wanted(&port->producer) != TLB_KICK_NONE)
		wanted = true;
	if (wanted)
		TLB_STORE(&port->window->own->doorbells, port->window->own->doorbells + 1);
	return wanted;
}

/* Announces that the guest will sleep until its doorbell rings. Then look at every port once more, and sleep only if
 * there is nothing; interrupts come in the way of the platform (WFI with interrupts masked, HLT after STI).
 */
static inline void tlw_arm(struct tlw_port *port)
{
	if (tlw_connect_in(port))
		tlb_arm(&port->sleeper, port->consumer.head, TLB_KICK_DESCRIPTOR);
}

/* The guest is awake. */
static inline void tlw_disarm(struct tlw_port *port)
{
	if (port->in_is_open)
		tlb_disarm(&port->sleeper, port->consumer.head);
}

#ifdef __cplusplus
}
#endif

#endif
