/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets that this machine would forward: what the kernel would do with one,
 * and the interception rules that it may match.
 */
#ifndef TAUT_FORWARDED_H
#define TAUT_FORWARDED_H

#include "../intercept/intercept.h"
#include "tcp_headers.h"

/* The maximum number of rules, of all transparent forwards. */
#define RULES_MAX	4096

/* Returns the result of bpf_fib_lookup() for the packet. */
static __always_inline long route_of(struct __sk_buff *skb,
				     const struct tcp_found *found)
{
	struct bpf_fib_lookup route = {};

	route.l4_protocol = IPPROTO_TCP;
	route.ifindex = skb->ifindex;
	if (found->version == 4) {
		route.family = AF_INET;
		__builtin_memcpy(&route.ipv4_src, found->saddr, 4);
		__builtin_memcpy(&route.ipv4_dst, found->daddr, 4);
	} else {
		route.family = AF_INET6;
		__builtin_memcpy(route.ipv6_src, found->saddr, 16);
		__builtin_memcpy(route.ipv6_dst, found->daddr, 16);
	}
	return bpf_fib_lookup(skb, &route, sizeof(route), 0);
}

/* Returns what the table of rules maps the packet to: by the rules of its
 * device, or by those of any device.
 */
static __always_inline void *find_rule(void *rules, struct __sk_buff *skb,
				       const struct tcp_found *found)
{
	struct intercept_rule key = {};
	void *value;

	key.prefix_bits = INTERCEPT_EXACT_BITS +
			  (found->version == 4 ? 32 : 128);
	key.ifindex = skb->ifindex;
	key.port = found->tcp.dest;
	key.version = found->version;
	__builtin_memcpy(key.addr, found->daddr, sizeof(key.addr));
	value = bpf_map_lookup_elem(rules, &key);
	if (value)
		return value;
	key.ifindex = 0;
	return bpf_map_lookup_elem(rules, &key);
}

#endif
