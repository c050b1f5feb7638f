/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Decides whether a segment from a tap belongs to the guest itself or to a host
 * behind it for which the guest forwards. Data delivered to the guest may still
 * be lost on the way to an endpoint behind it, so only the guest itself gets
 * early ACKs.
 */
#ifndef TAUT_ORIGIN_H
#define TAUT_ORIGIN_H

#include "flow.h"

#define SOURCE_TTL_UNIX		64
#define SOURCE_TTL_WINDOWS	128
#define SOURCE_TTL_MAX		255

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct snoop_source);
} source SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct snoop_net);
	__type(value, __u8);
} guest_nets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct snoop_prefix);
	__type(value, __u8);
} distrusted SEC(".maps");

/*
 * Returns whether frames from this address may belong to a host other than the
 * guest. If the guest's address is unknown, all frames of a tap with several
 * source addresses may.
 */
static __always_inline bool is_other_mac(const struct snoop_config *c,
					 const __u8 *mac)
{
	struct snoop_source *known;
	__u32 zero = 0;

	if (c->mac_known)
		return !same_mac(mac, c->guest_mac);
	known = bpf_map_lookup_elem(&source, &zero);
	if (!known)
		return true;
	if (!known->known) {
		__builtin_memcpy(known->mac, mac, ETH_ALEN);
		known->known = 1;
	} else if (!same_mac(mac, known->mac)) {
		known->several = 1;
	}
	return known->several;
}

/*
 * Learns from the guest's SYN how it scales its windows. (A SYN-ACK has no scale
 * if the SYN had none.)
 */
static __always_inline void see_scale(const struct segment *s)
{
	__u8 scale = s->options.has_scale ? s->options.scale : 0;
	struct snoop_source *known;
	__u32 zero = 0;

	if (s->flags & TH_ACK && !s->options.has_scale)
		return;
	known = bpf_map_lookup_elem(&source, &zero);
	if (known && (!known->scaled || known->scale < scale)) {
		known->scale = scale;
		known->scaled = 1;
	}
}

/* Returns the largest scale in the guest's SYNs, if any was seen. */
static __always_inline __u8 largest_scale(void)
{
	struct snoop_source *known;
	__u32 zero = 0;

	known = bpf_map_lookup_elem(&source, &zero);
	return known && known->scaled && known->scale < SCALE_MAX ? known->scale :
								    SCALE_MAX;
}

/*
 * Returns whether a router has forwarded the packet. A router decrements the
 * TTL (RFC 791 3.2; RFC 8200 3), so a packet with one of the usual initial TTLs
 * was not forwarded. The TTL of a connection does not change either.
 */
static __always_inline bool is_forwarded(const struct snoop_config *c,
					 const struct snoop_flow *f,
					 const struct segment *s)
{
	if (f && f->ttl)
		return f->ttl != s->ttl;
	return s->ttl != SOURCE_TTL_UNIX && s->ttl != SOURCE_TTL_WINDOWS &&
	       s->ttl != SOURCE_TTL_MAX &&
	       (!c->guest_ttl || s->ttl != c->guest_ttl);
}

static __always_inline bool is_other_address(const struct snoop_config *c,
					     const struct snoop_key *key)
{
	struct snoop_net net = { .prefix_len = 128 };

	if (!c->by_address)
		return false;
	if (key->version == 4) {
		net.addr[10] = 0xff;
		net.addr[11] = 0xff;
		__builtin_memcpy(net.addr + 12, key->guest, 4);
	} else {
		__builtin_memcpy(net.addr, key->guest, sizeof(net.addr));
	}
	return !bpf_map_lookup_elem(&guest_nets, &net);
}

/*
 * Returns the reason why the segment is not the guest's own, or
 * SNOOP_NO_BYPASS. @f: its flow, if any.
 */
static __always_inline __u8 foreign_origin(const struct snoop_config *c,
					   const struct snoop_flow *f,
					   const struct segment *s,
					   const struct snoop_key *key)
{
	if (is_other_mac(c, s->from))
		return SNOOP_OTHER_MAC;
	if (is_forwarded(c, f, s))
		return SNOOP_FORWARDED;
	/* The address of a flow does not change. */
	if ((!f || s->flags & TH_SYN) && is_other_address(c, key))
		return SNOOP_OTHER_ADDRESS;
	return SNOOP_NO_BYPASS;
}

/* Returns whether user space distrusts the peer's network. */
static __always_inline bool is_distrusted(const struct snoop_config *c,
					  const struct snoop_key *key)
{
	struct snoop_prefix prefix = { .version = key->version };

	if (!c->distrusted)
		return false;
	if (key->version == 4)
		__builtin_memcpy(prefix.bytes, key->peer, 3);
	else
		__builtin_memcpy(prefix.bytes, key->peer, 6);
	return bpf_map_lookup_elem(&distrusted, &prefix);
}

#endif
