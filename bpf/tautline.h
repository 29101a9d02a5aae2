/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The memory of a port and the wire header, as the kernel side sees them. This is the other half of
 * crates/tautline-shm/src/layout.rs; sizes and offsets are asserted there, below, and in a test that
 * compares the constants. Nothing here is code.
 */
#ifndef TAUTLINE_H
#define TAUTLINE_H

/* Wire header, docs/reference/wire.md. */
#define TL_ETHERTYPE_DEFAULT 0x88b5
#define TL_HEADER_BYTES 16
#define TL_VERSION 1
#define TL_FLAGS_CRITICAL 0x0f
#define TL_FLAG_BUNDLE 0x01
#define TL_FLAG_AUTHENTICATED 0x02
#define TL_TRAILER_BYTES 36
#define TL_PORT_MAX 4095
#define TL_PRIORITY_MAX 7
#define TL_FRAGMENT_BYTES 1408
#define TL_FRAGMENT_COUNT_MAX 47
#define TL_MESSAGE_BYTES_MAX 65536
#define TL_WHOLE_BYTES_MAX 1484
#define TL_UDP_PORT_BASE 21569

struct tl_header {
	__be16 destination_port;
	__be16 length;
	__u8 priority;
	__u8 flags;
	__u8 version;
	__u8 fragment_index;
	__be16 source_port;
	__u8 fragment_count;
	__u8 type_byte;
	__be32 sequence;
};

/* Port memory. */
#define TL_SLOT_BYTES 1536
#define TL_SLOT_PAYLOAD_BYTES 1496
#define TL_FIRST_PEER 1
#define TL_PEERS_PER_ELEMENT 24
#define TL_FIRST_SLOT 3
#define TL_CLASS_COUNT 8
#define TL_CELL_COUNT 3
#define TL_PEER_COUNT 48
#define TL_PEER_SEARCH_MAX 8
#define TL_LOSS_WINDOW 64
#define TL_RESTART_BEHIND 1024
#define TL_MAGIC 0x544c5031
#define TL_LAYOUT_VERSION 3
#define TL_KIND_QUEUING 1
#define TL_KIND_SAMPLING 2
#define TL_SOURCE_VOID 0
#define TL_SOURCE_ETHERNET 1
#define TL_SOURCE_UDP 2
#define TL_SOURCE_DATAGRAM 3
#define TL_SOURCE_RAW 4
#define TL_CLAIM_ATTEMPTS 8
#define TL_SAMPLE_FRESH 0x80
#define TL_SAMPLE_INDEX 0x03
#define TL_UDP_PLACES 256
#define TL_RAW_PLACES 8
/* Places of ports: Tautline ports by their number, then those of plain UDP, then raw ones. */
#define TL_FIRST_RAW_PLACE (TL_PORT_MAX + 1 + TL_UDP_PLACES)
#define TL_PLACES (TL_FIRST_RAW_PLACE + TL_RAW_PLACES)

/* Fragments of plain UDP. Time that a datagram may take from its first fragment to its last; the reader's
 * limit too. Sets of flows, and flows in a set: a peer's datagrams share one set with few other peers'.
 */
#define TL_FRAGMENT_NS 500000000ULL
#define TL_FLOW_SETS 256
#define TL_FLOW_WAYS 16
#define TL_FLAG_VERIFIED 0x01

/* Head of a datagram of plain UDP, in the header's place: tautline_proto::ip::DatagramHead. */
struct tl_udp_head {
	__be16 destination_port;
	__be16 length;
	__u8 priority;
	__u8 flags;
	__be16 checksum;
	__be16 fragment;
	__be16 identification;
	__be32 reserved;
};

/* Head of a raw frame, in the header's place: tautline_proto::wire::raw::RawHead. Its first fields are those of
 * tl_udp_head. The frame's payload begins behind it, so that 1,500 bytes fit a slot.
 */
#define TL_RAW_HEAD_BYTES 12
#define TL_RAW_PAYLOAD_BYTES 1500

struct tl_raw_head {
	__be16 type;
	__be16 length;
	__u8 priority;
	__u8 flags;
	__u8 destination[6];
};

struct tl_slot {
	__u64 turn;
	__u64 arrival_ns;
	__u64 source;
	struct tl_header header;
	__u8 payload[TL_SLOT_PAYLOAD_BYTES];
};

#define TL_LINE __attribute__((aligned(64)))

struct tl_class {
	__u64 head;
	__u64 dropped_full;
} TL_LINE;

