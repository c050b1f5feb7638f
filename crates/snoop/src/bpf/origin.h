/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a segment that comes from a tap is of the guest itself, or of somebody behind it
 * for whom the guest forwards. What is delivered to the guest may still be lost on the way
 * to an endpoint behind it, so only the guest itself is acknowledged for.
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

/* Whether frames from this address may be of somebody else than the guest: with its own
 * address unknown, those of a tap at which several were seen.
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

/* A router takes one from the TTL (RFC 791 3.2; RFC 8200 3), so what has the TTL that
 * systems send with was not forwarded. A connection's does not change on the way either.
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

/* Why the guest's segment is not its own, or SNOOP_TOUCHED. @f: its flow, if there is one. */
static __always_inline __u8 not_its_own(const struct snoop_config *c,
					const struct snoop_flow *f,
					const struct segment *s,
					const struct snoop_key *key)
{
	if (is_other_mac(c, s->from))
		return SNOOP_OTHER_MAC;
	if (is_forwarded(c, f, s))
		return SNOOP_FORWARDED;
	/* A flow's does not change. */
	if ((!f || s->flags & TH_SYN) && is_other_address(c, key))
		return SNOOP_OTHER_ADDRESS;
	return SNOOP_TOUCHED;
}

/* Whether the peer is one that user space has taken its trust from. */
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
