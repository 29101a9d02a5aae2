/* Talks to the Rust side through memory that it is given, for crates/tautline/tests/vbus_c.rs.
 *
 *   peer ROLE OWN_FD PEER_FD COUNT
 *
 * ROLE is `send`, `receive`, `write` or `read`; `wrap` writes values whose numbers begin 8 below 2^29. The memories are
 * inherited descriptors; connection 0 is used.
 * Messages and values are numbered from 1; what a payload holds follows from its number, so that both sides can check
 * it.
 */
#define _GNU_SOURCE
#include "tautline_vbus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EPOCH UINT64_C(0x1122334455667788)
/* Looks before a sleep; few, so that the tests sleep often. */
#define LOOKS 200

static void fail(const char *what)
{
	fprintf(stderr, "peer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static uint64_t bytes_of(int descriptor)
{
	struct stat status;

	if (fstat(descriptor, &status) != 0)
		fail("fstat");
	return (uint64_t)status.st_size;
}

static void *map(int descriptor, int protection)
{
	void *memory = mmap(NULL, (size_t)bytes_of(descriptor), protection, MAP_SHARED, descriptor, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

static uint32_t length_of(uint32_t number, uint32_t length_max)
{
	return number * 37 % (length_max + 1);
}

static uint32_t priority_of(uint32_t number)
{
	return number * 5 % TLB_CLASS_COUNT;
}

static void fill(uint8_t *payload, uint32_t number, uint32_t length)
{
	uint32_t place;

	for (place = 0; place < length; place++)
		payload[place] = (uint8_t)(number * 31 + place);
}

static void expect(const uint8_t *payload, uint32_t number, uint32_t length, uint32_t length_max)
{
	uint32_t place;

	if (length != length_of(number, length_max)) {
		fprintf(stderr, "peer: number %" PRIu32 " has %" PRIu32 " bytes\n", number, length);
		exit(1);
	}
	for (place = 0; place < length; place++)
		if (payload[place] != (uint8_t)(number * 31 + place)) {
			fprintf(stderr, "peer: number %" PRIu32 " is torn at %" PRIu32 "\n", number, place);
			exit(1);
		}
}

static void kick(struct tlb_producer *producer, enum tlb_kick manner)
{
	if (manner == TLB_KICK_FUTEX)
		syscall(SYS_futex, &producer->head->kick, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Sleeps while the producer has not kicked since `kicks`. */
static void sleep_until_kicked(const struct tlb_producer_head *producer, uint32_t kicks)
{
	struct timespec limit = {10, 0};

	if (syscall(SYS_futex, &producer->kick, FUTEX_WAIT, kicks, &limit, NULL, 0) != 0 && errno == ETIMEDOUT)
		fail("nobody kicks");
}

/* Sends them; after each thousand the receiver has the time to take all, and to sleep. */
static void send_messages(struct tlb_producer *producer, uint32_t count)
{
	const struct timespec pause = {0, 2000000};
	uint8_t *copy = malloc(producer->shape.message_bytes_max + 1);
	uint32_t number;

	if (copy == NULL)
		fail("malloc");
	for (number = 1; number <= count; number++) {
		uint32_t priority = priority_of(number);
		uint32_t length = length_of(number, producer->shape.message_bytes_max);

		if (number % 2 == 0) {
			/* Filled in place. */
			uint8_t *payload;

			while ((payload = tlb_borrow(producer, priority)) == NULL)
				;
			fill(payload, number, length);
			tlb_publish(producer, priority, length, number, now_ns());
		} else {
			fill(copy, number, length);
			while (!tlb_try_send(producer, priority, copy, length, number, now_ns()))
				;
		}
		kick(producer, tlb_wanted(producer));
		if (number % 1000 == 0)
			nanosleep(&pause, NULL);
	}
	free(copy);
}

static void receive_messages(struct tlb_consumer *consumer, uint32_t count)
{
	uint32_t last[TLB_CLASS_COUNT] = {0};
	struct tlb_sleeper sleeper = {0};
	struct tlb_message message;
	uint32_t looks = 0;
	uint32_t received = 0;

	while (received < count) {
		if (tlb_peek_most_urgent(consumer, &message)) {
			if (message.sequence <= last[message.priority] || priority_of(message.sequence) != message.priority)
				fail("out of order");
			last[message.priority] = message.sequence;
			expect(message.payload, message.sequence, message.length, consumer->shape.message_bytes_max);
			tlb_release(consumer, message.priority);
			received++;
			looks = 0;
		} else if (++looks > LOOKS) {
			uint32_t kicks;

			tlb_arm(&sleeper, consumer->head, TLB_KICK_FUTEX);
			kicks = tlb_kicks(consumer->producer);
			if (!tlb_peek_most_urgent(consumer, &message))
				sleep_until_kicked(consumer->producer, kicks);
			tlb_disarm(&sleeper, consumer->head);
			looks = 0;
		}
	}
	printf("corrupt %" PRIu64 "\n", consumer->connection->corrupt);
}

static void write_values(struct tlb_producer *producer, uint32_t count)
{
	uint32_t number;

	for (number = 1; number <= count; number++) {
		uint32_t length = length_of(number, producer->shape.message_bytes_max);

		fill(tlb_borrow_value(producer), number, length);
		tlb_publish_value(producer, length, number, 0, now_ns());
		kick(producer, tlb_wanted(producer));
	}
}

static void read_values(struct tlb_consumer *consumer, uint32_t count)
{
	struct tlb_message value;
	uint32_t last = 0;
	uint64_t overwritten = 0;

	while (last < count) {
		if (!tlb_read(consumer, &value))
			continue;
		if (value.sequence < last || value.fresh != (value.sequence > last))
			fail("an older value after a newer one");
		overwritten += value.overwritten;
		last = value.sequence;
		expect(value.payload, value.sequence, value.length, consumer->shape.message_bytes_max);
	}
	printf("overwritten %" PRIu64 "\n", overwritten);
}

/* Numbers before the first value of `wrap`. */
#define WRAP_BEFORE 0x1ffffff8u

static void produce(const char *role, int own_fd, int peer_fd, uint32_t count)
{
	struct tlb_producer producer;
	struct tlb_identity identity;
	struct tlb_shape shape;
	void *own = map(own_fd, PROT_READ | PROT_WRITE);
	const void *peer = map(peer_fd, PROT_READ);

	if (tlb_check(peer, bytes_of(peer_fd), TLB_ROLE_CONSUMER, &shape) != TLB_OK)
		fail("the consumer's memory");
	if (tlb_producer_bytes(shape) > bytes_of(own_fd))
		fail("too little memory of our own");
	identity = tlb_identity_of(shape, TLB_ROLE_PRODUCER);
	identity.process = (uint32_t)getpid();
	memcpy(identity.node, "c", 1);
	tlb_producer_open(&producer, own, shape, peer, 0);
	tlb_announce(own, &identity, EPOCH);
	if (strcmp(role, "wrap") == 0) {
		producer.number = WRAP_BEFORE;
		producer.latest = WRAP_BEFORE << 3;
	}
	if (strcmp(role, "send") == 0)
		send_messages(&producer, count);
	else
		write_values(&producer, count);
}

static void consume(bool values, int own_fd, int peer_fd, uint32_t count)
{
	struct tlb_consumer consumer;
	struct tlb_shape shape;
	void *own = map(own_fd, PROT_READ | PROT_WRITE);
	const void *peer = map(peer_fd, PROT_READ);

	if (tlb_check(peer, bytes_of(peer_fd), TLB_ROLE_PRODUCER, &shape) != TLB_OK)
		fail("the producer's memory");
	tlb_consumer_open(&consumer, own, shape, peer, 0);
	if (values)
		read_values(&consumer, count);
	else
		receive_messages(&consumer, count);
}

int main(int count, char **arguments)
{
	const char *role = count == 5 ? arguments[1] : "";
	int own = count == 5 ? atoi(arguments[2]) : -1;
	int peer = count == 5 ? atoi(arguments[3]) : -1;
	uint32_t messages = count == 5 ? (uint32_t)strtoul(arguments[4], NULL, 10) : 0;

	if (strcmp(role, "send") == 0 || strcmp(role, "write") == 0 || strcmp(role, "wrap") == 0)
		produce(role, own, peer, messages);
	else if (strcmp(role, "receive") == 0 || strcmp(role, "read") == 0)
		consume(strcmp(role, "read") == 0, own, peer, messages);
	else {
		fprintf(stderr, "usage: peer send|receive|write|read|wrap OWN_FD PEER_FD COUNT\n");
		return 2;
	}
	return 0;
}
