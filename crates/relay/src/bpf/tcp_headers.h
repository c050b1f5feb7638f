/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Finds the TCP header of a packet at a device's ingress.
 *
 * Headers are located from the network header that the kernel has recorded, not
 * from the start of the frame. So one program works on Ethernet and on devices
 * without a link header (tun, ppp, ipip). The kernel removes the outer VLAN tag
 * before ingress programs see the frame; inner tags remain.
 */
#ifndef TAUT_TCP_HEADERS_H
#define TAUT_TCP_HEADERS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Missing from the kernel's UAPI headers. */
#define AF_INET		2
#define AF_INET6	10
#define IP_MF_OFFSET	0x3fff	/* more fragments, and a fragment's offset */
#define VLAN_HLEN	4

#define TAGS_MAX	2
#define EXTENSIONS_MAX	6	/* of IPv6; TCP segments have none or one */
#define HEADERS_MAX	512	/* bytes made linear, at most */

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* The start of every IPv6 extension header that may precede TCP. */
struct extension {
	__u8 next;
	__u8 len;		/* in 8 bytes, without the first 8 */
	__u8 type;
	__u8 segments_left;	/* of a routing header */
};

/* The result of the search. */
enum tcp_verdict {
	TCP_FOUND,
	TCP_NONE,		/* neither TCP over IPv4 nor over IPv6 */
	TCP_FRAGMENT,
	TCP_MALFORMED,		/* too short, or with invalid lengths */
	TCP_SOURCE_ROUTED,	/* its destination is an intermediate hop */
};

/* The TCP header and its addresses. An IPv4 address is in the first four bytes;
 * the other bytes are not written.
 */
struct tcp_found {
	struct tcphdr tcp;
	__u8 saddr[16];
	__u8 daddr[16];
	__u16 version;		/* of IP: 4 or 6 */
	__u32 network;		/* of IP, from the noted network header */
	__u32 offset;		/* of TCP, likewise */
};

/* Copies @len bytes at @offset from the network header. */
static __always_inline int load(struct __sk_buff *skb, __u32 offset, void *to,
				__u32 len)
{
	__u32 linear;

	if (!bpf_skb_load_bytes_relative(skb, offset, to, len,
					 BPF_HDR_START_NET))
		return 0;
	/* A driver may leave headers in page fragments, which this function
	 * does not read. If the packet is entirely linear, it is simply too
	 * short.
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

static __always_inline enum tcp_verdict
find_ipv4(struct __sk_buff *skb, __u32 offset, struct tcp_found *found)
{
	struct iphdr ip;

	if (load(skb, offset, &ip, sizeof(ip)) || ip.version != 4 ||
	    ip.ihl < 5)
		return TCP_MALFORMED;
	if (ip.protocol != IPPROTO_TCP)
		return TCP_NONE;
	if (ip.frag_off & bpf_htons(IP_MF_OFFSET))
		return TCP_FRAGMENT;
	found->version = 4;
	__builtin_memcpy(found->daddr, &ip.daddr, sizeof(ip.daddr));
	__builtin_memcpy(found->saddr, &ip.saddr, sizeof(ip.saddr));
	found->offset = offset + ip.ihl * 4;
	return TCP_FOUND;
}

static __always_inline enum tcp_verdict
find_ipv6(struct __sk_buff *skb, __u32 offset, struct tcp_found *found)
{
	struct extension extension;
	struct ipv6hdr ip;
	__u8 next;
	int i;

	if (load(skb, offset, &ip, sizeof(ip)) || ip.version != 6)
		return TCP_MALFORMED;
	found->version = 6;
	__builtin_memcpy(found->daddr, &ip.daddr, sizeof(ip.daddr));
	__builtin_memcpy(found->saddr, &ip.saddr, sizeof(ip.saddr));
	offset += sizeof(ip);
	next = ip.nexthdr;

	for (i = 0; i <= EXTENSIONS_MAX; i++) {
		switch (next) {
		case IPPROTO_TCP:
			found->offset = offset;
			return TCP_FOUND;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			break;
		case IPPROTO_FRAGMENT:
			return TCP_FRAGMENT;
		default:
			return TCP_NONE;
		}
		if (load(skb, offset, &extension, sizeof(extension)))
			return TCP_MALFORMED;
		/* The destination is an intermediate hop. */
		if (next == IPPROTO_ROUTING && extension.segments_left)
			return TCP_SOURCE_ROUTED;
		next = extension.next;
		offset += (extension.len + 1) * 8;
	}
	return TCP_MALFORMED;
}

static __always_inline enum tcp_verdict
find_ip(struct __sk_buff *skb, struct tcp_found *found)
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
			return TCP_MALFORMED;
		proto = tag.proto;
		offset += VLAN_HLEN;
	}
	found->network = offset;
	if (proto == bpf_htons(ETH_P_IP))
		return find_ipv4(skb, offset, found);
	if (proto == bpf_htons(ETH_P_IPV6))
		return find_ipv6(skb, offset, found);
	return TCP_NONE;
}

/* Finds the packet's destination and its TCP header. */
static __always_inline enum tcp_verdict
find_tcp(struct __sk_buff *skb, struct tcp_found *found)
{
	enum tcp_verdict verdict = find_ip(skb, found);

	if (verdict != TCP_FOUND)
		return verdict;
	if (load(skb, found->offset, &found->tcp, sizeof(found->tcp)) ||
	    found->tcp.doff < 5)
		return TCP_MALFORMED;
	return TCP_FOUND;
}

/* Returns whether the segment opens a connection (RFC 9293 3.5). */
static __always_inline bool is_first_segment(const struct tcphdr *tcp)
{
	return tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin;
}

#endif
