// SPDX-License-Identifier: GPL-2.0-only
/*
 * Early SYN: reports a client's SYN to the relay when it arrives, a round trip
 * before accept() can return (pied-piper 3.2, improvement 1).
 *
 * The program runs at the ingress of a device, before the kernel's own TCP. It
 * neither changes nor drops packets. It only writes events, limited by a
 * ceiling on events per second and by the size of the ring.
 */
#include <linux/pkt_cls.h>

#include "../bpf/forwarded.h"
#include "../bpf/tcp_headers.h"
#include "early_syn.h"

#define RING_BYTES	(256 * 1024)
#define WATCHED_MAX	256
#define SECOND_NS	1000000000ULL

/* The maximum number of events per second from all devices and CPUs. */
const volatile __u32 events_per_second SEC(".rodata.config") = 20000;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WATCHED_MAX);
	__type(key, struct early_syn_watch);
	__type(value, __u32);
} watched SEC(".maps");

/* The rules by which transparent forwards intercept connections. The value is
 * the number under which the forward's SYNs are reported, or
 * EARLY_SYN_UNREPORTED if they are not.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, RULES_MAX);
	__type(key, struct intercept_rule);
	__type(value, __u32);
} intercepted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_EARLY_SYN);
	__type(key, __u32);
	__type(value, __u64);
} exits SEC(".maps");

/* The current second and the events reported in it. All CPUs share them,
 * because the ceiling applies to the machine.
 */
static __u64 second;
static __u64 in_second;

/* Returns whether the kernel would forward the packet to another machine. */
static __always_inline bool passes_through(struct __sk_buff *skb,
					   const struct tcp_found *found)
{
	long result = route_of(skb, found);

	return result != BPF_FIB_LKUP_RET_NOT_FWDED &&
	       result != BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Counts an event and returns whether it exceeds the ceiling. The count is
 * coarse: the first event of a second resets it and may lose concurrent counts
 * of other CPUs.
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
	struct early_syn_watch to = {};
	struct tcp_found found = {};
	__u32 *listener;
	__u32 local = EARLY_SYN_UNREPORTED;
	__u32 passing = EARLY_SYN_UNREPORTED;
	__u32 number;
	__u64 now;

	/* Frames for another MAC belong to a bridge or macvlan. Those devices
	 * see the frame again themselves once it is theirs.
	 */
	if (skb->pkt_type != PACKET_HOST)
		return EARLY_SYN_OTHER_HOST;
	switch (find_tcp(skb, &found)) {
	case TCP_FOUND:
		break;
	case TCP_NONE:
		return EARLY_SYN_NOT_TCP;
	case TCP_FRAGMENT:
		return EARLY_SYN_FRAGMENT;
	case TCP_SOURCE_ROUTED:
		return EARLY_SYN_NOT_LOCAL;
	default:
		return EARLY_SYN_MALFORMED;
	}
	if (!is_first_segment(&found.tcp))
		return EARLY_SYN_NOT_SYN;

	__builtin_memcpy(to.addr, found.daddr, sizeof(to.addr));
	to.port = found.tcp.dest;
	to.version = found.version;
	listener = bpf_map_lookup_elem(&watched, &to);
	if (listener) {
		number = *listener;
	} else {
		any.port = to.port;
		any.version = to.version;
		/* Numbers, because the verifier rejects what compilers make of
		 * two pointers that are compared with NULL together.
		 */
		listener = bpf_map_lookup_elem(&watched, &any);
		if (listener)
			local = *listener;
		listener = find_rule(&intercepted, skb, &found);
		if (listener)
			passing = *listener;
		if (local == EARLY_SYN_UNREPORTED &&
		    passing == EARLY_SYN_UNREPORTED)
			return EARLY_SYN_NOT_WATCHED;
		/* A listener on every address has what is for this machine, a
		 * transparent forward what would leave it.
		 */
		if (passes_through(skb, &found)) {
			if (passing == EARLY_SYN_UNREPORTED)
				return EARLY_SYN_NOT_LOCAL;
			number = passing;
		} else {
			if (local == EARLY_SYN_UNREPORTED)
				return EARLY_SYN_NOT_WATCHED;
			number = local;
		}
	}

	now = bpf_ktime_get_ns();
	if (over_ceiling(now))
		return EARLY_SYN_OVER_CEILING;
	event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);
	if (!event)
		return EARLY_SYN_RING_FULL;
	event->seen_ns = now;
	__builtin_memcpy(event->saddr, found.saddr, sizeof(event->saddr));
	__builtin_memcpy(event->daddr, found.daddr, sizeof(event->daddr));
	event->sport = found.tcp.source;
	event->dport = found.tcp.dest;
	event->version = found.version;
	event->listener = number;
	event->ifindex = skb->ifindex;
	bpf_ringbuf_submit(event, 0);
	return EARLY_SYN_EMITTED;
}

/* The section is "tc", not "tcx/ingress", because the same program also serves
 * kernels that have only clsact. TC_ACT_UNSPEC equals TCX_NEXT.
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

/* Makes the object describe these types, so that a test can compare them. */
const struct early_syn_event *describe_event __attribute__((unused));
const enum early_syn_exit *describe_exit __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";
