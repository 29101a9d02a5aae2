// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Beside a socket: while a thread looks, the next datagram for its socket goes into mapped memory; every other one, and
 * all of them while nobody looks, go on to the socket as ever. For `taut exec`, at traffic control (tcx), beside and
 * behind whatever else is attached there.
 *
 * The kernel says which socket a datagram is for; the socket's storage has the key of its place. So connected sockets,
 * sockets that share a port and copies of descriptors are what they are to the kernel.
 *
 * A place changes hands by its state: the thread sets IDLE to LOOKING, this program LOOKING to FILLING and then FULL,
 * the thread FULL to IDLE. A thread that gives up sets LOOKING back to IDLE, and if it cannot, a datagram is there or
 * on its way. So a datagram is in the place or goes to the socket, never both and never neither. The thread's side and
 * the order of datagrams: crates/tautline-awake-preload/src/look.rs.
 */
#define TL_AT_TRAFFIC_CONTROL
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include "load.bpf.h"
#include "tautline.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Address of the interface, and the broadcast address of its network. */
const volatile struct {
	__be32 address;
	__be32 broadcast;
} network = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TL_LOOK_PLACES);
	__type(key, __u32);
	__type(value, struct tl_look);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tl_look_ports);
} place_of_port SEC(".maps");

/* Key of a socket's place: a place that has changed its owner has another one. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} sockets SEC(".maps");

struct headers {
	struct iphdr ip;
	struct udphdr udp;
};

/* A source that Linux's routing takes: not nowhere, loopback, a group, a broadcast address, or this host. Loopback
 * itself has been routed already.
 */
static __always_inline bool is_possible_source(const struct __sk_buff *ctx, __be32 source)
{
	__u32 first = bpf_ntohl(source) >> 24;

	return ctx->ifindex == 1 || (first != 0 && first != 127 && first < 224 && source != network.address &&
				     source != network.broadcast);
}

/* A whole, undamaged datagram to this host, without IP options. What is not stays Linux's, which counts it. */
static __always_inline bool is_plain(const struct __sk_buff *ctx, struct headers *headers)
{
	struct iphdr *ip = &headers->ip;
	__u32 packet_bytes = bpf_ntohs(ip->tot_len), udp_bytes = bpf_ntohs(headers->udp.len);
	__s64 sum;

	if (*(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff) || ip->ttl == 0 ||
	    ip->daddr != network.address || !is_possible_source(ctx, ip->saddr))
		return false;
	if (udp_bytes < sizeof(headers->udp) || udp_bytes + sizeof(*ip) > packet_bytes ||
	    packet_bytes + sizeof(struct ethhdr) > ctx->len)
		return false;
	sum = bpf_csum_diff(NULL, 0, (void *)ip, sizeof(*ip), 0);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* Whether the place is that of the socket which Linux would hand the datagram to. */
static __always_inline bool is_of_socket(struct __sk_buff *ctx, const struct headers *headers, __u64 key)
{
	struct bpf_sock_tuple tuple = {
		.ipv4 = {
			.saddr = headers->ip.saddr,
			.daddr = headers->ip.daddr,
			.sport = headers->udp.source,
			.dport = headers->udp.dest,
		},
	};
	struct bpf_sock *socket =
		bpf_sk_lookup_udp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	bool is_same = false;
	__u64 *stored;

	if (!socket)
		return false;
	stored = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	if (stored)
		is_same = *stored == key && key;
	bpf_sk_release(socket);
	return is_same;
}

static __always_inline bool fill(struct __sk_buff *ctx, struct tl_look *place, const struct headers *headers,
				 __u32 length)
{
	place->arrival_ns = bpf_ktime_get_ns();
	place->source = headers->ip.saddr;
	place->destination = headers->ip.daddr;
	place->source_port = headers->udp.source;
	place->destination_port = headers->udp.dest;
	place->checksum = headers->udp.check;
	place->length = length;
	return length == 0 || load_bytes(ctx, sizeof(struct ethhdr) + sizeof(*headers), place->payload, length,
					 TL_LOOK_PAYLOAD_BYTES);
}

static __always_inline int pass(struct tl_look *place)
{
	*(volatile __u64 *)&place->passed_ns = bpf_ktime_get_ns();
	return TL_PASS;
}

SEC("classifier")
int tautline_look(struct __sk_buff *ctx)
{
	const struct tl_look_ports *ports;
	struct headers headers;
	struct tl_look *place;
	__u32 zero = 0, number, port, length;

	if (ctx->protocol != bpf_htons(ETH_P_IP) || ctx->pkt_type != PACKET_HOST || ctx->vlan_present ||
	    ctx->gso_segs > 1)
		return TL_PASS;
	if (bpf_skb_load_bytes(ctx, sizeof(struct ethhdr), &headers, sizeof(headers)))
		return TL_PASS;
	ports = bpf_map_lookup_elem(&place_of_port, &zero);
	if (!ports || headers.ip.protocol != IPPROTO_UDP)
		return TL_PASS;
	port = bpf_ntohs(headers.udp.dest);
	asm volatile("%0 &= 0xffff" : "+r"(port));
	number = ports->place[port];
	if (!number)
		return TL_PASS;
	place = bpf_map_lookup_elem(&places, &number);
	if (!place)
		return TL_PASS;
	length = bpf_ntohs(headers.udp.len) - sizeof(headers.udp);
	if (*(volatile __u32 *)&place->state != TL_LOOK_LOOKING || length > TL_LOOK_PAYLOAD_BYTES ||
	    !is_plain(ctx, &headers) || !is_of_socket(ctx, &headers, place->key))
		return pass(place);
	if (__sync_val_compare_and_swap(&place->state, TL_LOOK_LOOKING, TL_LOOK_FILLING) != TL_LOOK_LOOKING)
		return pass(place);
	if (!fill(ctx, place, &headers, length)) {
		__sync_lock_test_and_set(&place->state, TL_LOOK_LOOKING);
		return pass(place);
	}
	__sync_lock_test_and_set(&place->state, TL_LOOK_FULL);
	return TL_TAKEN;
}
