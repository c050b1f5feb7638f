/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Checksums, and the ACK that is written over a delivered segment.
 */
#ifndef TAUT_ACK_H
#define TAUT_ACK_H

#include "segment.h"

/* skb->ip_summed (linux/skbuff.h). */
#define CHECKSUM_UNNECESSARY	1
#define CHECKSUM_PARTIAL	3

#define SUM_AT_ONCE		508	/* rounded up at most 512 */
#define SUMS			(10 * 1024 / SUM_AT_ONCE)	/* enough for a jumbo frame */

/* Buffer for sums: helpers of older kernels take 512 bytes at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[512]);
} summing SEC(".maps");

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Returns the sum of @count words of 32 bits, not folded (RFC 1071 2 B). */
static __always_inline __u64 sum_words(const void *from, int count)
{
	const __u32 *words = from;
	__u64 sum = 0;
	int i;

	for (i = 0; i < count; i++)
		sum += words[i];
	return sum;
}

/* Returns the sum of TCP's pseudo-header (RFC 9293 3.1) for @len bytes of TCP.
 */
static __always_inline __u64 pseudo_sum(const struct snoop_key *key, __u32 len)
{
	/* The rest of an IPv4 address's field is zero. */
	return sum_words(key, 8) + bpf_htonl(len) + bpf_htonl(IPPROTO_TCP);
}

/*
 * Returns whether TCP's checksum of @len bytes from @at is right. (The guest
 * silently drops a segment with a wrong checksum, so the host must verify it.)
 */
__noinline int sums_up(struct __sk_buff *skb, __u32 at, __u32 len, __u64 sum)
{
	__u32 zero = 0, size, i;
	__u8 *bytes = bpf_map_lookup_elem(&summing, &zero);

	if (!bytes)
		return false;
	for (i = 0; i < SUMS && len; i++) {
		/* One less: the verifier of Linux 6.1 does not see that it is
		 * not zero.
		 */
		size = len - 1;
		if (size >= SUM_AT_ONCE)
			size = SUM_AT_ONCE - 1;
		barrier_var(size);
		size++;
		/* The last bytes may be a partial word. */
		if (size & 3)
			*(__u32 *)(bytes + (size & SUM_AT_ONCE)) = 0;
		if (bpf_skb_load_bytes(skb, at, bytes, size))
			return false;
		sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)bytes,
					    (size + 3) & ~3, 0);
		at += size;
		len -= size;
	}
	return !len && fold(sum) == 0xffff;
}

/* The contents of an ACK. */
struct answer {
	__u32 seq;
	__u32 ack;
	__u32 tsval;
	__u32 tsecr;
	__u32 sack_start;
	__u32 sack_end;
	__u32 vm_word;
	__u32 summed;	/* state of the segment's own checksum */
	__u8 to[ETH_ALEN];
	__u8 from[ETH_ALEN];
	__u16 window;
	bool has_ts;
	bool has_sack;	/* the guest has a SACK block (RFC 2018 4) */
	__u8 tos;
	__u8 ttl;
};

#define SACK_START	0x0101050a	/* two NOPs and one block */
#define SACK_WORDS	3
#define TS_WORDS	(USUAL_OPTIONS / 4)

struct answer_tcp {
	struct tcphdr tcp;
	__be32 options[TS_WORDS + SACK_WORDS];
};

static __always_inline __u32 option_words(const struct answer *a)
{
	return (a->has_ts ? TS_WORDS : 0) + (a->has_sack ? SACK_WORDS : 0);
}

/* Starts with two bytes before the Ethernet header, which align the rest. */
struct answer_v4 {
	__u8 align[2];
	struct ethhdr eth;
	struct iphdr ip;
	struct answer_tcp tcp;
};

struct answer_v6 {
	__u8 align[2];
	struct ethhdr eth;
	struct ipv6hdr ip;
	struct answer_tcp tcp;
};

/*
 * Writes TCP's checksum, given the sum of its pseudo-header. If hardware (or
 * another layer) completes the checksum, writes that sum alone, not inverted.
 */
static __always_inline void sum_tcp(struct answer_tcp *to, __u64 pseudo,
				    __u32 summed)
{
	__u64 sum;

	if (summed == CHECKSUM_PARTIAL) {
		to->tcp.check = fold(pseudo);
		return;
	}
	sum = sum_words(to, sizeof(*to) / 4);
	to->tcp.check = ~fold(pseudo + sum);
}

static __always_inline void write_eth(struct ethhdr *to, __u16 proto,
				      const struct answer *a)
{
	__builtin_memcpy(to->h_dest, a->to, ETH_ALEN);
	__builtin_memcpy(to->h_source, a->from, ETH_ALEN);
	to->h_proto = bpf_htons(proto);
}

