// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interception: delivers connections that this machine would forward to the
 * relay instead, although they are addressed to other machines.
 *
 * The program runs at the ingress of a device. It gives an intercepted packet
 * its socket (bpf_sk_assign) and a mark. The socket alone is not enough:
 * routing comes next and would forward a packet for another machine, or drop it
 * because it has a socket. A policy rule for the mark selects a table in which
 * every address is local (docs/design/interception.md).
 *
 * The program intercepts, in this order:
 *
 * 1. packets that have a socket already: the socket of the client's connection
 * or, if the relay borrows clients' addresses, of the upstream connection;
 *
 * 2. first segments that match a rule, and answers to SYN cookies that a
 * listener sent for such segments.
 *
 * All other packets pass unchanged, in particular packets addressed to this
 * machine and packets of connections that are older than the relay.
 */
#include <linux/pkt_cls.h>

#include "../bpf/forwarded.h"
#include "../bpf/tcp_headers.h"
#include "intercept.h"

/* From the enum in the kernel's linux/tcp.h; part of the ABI (TCP_INFO). */
#define TCP_STATE_LISTEN	10

/* Has a section of its own, so that the section contains nothing else. */
const volatile struct intercept_config config SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, RULES_MAX);
	__type(key, struct intercept_rule);
	__type(value, struct intercept_listener);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_INTERCEPT);
	__type(key, __u32);
	__type(value, __u64);
} exits SEC(".maps");

/* Returns INTERCEPT_NEW if the kernel would forward the packet, or the reason
 * why it would not.
 */
static __always_inline enum intercept_exit
passes_through(struct __sk_buff *skb, const struct tcp_found *found)
{
	switch (route_of(skb, found)) {
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return INTERCEPT_LOCAL;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return INTERCEPT_NOT_ROUTING;
	default:
		return INTERCEPT_NEW;
	}
}

static __always_inline struct bpf_sock *
lookup(struct __sk_buff *skb, const struct tcp_found *found,
       const __u8 *daddr, __be16 dport)
{
	struct bpf_sock_tuple tuple = {};

	if (found->version == 4) {
		__builtin_memcpy(&tuple.ipv4.saddr, found->saddr, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, daddr, 4);
		tuple.ipv4.sport = found->tcp.source;
		tuple.ipv4.dport = dport;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4),
					  BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, found->saddr, 16);
	__builtin_memcpy(tuple.ipv6.daddr, daddr, 16);
	tuple.ipv6.sport = found->tcp.source;
	tuple.ipv6.dport = dport;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6),
				  BPF_F_CURRENT_NETNS, 0);
}

static __always_inline bool is_any(const __u8 *addr)
{
	const __u64 *words = (const __u64 *)addr;

	return !words[0] && !words[1];
}

/* Returns whether the segment completes a handshake for which the listener sent
 * a cookie. Such a handshake has no request socket.
 */
static __always_inline bool answers_cookie(struct __sk_buff *skb,
					   const struct tcp_found *found,
					   struct bpf_sock *listener)
{
	struct tcphdr tcp = found->tcp;
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (!tcp.ack || tcp.syn || tcp.rst)
		return false;
	if (found->version == 4) {
		if (load(skb, found->network, &ip, sizeof(ip)))
			return false;
		/* The helper ignores options; it reads only the addresses. */
		ip.ihl = 5;
		return !bpf_tcp_check_syncookie(listener, &ip, sizeof(ip),
						&tcp, sizeof(tcp));
	}
	if (load(skb, found->network, &ip6, sizeof(ip6)))
		return false;
	return !bpf_tcp_check_syncookie(listener, &ip6, sizeof(ip6), &tcp,
					sizeof(tcp));
}

static __always_inline enum intercept_exit look(struct __sk_buff *skb)
{
	struct intercept_listener *to;
	struct tcp_found found = {};
	enum intercept_exit exit;
	struct bpf_sock *sk;
	const __u8 *addr;

	/* Frames for another MAC belong to a bridge or macvlan. Those devices
	 * see the frame again themselves once it is theirs.
	 */
	if (skb->pkt_type != PACKET_HOST)
		return INTERCEPT_OTHER_HOST;
	switch (find_tcp(skb, &found)) {
	case TCP_FOUND:
		break;
	case TCP_NONE:
		return INTERCEPT_NOT_TCP;
	case TCP_FRAGMENT:
		return INTERCEPT_FRAGMENT;
	case TCP_SOURCE_ROUTED:
		return INTERCEPT_NO_RULE;
	default:
		return INTERCEPT_MALFORMED;
	}

	to = find_rule(&rules, skb, &found);
	if (!to && !config.borrows)
		return INTERCEPT_NO_RULE;
	/* The machine's own services are not intercepted. A socket that listens
	 * on every address would match packets for any of them.
	 */
	exit = passes_through(skb, &found);
	if (exit != INTERCEPT_NEW)
		return to ? exit : INTERCEPT_NO_RULE;

	sk = lookup(skb, &found, found.daddr, found.tcp.dest);
	if (sk && sk->state != TCP_STATE_LISTEN) {
		exit = INTERCEPT_KNOWN;
		goto give;
	}
	if (sk)
		bpf_sk_release(sk);
	if (!to)
		return INTERCEPT_NO_RULE;

	addr = is_any(to->addr) ? found.daddr : to->addr;
	sk = lookup(skb, &found, addr, to->port);
	if (!sk)
		return INTERCEPT_NO_LISTENER;
	if (sk->state != TCP_STATE_LISTEN) {
		bpf_sk_release(sk);
		return INTERCEPT_NO_LISTENER;
	}
	if (is_first_segment(&found.tcp)) {
		exit = INTERCEPT_NEW;
	} else if (answers_cookie(skb, &found, sk)) {
		exit = INTERCEPT_COOKIE;
	} else {
		bpf_sk_release(sk);
		return INTERCEPT_FOREIGN;
	}
give:
	if (bpf_sk_assign(skb, sk, 0))
		exit = INTERCEPT_NOT_GIVEN;
	else
		skb->mark = config.mark;
	bpf_sk_release(sk);
	return exit;
}

SEC("tc")
int intercept(struct __sk_buff *skb)
{
	__u32 exit = look(skb);
	__u64 *count = bpf_map_lookup_elem(&exits, &exit);

	if (count)
		(*count)++;
	return TC_ACT_UNSPEC;
}

/* Makes the object describe these types, so that a test can compare them. */
const struct intercept_rule *describe_rule __attribute__((unused));
const struct intercept_listener *describe_listener __attribute__((unused));
const enum intercept_exit *describe_exit __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";