struct tl_control {
	struct {
		__u32 magic;
		__u16 version;
		__u16 kind;
		__u32 depth;
		__u32 port;
		__u32 sources;
		__u64 police_interval_ns;
		__u64 police_tolerance_ns;
	} TL_LINE identity;
	struct {
		__u32 waiting;
	} TL_LINE consumer;
	struct {
		__u64 contended;
		__u64 unfit;
		__u64 peers_evicted;
		__u64 doorbells;
		__u64 sources_refused;
	} TL_LINE producer;
	struct {
		__u64 paid_ns;
		__u64 policed;
	} TL_LINE police;
	__u32 middle[TL_PEER_COUNT] TL_LINE;
	struct tl_class class[TL_CLASS_COUNT];
	__u64 taken[TL_CLASS_COUNT] TL_LINE;
	__u64 key[TL_PEER_COUNT] TL_LINE;
	__u8 rest[TL_SLOT_BYTES - 64 * (4 + TL_PEER_COUNT / 16 + TL_CLASS_COUNT + 1 + TL_PEER_COUNT / 8)];
};

struct tl_peer {
	__u64 written;
	__u64 received;
	__u64 expected;
	__u64 window;
	__u64 duplicates;
	__u32 highest;
	__u32 span;
	__u32 restarts;
	__u32 back;
	__u32 lock;
} TL_LINE;

struct tl_peer_element {
	struct tl_peer peer[TL_PEERS_PER_ELEMENT];
};

_Static_assert(sizeof(struct tl_header) == TL_HEADER_BYTES, "wire header");
_Static_assert(sizeof(struct tl_udp_head) == TL_HEADER_BYTES, "head of a datagram");
_Static_assert(sizeof(struct tl_raw_head) == TL_RAW_HEAD_BYTES, "head of a raw frame");
_Static_assert(__builtin_offsetof(struct tl_raw_head, priority) ==
		       __builtin_offsetof(struct tl_udp_head, priority),
	       "fields that both heads have");
_Static_assert(TL_RAW_HEAD_BYTES + TL_RAW_PAYLOAD_BYTES == TL_HEADER_BYTES + TL_SLOT_PAYLOAD_BYTES,
	       "payload of a raw frame");
_Static_assert(sizeof(struct tl_slot) == TL_SLOT_BYTES, "slot");
_Static_assert(sizeof(struct tl_control) == TL_SLOT_BYTES, "control element");
_Static_assert(__builtin_offsetof(struct tl_control, middle) == 256, "middle words");
_Static_assert(__builtin_offsetof(struct tl_control, class) == 448, "classes");
_Static_assert(__builtin_offsetof(struct tl_control, taken) == 960, "taken");
_Static_assert(__builtin_offsetof(struct tl_control, key) == 1024, "keys");
_Static_assert(sizeof(struct tl_peer_element) == TL_SLOT_BYTES, "peers");
_Static_assert(TL_FIRST_PEER + (TL_PEER_COUNT + TL_PEERS_PER_ELEMENT - 1) / TL_PEERS_PER_ELEMENT ==
		       TL_FIRST_SLOT,
	       "elements of peers");

/* Counters of the whole node: what was ours and reached no port. Indices into `node_counters`.
 * The first ones are tautline_proto::wire::ParseError, in its order.
 */
enum tl_node_counter {
	TL_TRUNCATED,
	TL_UNKNOWN_VERSION,
	TL_UNKNOWN_FLAGS,
	TL_INVALID_PORT,
	TL_INVALID_PRIORITY,
	TL_LENGTH_BEYOND_FRAME,
	TL_INVALID_FRAGMENT,
	TL_PORT_MISMATCH,
	TL_BAD_CHECKSUM,
	TL_INVALID_SOURCE,
	TL_NO_PORT,
	TL_OUT_OF_ORDER_FRAGMENT,
	TL_JOINED_DATAGRAMS,
	TL_NODE_COUNTERS,
};

/* Settings of the demux, written once before it is loaded. */
struct tl_config {
	__u8 mac[6];
	__be16 ethertype;
	__be32 ip; /* 0: neither the UDP form nor plain UDP is ours */
	/* Not 0: a control process's, which its successor may take over.
	 * One more than the number of its user: a process of another user would not see the claims of its clients.
	 */
	__u32 shared;
	__be32 broadcast;
	__be16 vlan; /* identifier of the VLAN of the Ethernet form; 0: none. The UDP form is in none. */
	/* 1: the program of link `xsk` runs in generic mode, on packet buffers, which may hold several datagrams. */
	__u8 generic;
	/* 1: native mode on a veth whose driver tells the packet buffer of a frame, which may have the frame's tag. */
	__u8 veth;
};

