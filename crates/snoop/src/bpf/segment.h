/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reads a TCP segment as it passes the tap.
 *
 * At both hooks of a tap, the frame begins with its Ethernet header; an outer
 * VLAN tag is in the skb, not in the frame. Without IP options, the headers'
 * offsets are constants, which makes reading cheap. Packets with IP options or
 * with a tag in the frame are left to the guest.
 */
#ifndef TAUT_SEGMENT_H
#define TAUT_SEGMENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "snoop.h"

#define IP_MF_OFFSET	0x3fff	/* more fragments, and a fragment's offset */
#define ECN_MASK	3
#define ECN_CE		3

#define L3_AT		((__u32)sizeof(struct ethhdr))
#define L4_AT_V4	(L3_AT + (__u32)sizeof(struct iphdr))
#define L4_AT_V6	(L3_AT + (__u32)sizeof(struct ipv6hdr))
#define HEADERS_MAX	(L4_AT_V6 + 60)
#define OPTIONS_MAX	40

/*
 * The flags byte (RFC 9293 3.1, RFC 3168), and AE in the byte before it (RFC
 * 9768).
 */
#define TH_FIN		0x01
#define TH_SYN		0x02
#define TH_RST		0x04
#define TH_PSH		0x08
#define TH_ACK		0x10
#define TH_URG		0x20
#define TH_ECE		0x40
#define TH_CWR		0x80
#define TH_AE		0x01

/* Option kinds (IANA, TCP parameters). */
#define OPT_END		0
#define OPT_NOP		1
#define OPT_MSS		2
#define OPT_SCALE	3
#define OPT_SACK_OK	4
#define OPT_SACK	5
#define OPT_TS		8
#define OPT_MD5		19
#define OPT_AO		29
#define OPT_MPTCP	30
#define OPT_FAST_OPEN	34

/* Two NOPs and the timestamps, which nearly every segment has. */
#define USUAL_OPTIONS	12
#define USUAL_START	0x0101080a

#define SCALE_MAX	14	/* RFC 7323 2.3 */
#define MSS_DEFAULT	536	/* RFC 9293 3.7.1 */

struct options {
	__u32 tsval;
	__u32 tsecr;
	__u32 sack_start;	/* of the first block */
	__u32 sack_end;
	__u16 mss;
	__u8 scale;
	__u8 bypass;		/* enum snoop_bypass: an option that forbids early ACKs */
	bool has_ts;
	bool has_scale;
	bool has_sack;
	bool other;		/* an unknown option */
};

struct segment {
	__u32 seq;
	__u32 ack;
	__u32 len;		/* of the data */
	__u32 l4_at;
	__u32 header;		/* of TCP, with options */
	__u32 vm_word;		/* IPv6: the first word */
	__u8 to[ETH_ALEN];
	__u8 from[ETH_ALEN];
	__u16 window;
	__u8 flags;
	bool ae;
	__u8 tos;
	__u8 ttl;
	struct options options;
};

enum segment_kind {
	SEGMENT_FOUND,
	SEGMENT_NONE,
	SEGMENT_MALFORMED,
};

static __always_inline bool before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline bool after(__u32 a, __u32 b)
{
	return before(b, a);
}

struct reading {
	__u8 bytes[OPTIONS_MAX + 12];	/* and room for an option that begins in the last byte */
	struct options found;
	__u32 at;
	__u32 len;
	bool malformed;
};

static __always_inline __u32 word(const __u8 *bytes)
{
	return (__u32)bytes[0] << 24 | (__u32)bytes[1] << 16 |
	       (__u32)bytes[2] << 8 | bytes[3];
}

/*
 * Reads one option. (bpf_loop() calls this function, so the verifier checks it
 * once instead of on each path through all options.)
 */
