// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Sending for the clients of a control process. A client writes whole frames to a tap of its port; this program runs on
 * each of them, lets through what the port may send and hands it to the driver of the node's interface, past the
 * queueing discipline. The tap lies in a network namespace that holds nothing else, so a frame has no other way.
 *
 * Checked: the sender's MAC and IPv4 address, its port, the priority in our header, in a tag and in the type of
 * service, the time to live, and that later fragments of plain UDP belong to the datagram that was begun last; of a raw
 * frame its EtherType, its tag, and its source address unless the permit is for any. Not checked: to whom a frame goes,
 * because no policy says that, and what receivers check themselves (lengths and sums).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "tautline.h"
#include "tap.bpf.h"

#define IP_WITHOUT_OPTIONS 0x45
#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define TPID_8021Q 0x8100
#define VLAN_WITHOUT_PRIORITY 0x1fff /* identifier, and eligible to be dropped */
#define VLAN_IDENTIFIER 0x0fff
#define VLAN_PRIORITY_SHIFT 13
#define TIME_TO_LIVE_MAX 64 /* what tautline_proto::ip sends with */

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile struct tl_config config = {};

/* By the place of the port, as in the demux's map of ports. Place 0 belongs to no port; its `reserved` is the demux. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TL_PLACES);
	__type(key, __u32);
	__type(value, struct tl_sender);
} senders SEC(".maps");

/* The node's interface. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} way_out SEC(".maps");

static __always_inline bool may_use(const struct tl_sender *sender, __u32 priority)
{
	return priority <= TL_PRIORITY_MAX && sender->priorities >> priority & 1;
}

static __always_inline bool is_from_us(const __u8 mac[6])
{
	return mac[0] == config.mac[0] && mac[1] == config.mac[1] && mac[2] == config.mac[2] &&
	       mac[3] == config.mac[3] && mac[4] == config.mac[4] && mac[5] == config.mac[5];
}

static __always_inline bool is_header_allowed(const struct tl_sender *sender, const void *at,
					      const void *data_end)
{
	const struct tl_header *header = at;

	return (const void *)(header + 1) <= data_end && header->version == TL_VERSION &&
	       header->source_port == sender->port && may_use(sender, header->priority);
}

/* Whether a receiver may take a datagram of plain UDP for a message of some port, with the priority that stands in
 * it. The header of a fragmented datagram can lie in a later fragment. */
static __always_inline bool may_pass_for_ours(const struct udphdr *udp, bool is_fragment,
					      const void *data_end)
{
	const struct tl_header *header = (const void *)(udp + 1);
	__u32 to = bpf_ntohs(udp->dest);

	if (to <= TL_UDP_PORT_BASE || to > TL_UDP_PORT_BASE + TL_PORT_MAX)
		return false;
	if ((const void *)(header + 1) > data_end)
		return is_fragment;
	return header->version == TL_VERSION;
}

/* RFC 768, of a whole datagram or the first fragment of one. */
static __always_inline bool is_udp_allowed(const struct tl_sender *sender, const struct udphdr *udp,
					   bool is_fragment, const void *data_end)
{
	__u32 to;

	if ((const void *)(udp + 1) > data_end)
		return false;
	if (sender->form == TL_SEND_DATAGRAMS)
		return udp->source == sender->port && !may_pass_for_ours(udp, is_fragment, data_end);
	to = bpf_ntohs(udp->dest);
	return udp->source == bpf_htons(TL_UDP_PORT_BASE + bpf_ntohs(sender->port)) &&
	       to > TL_UDP_PORT_BASE && to <= TL_UDP_PORT_BASE + TL_PORT_MAX &&
	       is_header_allowed(sender, udp + 1, data_end);
}

/* RFC 791. One thread sends at a time; what two do to the flow at once harms their own datagrams. */
static __always_inline bool is_fragment_allowed(struct tl_sender *sender, const struct iphdr *ip,
						__u16 fragment, const void *data_end)
{
	if (sender->form != TL_SEND_DATAGRAMS)
		return false;
	if (fragment & IP_FRAGMENT_OFFSET)
		return sender->flow_begun && sender->flow_identification == ip->id &&
		       sender->flow_destination == ip->daddr;
	if (!is_udp_allowed(sender, (const void *)(ip + 1), true, data_end))
		return false;
	sender->flow_identification = ip->id;
	sender->flow_destination = ip->daddr;
	sender->flow_begun = 1;
	return true;
}

