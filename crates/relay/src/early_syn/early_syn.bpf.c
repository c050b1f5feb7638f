// SPDX-License-Identifier: GPL-2.0-only
/*
 * Early SYN: tells the relay of a client's SYN when it arrives, a round trip
 * before accept() can (pied-piper 3.2, improvement 1).
 *
 * It runs at the ingress of a device, before the kernel's own TCP. It changes
 * no packet and drops none: whatever it finds, the packet goes on to whoever
 * comes next. All that it does is to write an event, and that is bounded by a
 * ceiling on events per second and by the ring's size.
 *
 * Headers are found from the network header that the kernel has noted, not
 * from the start of the frame. So one program fits Ethernet and devices
 * without a link header (tun, ppp, ipip). The outer VLAN tag is not in the
 * frame any more when programs at ingress see it; others still are.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>

#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "early_syn.h"

/* The kernel's headers for programs do not have these. */
#define AF_INET		2
#define AF_INET6	10
#define IP_MF_OFFSET	0x3fff	/* more fragments, and a fragment's offset */
#define VLAN_HLEN	4

#define TAGS_MAX	2
#define EXTENSIONS_MAX	6	/* of IPv6; senders of TCP use none or one */
#define HEADERS_MAX	512	/* what is made linear at most, in bytes */
#define RING_BYTES	(256 * 1024)
#define WATCHED_MAX	256
#define SECOND_NS	1000000000ULL

/* Events of one second, at most, from all devices and CPUs. */
const volatile __u32 events_per_second SEC(".rodata.config") = 20000;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WATCHED_MAX);
	__type(key, struct early_syn_watch);
	__type(value, __u32);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EARLY_SYN_EXITS);
	__type(key, __u32);
	__type(value, __u64);
} exits SEC(".maps");

/* The second that is being counted, and the events that were let through in
 * it. Shared by all CPUs, which a ceiling for the machine has to be.
 */
static __u64 second;
static __u64 in_second;

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* The start of each IPv6 extension header that may stand before TCP. */
struct extension {
	__u8 next;
	__u8 len;		/* in 8 bytes, without the first 8 */
	__u8 type;
	__u8 segments_left;	/* of a routing header */
};

/* Where the TCP header is, and what is known when it is reached. */
struct found {
	struct early_syn_watch to;
	__u8 from[16];
	__u32 offset;		/* of TCP, from the network header */
};

/* Copies @len bytes at @offset from the network header. */
static __always_inline int load(struct __sk_buff *skb, __u32 offset, void *to,
				__u32 len)
{
	__u32 linear;

	if (!bpf_skb_load_bytes_relative(skb, offset, to, len,
					 BPF_HDR_START_NET))
		return 0;
	/* A driver may leave headers in page fragments, where this function
	 * does not look. A packet that is all linear is simply too short.
	 */
	linear = (void *)(long)skb->data_end - (void *)(long)skb->data;
	if (linear >= skb->len || linear >= HEADERS_MAX)
		return -1;
	if (bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len
							  : HEADERS_MAX))
		return -1;
	return bpf_skb_load_bytes_relative(skb, offset, to, len,
					   BPF_HDR_START_NET);
}

/* Each of these returns EARLY_SYN_EMITTED for "go on", or the exit. */

static __always_inline enum early_syn_exit
find_ipv4(struct __sk_buff *skb, __u32 offset, struct found *found)
{
	struct iphdr ip;

	if (load(skb, offset, &ip, sizeof(ip)) || ip.version != 4 ||
	    ip.ihl < 5)
		return EARLY_SYN_MALFORMED;
	if (ip.protocol != IPPROTO_TCP)
		return EARLY_SYN_NOT_TCP;
	if (ip.frag_off & bpf_htons(IP_MF_OFFSET))
		return EARLY_SYN_FRAGMENT;
	found->to.version = 4;
	__builtin_memcpy(found->to.addr, &ip.daddr, sizeof(ip.daddr));
	__builtin_memcpy(found->from, &ip.saddr, sizeof(ip.saddr));
	found->offset = offset + ip.ihl * 4;
	return EARLY_SYN_EMITTED;
}

static __always_inline enum early_syn_exit
find_ipv6(struct __sk_buff *skb, __u32 offset, struct found *found)
{
	struct extension extension;
	struct ipv6hdr ip;
	__u8 next;
	int i;

	if (load(skb, offset, &ip, sizeof(ip)) || ip.version != 6)
		return EARLY_SYN_MALFORMED;
	found->to.version = 6;
	__builtin_memcpy(found->to.addr, &ip.daddr, sizeof(ip.daddr));
	__builtin_memcpy(found->from, &ip.saddr, sizeof(ip.saddr));
	offset += sizeof(ip);
	next = ip.nexthdr;

	for (i = 0; i <= EXTENSIONS_MAX; i++) {
		switch (next) {
		case IPPROTO_TCP:
			found->offset = offset;
			return EARLY_SYN_EMITTED;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			break;
		case IPPROTO_FRAGMENT:
			return EARLY_SYN_FRAGMENT;
		default:
			return EARLY_SYN_NOT_TCP;
		}
		if (load(skb, offset, &extension, sizeof(extension)))
			return EARLY_SYN_MALFORMED;
		/* The destination is only a stop on the way. */
		if (next == IPPROTO_ROUTING && extension.segments_left)
			return EARLY_SYN_NOT_LOCAL;
		next = extension.next;
		offset += (extension.len + 1) * 8;
	}
	return EARLY_SYN_MALFORMED;
}