/* Permit of one tap of a control process, in the place of its port (bpf/send.bpf.c). All zero: nothing may be sent.
 * The flow is that of the first fragment sent last, which the fragments after it must have.
 */
#define TL_SENDER_INTERFACE 0x10000 /* index of the tap in place 0 */
#define TL_SEND_PORT 1              /* our frames, from Tautline port `port` */
#define TL_SEND_DATAGRAMS 2         /* plain UDP, from UDP port `port` */
#define TL_SEND_RAW 3               /* raw frames of the EtherType `port`, from this station's address */
#define TL_SEND_RAW_OF_ANY 4        /* the same with any source address */

struct tl_sender {
	__u8 form;
	__u8 priorities; /* a bit for each */
	__be16 port;
	__be16 flow_identification;
	__u16 flow_begun;
	__be32 flow_destination;
	__u32 reserved;
	__u64 refused; /* frames that were not sent */
};

/* Owner of the fragments of a datagram. `key`: source address and identification; 0: empty, 1: being
 * written. `state`: arrival of the first fragment in ns, its lower 16 bits the port's place; 0: Linux's.
 */
struct tl_flow {
	__u64 key;
	__u64 state;
};

struct tl_flow_set {
	struct tl_flow flow[TL_FLOW_WAYS];
};

/* Note that the program of link `xsk` writes before a frame for the process. `fragment`: for a fragment of plain UDP,
 * the place of its port; otherwise 0.
 */
struct tl_note {
	__u64 arrival_ns;
	__u64 fragment;
};

_Static_assert(sizeof(struct tl_note) == 16, "note before a frame");

/* Ring of copies of frames: slots, and the bytes that each keeps of a frame, which are enough for every frame of ours
 * with a tag. Lower: a reader that looks every half millisecond loses frames below two million a second. Higher: more
 * locked memory for each demux, 1.5 MiB now. The first element of the array is no slot but the control.
 */
#define TL_TAP_SLOTS 1024
#define TL_TAP_BYTES 1528
#define TL_TAP_BUSY 0x8000000000000000ULL
#define TL_TAP_RECEIVED 1
#define TL_TAP_SENT 2

/* `turn`: position + 1 of the frame that is in it, or TL_TAP_BUSY. */
struct tl_tap_slot {
	__u64 turn;
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 length;  /* of the frame */
	__u16 kept;    /* bytes of it */
	__u16 way;
	__u8 bytes[TL_TAP_BYTES];
};

/* `until_ns`: frames are copied up to then; 0: nobody captures. `head`: frames so far. */
struct tl_tap_control {
	__u64 until_ns TL_LINE;
	__u64 head TL_LINE;
};

_Static_assert(sizeof(struct tl_tap_slot) == 1552, "slot of a copy");
_Static_assert(__builtin_offsetof(struct tl_tap_control, head) == 64, "head of the ring of copies");

/* A place in which a datagram waits for a thread that looks, beside its socket (bpf/look.bpf.c). A place belongs to one
 * socket of one process; number 0 is none. Lower: a program with more sockets has some that are the kernel's alone.
 * Higher: 2 KiB of locked memory each.
 */
#define TL_LOOK_PLACES 64
#define TL_LOOK_PAYLOAD_BYTES 2000
#define TL_LOOK_IDLE 0	  /* nobody looks */
#define TL_LOOK_LOOKING 1 /* the next datagram goes here */
#define TL_LOOK_FILLING 2
#define TL_LOOK_FULL 3
#define TL_LOOK_TAKING 4

struct tl_look {
	__u32 state;
	__u32 owner;	 /* process; 0: free */
	__u64 passed_ns; /* when the last datagram went on to the socket, CLOCK_MONOTONIC */
	__u64 arrival_ns;
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	__be16 checksum;
	__u16 length; /* of the payload */
	__u8 payload[TL_LOOK_PAYLOAD_BYTES];
	__u64 key; /* that the storage of its socket has; 0: none */
};

/* UDP port to the number of a place; 0: none. */
struct tl_look_ports {
	__u8 place[65536];
};

_Static_assert(sizeof(struct tl_look) == 2048, "place beside a socket");

/* EtherTypes of raw ports, each at its place among them; 0: free. */
struct tl_raw_table {
	__be16 type[TL_RAW_PLACES];
};

/* Which UDP ports are this node's, for plain UDP. */
struct tl_udp_table {
	__u64 open; /* how many */
	__u16 place[65536];
};

#endif