static __always_inline void write_tcp(struct answer_tcp *to,
				      const struct snoop_key *key,
				      const struct answer *a, __u64 pseudo)
{
	__u8 *bytes = (__u8 *)&to->tcp;

	to->tcp.source = key->guest_port;
	to->tcp.dest = key->peer_port;
	to->tcp.seq = bpf_htonl(a->seq);
	to->tcp.ack_seq = bpf_htonl(a->ack);
	bytes[12] = (5 + option_words(a)) << 4;
	bytes[13] = TH_ACK;
	to->tcp.window = bpf_htons(a->window);
	if (a->has_ts) {
		to->options[0] = bpf_htonl(USUAL_START);
		to->options[1] = bpf_htonl(a->tsval);
		to->options[2] = bpf_htonl(a->tsecr);
	}
	if (a->has_sack) {
		__be32 *block = to->options + (a->has_ts ? TS_WORDS : 0);

		block[0] = bpf_htonl(SACK_START);
		block[1] = bpf_htonl(a->sack_start);
		block[2] = bpf_htonl(a->sack_end);
	}
	sum_tcp(to, pseudo, a->summed);
}

/*
 * Stores the headers starting at @from. They end with TCP's at @l4_at and
 * @words words of options.
 */
static __always_inline int put(struct __sk_buff *skb, const struct ethhdr *from,
			       __u32 l4_at, __u32 words)
{
	const __u64 flags = BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH;
	__u32 len = l4_at + sizeof(struct tcphdr);

	/* The verifier needs a constant length. */
	switch (words) {
	case 0:
		return bpf_skb_store_bytes(skb, 0, from, len, flags);
	case TS_WORDS:
		return bpf_skb_store_bytes(skb, 0, from, len + 4 * TS_WORDS,
					   flags);
	default:
		return bpf_skb_store_bytes(skb, 0, from,
					   len + 4 * (TS_WORDS + SACK_WORDS),
					   flags);
	}
}

/* Writes the ACK over the delivered segment. */
__noinline int write_v4(struct __sk_buff *skb, const struct snoop_key *key,
			const struct answer *a)
{
	struct answer_v4 to = {};
	__u32 tcp_len;

	if (!key || !a)
		return -1;
	tcp_len = sizeof(struct tcphdr) + 4 * option_words(a);
	if (bpf_skb_change_tail(skb, L4_AT_V4 + tcp_len, 0))
		return -1;
	write_eth(&to.eth, ETH_P_IP, a);
	to.ip.version = 4;
	to.ip.ihl = 5;
	to.ip.tos = a->tos;
	to.ip.tot_len = bpf_htons(sizeof(to.ip) + tcp_len);
	to.ip.frag_off = bpf_htons(0x4000);
	to.ip.ttl = a->ttl;
	to.ip.protocol = IPPROTO_TCP;
	__builtin_memcpy(&to.ip.saddr, key->guest, 4);
	__builtin_memcpy(&to.ip.daddr, key->peer, 4);
	to.ip.check = ~fold(sum_words(&to.ip, sizeof(to.ip) / 4));
	write_tcp(&to.tcp, key, a, pseudo_sum(key, tcp_len));
	return put(skb, &to.eth, L4_AT_V4, option_words(a));
}

__noinline int write_v6(struct __sk_buff *skb, const struct snoop_key *key,
			const struct answer *a)
{
	struct answer_v6 to = {};
	__u32 tcp_len;

	if (!key || !a)
		return -1;
	tcp_len = sizeof(struct tcphdr) + 4 * option_words(a);
	if (bpf_skb_change_tail(skb, L4_AT_V6 + tcp_len, 0))
		return -1;
	write_eth(&to.eth, ETH_P_IPV6, a);
	*(__u32 *)&to.ip = a->vm_word & ~bpf_htonl(ECN_MASK << 20);
	to.ip.payload_len = bpf_htons(tcp_len);
	to.ip.nexthdr = IPPROTO_TCP;
	to.ip.hop_limit = a->ttl;
	__builtin_memcpy(&to.ip.saddr, key->guest, 16);
	__builtin_memcpy(&to.ip.daddr, key->peer, 16);
	write_tcp(&to.tcp, key, a, pseudo_sum(key, tcp_len));
	return put(skb, &to.eth, L4_AT_V6, option_words(a));
}

static __always_inline int write_ack(struct __sk_buff *skb,
				     const struct snoop_key *key,
				     const struct answer *a)
{
	return key->version == 4 ? write_v4(skb, key, a) : write_v6(skb, key, a);
}

#endif