static __always_inline bool is_packet_allowed(struct tl_sender *sender, const struct iphdr *ip,
					      const void *data_end)
{
	__u16 fragment;

	if ((const void *)(ip + 1) > data_end || *(const __u8 *)ip != IP_WITHOUT_OPTIONS ||
	    ip->protocol != IPPROTO_UDP || ip->saddr != config.ip || !config.ip ||
	    ip->ttl > TIME_TO_LIVE_MAX)
		return false;
	/* Our own header says the priority; most of what carries it has a type of service of zero. */
	if (!(ip->tos == 0 && sender->form == TL_SEND_PORT) && !may_use(sender, ip->tos >> 5))
		return false;
	fragment = bpf_ntohs(ip->frag_off) & (IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET);
	if (fragment)
		return is_fragment_allowed(sender, ip, fragment, data_end);
	return is_udp_allowed(sender, (const void *)(ip + 1), false, data_end);
}

/* Our form with a tag: the node's VLAN, not eligible to be dropped, and a priority that the port may use. */
static __always_inline bool is_tagged_allowed(const struct tl_sender *sender,
					      const struct ethhdr *ethernet, const void *data_end)
{
	const __be16 *tag = (const void *)(ethernet + 1);
	__u32 control;

	if ((const void *)(tag + 2) > data_end || sender->form != TL_SEND_PORT)
		return false;
	control = bpf_ntohs(tag[0]);
	return (control & VLAN_WITHOUT_PRIORITY) == bpf_ntohs(config.vlan) &&
	       may_use(sender, control >> VLAN_PRIORITY_SHIFT) &&
	       tag[1] == config.ethertype && is_header_allowed(sender, tag + 2, data_end);
}

/* A frame of the permit's EtherType, directly or behind a tag of no VLAN, as tautline_proto::wire::raw reads it.
 * Without a tag it has the lowest priority, as for those who receive it.
 */
static __always_inline bool is_raw_allowed(const struct tl_sender *sender,
					   const struct ethhdr *ethernet, const void *data_end)
{
	const __be16 *tag = (const void *)(ethernet + 1);
	__u32 control = 0;
	__be16 type = ethernet->h_proto;

	if (sender->form == TL_SEND_RAW && !is_from_us(ethernet->h_source))
		return false;
	if (type == bpf_htons(TPID_8021Q)) {
		if ((const void *)(tag + 2) > data_end)
			return false;
		control = bpf_ntohs(tag[0]);
		type = tag[1];
	}
	return type == sender->port && !(control & VLAN_IDENTIFIER) &&
	       may_use(sender, control >> VLAN_PRIORITY_SHIFT);
}

static __always_inline bool is_frame_allowed(struct tl_sender *sender, void *data, void *data_end)
{
	struct ethhdr *ethernet = data;

	if ((void *)(ethernet + 1) > data_end)
		return false;
	if (sender->form >= TL_SEND_RAW)
		return is_raw_allowed(sender, ethernet, data_end);
	if (!is_from_us(ethernet->h_source))
		return false;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return is_packet_allowed(sender, (void *)(ethernet + 1), data_end);
	if (ethernet->h_proto == bpf_htons(TPID_8021Q))
		return is_tagged_allowed(sender, ethernet, data_end);
	return ethernet->h_proto == config.ethertype && !config.vlan && sender->form == TL_SEND_PORT &&
	       is_header_allowed(sender, ethernet + 1, data_end);
}

SEC("xdp")
int tautline_send(struct xdp_md *ctx)
{
	__u32 place = ctx->ingress_ifindex - TL_SENDER_INTERFACE;
	struct tl_sender *sender = bpf_map_lookup_elem(&senders, &place);

	if (!sender)
		return XDP_DROP;
	if (is_frame_allowed(sender, (void *)(long)ctx->data, (void *)(long)ctx->data_end)) {
		copy_if_wanted(ctx, TL_TAP_SENT);
		return bpf_redirect_map(&way_out, 0, XDP_DROP);
	}
	__sync_fetch_and_add(&sender->refused, 1);
	return XDP_DROP;
}