static long read_option(__u32 n __attribute__((unused)), void *context)
{
	struct reading *r = context;
	struct options *found = &r->found;
	__u32 at = r->at;
	const __u8 *option;
	__u8 size;

	if (at >= r->len || at >= OPTIONS_MAX)
		return 1;
	option = &r->bytes[at];
	if (option[0] == OPT_END)
		return 1;
	if (option[0] == OPT_NOP) {
		r->at = at + 1;
		return 0;
	}
	size = option[1];
	if (size < 2 || at + size > r->len) {
		r->malformed = true;
		return 1;
	}
	r->at = at + size;
	switch (option[0]) {
	case OPT_MSS:
		if (size == 4)
			found->mss = option[2] << 8 | option[3];
		break;
	case OPT_SCALE:
		found->has_scale = size == 3;
		found->scale = option[2];
		break;
	case OPT_SACK_OK:
		break;
	case OPT_SACK:
		found->has_sack = size >= 10;
		found->sack_start = word(option + 2);
		found->sack_end = word(option + 6);
		break;
	case OPT_TS:
		found->has_ts = size == 10;
		found->tsval = word(option + 2);
		found->tsecr = word(option + 6);
		break;
	case OPT_MD5:
		found->bypass = SNOOP_MD5;
		break;
	case OPT_AO:
		found->bypass = SNOOP_TCP_AO;
		break;
	case OPT_MPTCP:
		found->bypass = found->bypass ?: SNOOP_MPTCP;
		break;
	case OPT_FAST_OPEN:
		found->bypass = found->bypass ?: SNOOP_FAST_OPEN;
		break;
	default:
		found->other = true;
	}
	return 0;
}

/*
 * Reads options of any kind, one by one. Returns 0, or -1 if they are
 * malformed. (A global function is verified once, and not again for the state
 * before each call.)
 */
__noinline int read_options(struct __sk_buff *skb, __u32 at, __u32 len,
			    struct options *options)
{
	struct reading r = {};

	if (!options || len < 4)
		return -1;
	/*
	 * Without the barrier, the compiler merges both comparisons into one,
	 * of another register than the load uses, and the verifier of Linux 6.1
	 * does not see that the length is bounded.
	 */
	barrier_var(len);
	if (len > OPTIONS_MAX)
		return -1;
	if (bpf_skb_load_bytes(skb, at, r.bytes, len))
		return -1;
	r.len = len;
	bpf_loop(OPTIONS_MAX, read_option, &r, 0);
	*options = r.found;
	return r.malformed ? -1 : 0;
}

/*
 * Reads the TCP header at @l4_at of a packet in which TCP and its data take
 * @total bytes.
 */
static __always_inline enum segment_kind
read_tcp(struct __sk_buff *skb, const struct tcphdr *tcp, __u32 l4_at,
	 __u32 total, void *data_end, struct segment *s)
{
	const __u8 *bytes = (const __u8 *)tcp;
	const __u32 *usual = (const __u32 *)(tcp + 1);
	__u32 header = tcp->doff * 4;

	if (header < sizeof(*tcp) || header > total)
		return SEGMENT_MALFORMED;
	s->seq = bpf_ntohl(tcp->seq);
	s->ack = bpf_ntohl(tcp->ack_seq);
	s->window = bpf_ntohs(tcp->window);
	s->flags = bytes[13];
	s->ae = bytes[12] & TH_AE;
	s->l4_at = l4_at;
	s->header = header;
	s->len = total - header;
	if (header == sizeof(*tcp))
		return SEGMENT_FOUND;
	if (header == sizeof(*tcp) + USUAL_OPTIONS &&
	    (void *)(usual + 3) <= data_end &&
	    usual[0] == bpf_htonl(USUAL_START)) {
		s->options.has_ts = true;
		s->options.tsval = bpf_ntohl(usual[1]);
		s->options.tsecr = bpf_ntohl(usual[2]);
		return SEGMENT_FOUND;
	}
	if (read_options(skb, l4_at + sizeof(*tcp), header - sizeof(*tcp),
			 &s->options))
		return SEGMENT_MALFORMED;
	return SEGMENT_FOUND;
}

