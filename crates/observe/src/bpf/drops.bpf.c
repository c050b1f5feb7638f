// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts the packets of followed connections that the kernel drops, by reason,
 * function and device. It runs for each dropped packet of the machine, so it
 * returns early for packets of others.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "drops.h"

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct net_device {
	char name[DROPS_NAME];
	int ifindex;
	struct {
		struct net *net;
	} nd_net;
} __attribute__((preserve_access_index));

struct dst_entry {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct sock_common {
	struct {
		struct net *net;
	} skc_net;
	struct {
		__s64 counter;
	} skc_cookie;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned long _skb_refdst;
	unsigned int len;
	int skb_iif;
	__be16 protocol;
	__u16 network_header;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	unsigned short gso_size;
	unsigned short gso_segs;
} __attribute__((preserve_access_index));

enum skb_drop_reason {
	SKB_DROP_REASON_NOT_SPECIFIED = 2,
	SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE = 3,
};

/* SKB_DST_PTRMASK */
#define DST_FLAGS 1UL

#define PROTOCOL_IPV4 0x0800
#define PROTOCOL_IPV6 0x86dd
#define PROTOCOL_TCP 6

/* A segment counts as at least so large (the default MSS of RFC 9293): a guest may
 * say that a packet stands for 65,535 segments.
 */
#define SEGMENT_LEAST 536

struct ipv4_header {
	__u8 version_length;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__u8 from[4];
	__u8 to[4];
};

#define FRAGMENT_OFFSET 0x1fff

struct ipv6_header {
	__u8 version[4];
	__be16 length;
	__u8 next;
	__u8 hops;
	__u8 from[16];
	__u8 to[16];
};

struct tcp_header {
	__be16 from_port;
	__be16 to_port;
	__be32 seq;
	__be32 ack;
	__u8 length;	/* in the upper four bits, in words */
	__u8 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DROPS_FOLLOWED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct drops_tuple);
	__type(value, struct drops_ends);
} followed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DROPS_KINDS);
	__type(key, struct drops_kind);
	__type(value, struct drops_count);
} kinds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_DROPS_EXIT);
	__type(key, __u32);
	__type(value, __u64);
} exits SEC(".maps");

SEC(".rodata.config")
const volatile struct drops_config config;

/* A dropped packet. */
struct packet {
	struct drops_tuple tuple;
	unsigned int data;	/* bytes after the TCP header */
};

static __always_inline bool is_ignored(__u32 reason)
{
	__u32 word = reason / 64;

	/* Keeps clang from a shorter way that the verifier does not follow. */
	barrier_var(word);
	if (word >= DROPS_REASONS / 64)
		return false;
	return config.ignored[word] & 1ULL << reason % 64;
}

static __always_inline void map_ipv4(__u8 *to, const __u8 *address)
{
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, address, 4);
}

static __always_inline bool is_loopback(const __u8 *address)
{
	const __u32 *words = (const __u32 *)address;

	if (words[0] || words[1])
		return false;
	if (words[2] == bpf_htonl(0xffff))
		return address[12] == 127;
	return !words[2] && words[3] == bpf_htonl(1);
}

/* Reads the headers. The transport header of an skb is not used, because it is set
 * only later than some places drop it. IPv6 extension headers are not followed.
 */
static __always_inline __u32 read_packet(struct packet *packet, struct sk_buff *skb)
{
	const unsigned char *at = skb->head + skb->network_header;
	__be16 protocol = skb->protocol;
	struct tcp_header tcp;
	long length, header;

	if (protocol == bpf_htons(PROTOCOL_IPV4)) {
		struct ipv4_header ip;

		if (bpf_probe_read_kernel(&ip, sizeof(ip), at))
			return DROPS_UNREADABLE;
		if (ip.version_length >> 4 != 4)
			return DROPS_UNREADABLE;
		if (ip.protocol != PROTOCOL_TCP ||
		    ip.fragment & bpf_htons(FRAGMENT_OFFSET))
			return DROPS_NOT_TCP;
		map_ipv4(packet->tuple.from, ip.from);
		map_ipv4(packet->tuple.to, ip.to);
		header = (ip.version_length & 0xf) * 4;
		length = bpf_ntohs(ip.length);
	} else if (protocol == bpf_htons(PROTOCOL_IPV6)) {
		struct ipv6_header ip;

		if (bpf_probe_read_kernel(&ip, sizeof(ip), at))
			return DROPS_UNREADABLE;
		if (ip.version[0] >> 4 != 6)
			return DROPS_UNREADABLE;
		if (ip.next != PROTOCOL_TCP)
			return DROPS_NOT_TCP;
		__builtin_memcpy(packet->tuple.from, ip.from, 16);
		__builtin_memcpy(packet->tuple.to, ip.to, 16);
		header = sizeof(ip);
		length = bpf_ntohs(ip.length);
		if (length)
			length += header;
	} else {
		return DROPS_NOT_TCP;
	}
	if (bpf_probe_read_kernel(&tcp, sizeof(tcp), at + header))
		return DROPS_UNREADABLE;
	packet->tuple.from_port = tcp.from_port;
	packet->tuple.to_port = tcp.to_port;
	/* The IP header has no length if the packet is larger than 64 KiB. The length of
	 * an skb may include the padding of Ethernet, and layers of the kernel move `data`
	 * past their headers.
	 */
	if (!length)
		length = (long)skb->len - (at - skb->data);
	length -= header + (tcp.length >> 4) * 4;
	packet->data = length > 0 ? length : 0;
	return DROPS_COUNTED;
}

