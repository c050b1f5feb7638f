/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Copies of early-acknowledged segments. The sender drops acknowledged data,
 * and a guest may drop data inside its window. So the host keeps each segment
 * until the guest has acknowledged it, and user space retransmits the data that
 * the guest lacks.
 *
 * A copy is made before the delivery: without room for the copy, there is no
 * early ACK. If a segment is not acknowledged early after all, its copy is
 * dropped when the guest acknowledges the segment itself.
 */
#ifndef TAUT_RETAIN_H
#define TAUT_RETAIN_H

#include "segment.h"

/*
 * The frame sizes of copies: a BPF program can only reserve constant sizes.
 */
#define COPY_FRAME		1600
#define COPY_JUMBO		9216
#define COPY_GSO		(64 * 1024 + HEADERS_MAX)

/* User space sets the size, and shares one ring buffer among all taps. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} retained SEC(".maps");

/*
 * Whether user space sleeps and has to be woken. While there are copies, it
 * polls, because a wake-up costs more than a copy. All taps share this map,
 * too.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} asleep SEC(".maps");

static __always_inline __u64 wakeup(void)
{
	__u32 zero = 0, *sleeps = bpf_map_lookup_elem(&asleep, &zero);

	if (!sleeps || !*sleeps)
		return BPF_RB_NO_WAKEUP;
	*sleeps = 0;
	return BPF_RB_FORCE_WAKEUP;
}

/* Makes a copy in a record that has room for a frame of @most bytes. */
static __always_inline int copy_of(struct __sk_buff *skb,
				   const struct segment *s,
				   const struct snoop_key *key, __u64 now,
				   __u32 begun, __u32 bytes, const __u32 most)
{
	struct snoop_copy *copy;

	copy = bpf_ringbuf_reserve(&retained, sizeof(*copy) + most, 0);
	if (!copy)
		return -1;
	copy->key = *key;
	copy->ifindex = skb->ifindex;
	copy->seq = s->seq;
	copy->len = s->len;
	copy->l4_at = s->l4_at;
	copy->header = s->header;
	copy->gso_size = skb->gso_size;
	copy->begun = begun;
	copy->at_ns = now;
	/*
	 * One less: the verifier of Linux 6.1 does not see that it is not zero.
	 * (The compiler already knows the bound; the verifier does not.)
	 */
	bytes--;
	barrier_var(bytes);
	if (bytes >= most)
		bytes = most - 1;
	barrier_var(bytes);
	bytes++;
	if (bpf_skb_load_bytes(skb, 0, copy + 1, bytes)) {
		bpf_ringbuf_discard(copy, 0);
		return -1;
	}
	bpf_ringbuf_submit(copy, wakeup());
	return 0;
}

/* Retains a copy. Returns 0, or -1 without room. @begun: snoop_flow.begun. */
__noinline int retain(struct __sk_buff *skb, const struct segment *s,
		      const struct snoop_key *key, __u64 now, __u32 begun)
{
	__u32 bytes;

	if (!s || !key)
		return -1;
	bytes = s->l4_at + s->header + s->len;
	if (bytes <= COPY_FRAME)
		return copy_of(skb, s, key, now, begun, bytes, COPY_FRAME);
	if (bytes <= COPY_JUMBO)
		return copy_of(skb, s, key, now, begun, bytes, COPY_JUMBO);
	if (bytes <= COPY_GSO)
		return copy_of(skb, s, key, now, begun, bytes, COPY_GSO);
	return -1;
}

#endif