/*
 * Returns whether the checksum of an IPv4 header without options is right (RFC
 * 791 3.1).
 */
static __always_inline bool header_sums_up(const struct iphdr *ip)
{
	const __u32 *words = (const __u32 *)ip;
	__u64 sum;

	sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/*
 * Finds the segment in a frame. @to_guest selects which end is the guest's.
 * Returns an enum segment_kind.
 */
__noinline int read_segment(struct __sk_buff *skb, __u32 to_guest,
			    struct segment *s, struct snoop_key *key)
{
	void *data = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct tcphdr *tcp;
	__u32 total;

	if (!s || !key)
		return SEGMENT_NONE;
	if (data + HEADERS_MAX > data_end &&
	    data_end - data < (long)skb->len) {
		if (bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ?
						   skb->len : HEADERS_MAX))
			return SEGMENT_MALFORMED;
		data = (void *)(long)skb->data;
		data_end = (void *)(long)skb->data_end;
		eth = data;
	}
	if ((void *)(eth + 1) > data_end)
		return SEGMENT_NONE;
	__builtin_memcpy(s->to, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(s->from, eth->h_source, ETH_ALEN);
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + L3_AT;

		tcp = data + L4_AT_V4;
		if ((void *)(tcp + 1) > data_end)
			return SEGMENT_NONE;
		if (ip->protocol != IPPROTO_TCP || ip->ihl != 5 ||
		    ip->version != 4 ||
		    ip->frag_off & bpf_htons(IP_MF_OFFSET))
			return SEGMENT_NONE;
		/* The guest drops a wrong header (RFC 1122 3.2.1.2). */
		if (to_guest && !header_sums_up(ip))
			return SEGMENT_MALFORMED;
		total = bpf_ntohs(ip->tot_len);
		/* The packet is longer than the length field allows (BIG TCP).
		 */
		if (!total && skb->len - L3_AT > 0xffff)
			total = skb->len - L3_AT;
		if (total < sizeof(*ip) || total > skb->len - L3_AT)
			return SEGMENT_MALFORMED;
		total -= sizeof(*ip);
		key->version = 4;
		__builtin_memcpy(to_guest ? key->peer : key->guest, &ip->saddr,
				 4);
		__builtin_memcpy(to_guest ? key->guest : key->peer, &ip->daddr,
				 4);
		s->tos = ip->tos;
		s->ttl = ip->ttl;
		s->l4_at = L4_AT_V4;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + L3_AT;

		tcp = data + L4_AT_V6;
		if ((void *)(tcp + 1) > data_end)
			return SEGMENT_NONE;
		if (ip->nexthdr != IPPROTO_TCP || ip->version != 6)
			return SEGMENT_NONE;
		total = bpf_ntohs(ip->payload_len);
		if (!total && skb->len - L4_AT_V6 > 0xffff)
			total = skb->len - L4_AT_V6;
		if (total > skb->len - L4_AT_V6)
			return SEGMENT_MALFORMED;
		key->version = 6;
		__builtin_memcpy(to_guest ? key->peer : key->guest, &ip->saddr,
				 16);
		__builtin_memcpy(to_guest ? key->guest : key->peer, &ip->daddr,
				 16);
		s->vm_word = *(__u32 *)ip;
		s->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		s->ttl = ip->hop_limit;
		s->l4_at = L4_AT_V6;
	} else {
		return SEGMENT_NONE;
	}
	/* A copy can only be retransmitted with an 802.1Q tag. */
	if (skb->vlan_present && skb->vlan_proto != bpf_htons(ETH_P_8021Q))
		return SEGMENT_NONE;
	key->vlan = skb->vlan_present ? 0x8000 | (skb->vlan_tci & 0xfff) : 0;
	key->guest_port = to_guest ? tcp->dest : tcp->source;
	key->peer_port = to_guest ? tcp->source : tcp->dest;
	return read_tcp(skb, tcp, s->l4_at, total, data_end, s);
}

#endif