/* Returns the number of segments that a packet stands for (GSO, GRO). */
static __always_inline __u32 segments(struct sk_buff *skb, unsigned int data)
{
	struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	__u16 count = BPF_CORE_READ(shared, gso_segs);
	__u16 size = BPF_CORE_READ(shared, gso_size);
	__u32 most = data / SEGMENT_LEAST + 1;

	if (!count)
		count = size ? (data + size - 1) / size : 1;
	return count < most ? count : most;
}

static __always_inline __u32 netns_of(struct net *net)
{
	return BPF_CORE_READ(net, ns.inum);
}

static __always_inline void note_device(struct drops_kind *kind,
					struct drops_count *count,
					struct net_device *device)
{
	kind->device = BPF_CORE_READ(device, ifindex);
	kind->netns = netns_of(BPF_CORE_READ(device, nd_net.net));
	bpf_core_read(count->device, sizeof(count->device), &device->name);
}

/* Notes where a packet was dropped. A socket's packets have no device, and may be in
 * a tree whose links are where the device was.
 */
static __always_inline void note_place(struct drops_kind *kind,
				       struct drops_count *count,
				       struct sk_buff *skb, struct sock *to)
{
	struct net_device *device = skb->dev;
	unsigned long dst;

	if (to) {
		kind->netns = netns_of(BPF_CORE_READ(to, __sk_common.skc_net.net));
		return;
	}
	/* Older kernels do not have this reason. */
	if (bpf_core_enum_value_exists(enum skb_drop_reason,
				       SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE) &&
	    kind->reason == bpf_core_enum_value(enum skb_drop_reason,
						SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE))
		return;
	if (device) {
		note_device(kind, count, device);
		return;
	}
	/* The packet of a local sender has no device yet, only a route. */
	dst = skb->_skb_refdst & ~DST_FLAGS;
	if (dst && !skb->skb_iif)
		note_device(kind, count, BPF_CORE_READ((struct dst_entry *)dst, dev));
	else if (skb->sk)
		kind->netns = netns_of(BPF_CORE_READ(skb, sk, __sk_common.skc_net.net));
}

static __always_inline __u32 is_own(struct sock *sock, __u64 cookie)
{
	return sock &&
	       (__u64)BPF_CORE_READ(sock, __sk_common.skc_cookie.counter) == cookie;
}

/* Whether the kernel only frees a packet that a socket has received: it does so
 * without a reason, too.
 */
static __always_inline bool is_received(struct sk_buff *skb, __u32 reason,
					struct sock *to)
{
	__u32 none = bpf_core_enum_value(enum skb_drop_reason,
					 SKB_DROP_REASON_NOT_SPECIFIED);

	return reason == none && (to || (!skb->dev && skb->skb_iif));
}

static __always_inline __u32 add(struct drops_kind *kind, struct drops_count *count)
{
	struct drops_count *known = bpf_map_lookup_elem(&kinds, kind);

	if (!known) {
		struct drops_count zero = {};

		__builtin_memcpy(zero.device, count->device, sizeof(zero.device));
		/* Another CPU may have been faster. */
		bpf_map_update_elem(&kinds, kind, &zero, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&kinds, kind);
		if (!known)
			return DROPS_NO_ROOM;
	}
	__sync_fetch_and_add(&known->data, count->data);
	__sync_fetch_and_add(&known->other, count->other);
	return DROPS_COUNTED;
}

static __always_inline __u32 dropped(struct sk_buff *skb, __u64 function, __u32 reason,
				     struct sock *to)
{
	struct drops_kind kind = { .function = function, .reason = reason };
	struct drops_count count = {};
	struct packet packet = {};
	struct drops_ends *ends;
	__u32 exit, last;

	if (is_ignored(reason) || is_received(skb, reason, to))
		return DROPS_IGNORED;
	exit = read_packet(&packet, skb);
	if (exit != DROPS_COUNTED)
		return exit;
	if (is_loopback(packet.tuple.from) || is_loopback(packet.tuple.to)) {
		note_place(&kind, &count, skb, to);
		packet.tuple.netns = kind.netns;
	}
	ends = bpf_map_lookup_elem(&followed, &packet.tuple);
	if (!ends)
		return DROPS_NOT_FOLLOWED;
	note_place(&kind, &count, skb, to);
	if (packet.data)
		count.data = segments(skb, packet.data);
	else
		count.other = 1;
	exit = DROPS_COUNTED;
	if (ends->from) {
		kind.cookie = ends->from;
		kind.direction = DROPS_SENT;
		kind.is_own = is_own(skb->sk, ends->from);
		exit = add(&kind, &count);
	}
	if (ends->to) {
		kind.cookie = ends->to;
		kind.direction = DROPS_RECEIVED;
		kind.is_own = is_own(to, ends->to);
		last = add(&kind, &count);
		if (exit == DROPS_COUNTED)
			exit = last;
	}
	return exit;
}

static __always_inline int count_exit(__u32 exit)
{
	__u64 *counter = bpf_map_lookup_elem(&exits, &exit);

	if (counter)
		(*counter)++;
	return 0;
}

/* Since Linux 6.11 the tracepoint has the socket that the packet had reached. */
SEC("tp_btf/kfree_skb")
int taut_dropped_with_socket(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct sock *to = (struct sock *)ctx[3];

	return count_exit(dropped(skb, ctx[1], ctx[2], to));
}

SEC("tp_btf/kfree_skb")
int taut_dropped(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];

	return count_exit(dropped(skb, ctx[1], ctx[2], NULL));
}

char LICENSE[] SEC("license") = "GPL";