static __always_inline enum early_syn_exit
find_tcp(struct __sk_buff *skb, struct found *found)
{
	__be16 proto = skb->protocol;
	struct vlan_tag tag;
	__u32 offset = 0;
	int i;

	for (i = 0; i < TAGS_MAX; i++) {
		if (proto != bpf_htons(ETH_P_8021Q) &&
		    proto != bpf_htons(ETH_P_8021AD))
			break;
		if (load(skb, offset, &tag, sizeof(tag)))
			return EARLY_SYN_MALFORMED;
		proto = tag.proto;
		offset += VLAN_HLEN;
	}
	if (proto == bpf_htons(ETH_P_IP))
		return find_ipv4(skb, offset, found);
	if (proto == bpf_htons(ETH_P_IPV6))
		return find_ipv6(skb, offset, found);
	return EARLY_SYN_NOT_TCP;
}

/* Whether the kernel would send the packet on to another machine. One that
 * listens on every address must not take what passes through for its own.
 */
static __always_inline bool passes_through(struct __sk_buff *skb,
					   const struct found *found)
{
	struct bpf_fib_lookup route = {};
	long result;

	route.l4_protocol = IPPROTO_TCP;
	route.ifindex = skb->ifindex;
	if (found->to.version == 4) {
		route.family = AF_INET;
		__builtin_memcpy(&route.ipv4_src, found->from, 4);
		__builtin_memcpy(&route.ipv4_dst, found->to.addr, 4);
	} else {
		route.family = AF_INET6;
		__builtin_memcpy(route.ipv6_src, found->from, 16);
		__builtin_memcpy(route.ipv6_dst, found->to.addr, 16);
	}
	result = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return result != BPF_FIB_LKUP_RET_NOT_FWDED &&
	       result != BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Coarse: whoever is first in a second starts the count anew, and what others
 * count in between is forgotten.
 */
static __always_inline bool over_ceiling(__u64 now)
{
	__u64 this = now / SECOND_NS;
	__u64 counted = second;

	if (counted != this &&
	    __sync_val_compare_and_swap(&second, counted, this) == counted)
		in_second = 0;
	return __sync_fetch_and_add(&in_second, 1) >= events_per_second;
}

static __always_inline enum early_syn_exit look(struct __sk_buff *skb)
{
	struct early_syn_event *event;
	struct early_syn_watch any = {};
	struct found found = {};
	enum early_syn_exit exit;
	struct tcphdr tcp;
	__u32 *listener;
	__u64 now;

	/* What goes to another MAC is a bridge's or a macvlan's, which see it
	 * for themselves once it is theirs.
	 */
	if (skb->pkt_type != PACKET_HOST)
		return EARLY_SYN_OTHER_HOST;
	exit = find_tcp(skb, &found);
	if (exit != EARLY_SYN_EMITTED)
		return exit;
	if (load(skb, found.offset, &tcp, sizeof(tcp)) || tcp.doff < 5)
		return EARLY_SYN_MALFORMED;
	if (!tcp.syn || tcp.ack || tcp.rst || tcp.fin)
		return EARLY_SYN_NOT_SYN;

	found.to.port = tcp.dest;
	listener = bpf_map_lookup_elem(&watched, &found.to);
	if (!listener) {
		any.port = tcp.dest;
		any.version = found.to.version;
		listener = bpf_map_lookup_elem(&watched, &any);
		if (!listener)
			return EARLY_SYN_NOT_WATCHED;
		if (passes_through(skb, &found))
			return EARLY_SYN_NOT_LOCAL;
	}

	now = bpf_ktime_get_ns();
	if (over_ceiling(now))
		return EARLY_SYN_OVER_CEILING;
	event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);
	if (!event)
		return EARLY_SYN_RING_FULL;
	event->seen_ns = now;
	__builtin_memcpy(event->saddr, found.from, sizeof(event->saddr));
	__builtin_memcpy(event->daddr, found.to.addr, sizeof(event->daddr));
	event->sport = tcp.source;
	event->dport = tcp.dest;
	event->version = found.to.version;
	event->listener = *listener;
	event->ifindex = skb->ifindex;
	bpf_ringbuf_submit(event, 0);
	return EARLY_SYN_EMITTED;
}

/* "tc" and not "tcx/ingress": the same program also serves kernels that have
 * only clsact. TC_ACT_UNSPEC is what tcx calls TCX_NEXT.
 */
SEC("tc")
int early_syn(struct __sk_buff *skb)
{
	__u32 exit = look(skb);
	__u64 *count = bpf_map_lookup_elem(&exits, &exit);

	if (count)
		(*count)++;
	return TC_ACT_UNSPEC;
}

/* So that the object describes these types, for the relay's test to compare. */
const struct early_syn_event *describe_event __attribute__((unused));
const enum early_syn_exit *describe_exit __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";
