/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is known of a flow, and what decides about it (window.h, handshake.h,
 * early_ack.h, guest.h) has in common. Nothing in these files touches a packet, and
 * all of it runs with the flow's lock held, unless it says otherwise.
 */
#ifndef TAUT_FLOW_H
#define TAUT_FLOW_H

#include "segment.h"

#define SCALE_UNKNOWN	15

/* A segment's number that is farther behind is nobody's repetition. */
#define SEQ_BEHIND	(1U << 24)

/* An acknowledgement may be of so many segments while the guest is awake. Four is the
 * least that BBR has in flight, while it looks for the round trip of an empty path.
 */
#define STRETCH_MAX	4

/* Of a run: it began with a gap or a pause, after which the sender may be avoiding
 * congestion with a small window, and not at a start.
 */
#define RUN_GAP		0x80
#define RUN_MAX		(8 * STRETCH_MAX)

/* Without data for so many times as long as a guest is taken to be awake, a run
 * begins anew: the sender may have timed out (Linux does after 200 ms at least), or
 * be as after idling (RFC 5681 4.1).
 */
#define IDLE		8

/* And for more than this part of it, a sender may have waited: a guest that is awake
 * has told of what is held before. (The clock's own ticks may be 4 ms.)
 */
#define WAITED		2

/* Of a time: ticks of 2^20 ns. */
#define TICK_SHIFT	20

/* What the sender is told, or the caller is to do with a guest's segment. */
struct lift {
	__u32 ack;
	__u32 tsecr;
	__u32 reach;	/* of what contradicts an early acknowledgement */
	__u16 window;
	bool begun;	/* it was a handshake until now */
};

/* The place of @seq among those that wrap: what is left from it to @edge. */
static __always_inline __u32 room(__u32 seq, __u32 edge)
{
	return before(seq, edge) ? edge - seq : 0;
}

static __always_inline void bypass(struct snoop_flow *f, enum snoop_bypass why)
{
	f->mode = SNOOP_BYPASS;
	f->bypass = why;
}

static __always_inline __u8 scale_of(const struct snoop_flow *f)
{
	const __u8 both = SNOOP_F_PEER_SCALES | SNOOP_F_VM_SCALES;

	if (!(f->flags & SNOOP_F_VM_SYN) || !(f->flags & SNOOP_F_PEER_SYN))
		return f->scale <= SCALE_MAX ? f->scale : 0;
	return (f->flags & both) == both ? f->scale & 15 : 0;
}

static __always_inline bool has_timestamps(const struct snoop_flow *f)
{
	const __u8 both = SNOOP_F_PEER_TS | SNOOP_F_VM_TS;

	return (f->flags & both) == both;
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) |
		 (a[3] ^ b[3]) | (a[4] ^ b[4]) | (a[5] ^ b[5]));
}

/* Whether the guest will see to it that the segment is of this connection: else
 * it throws it away, whatever is in it (RFC 9293 3.10.7.4, RFC 5961 5.2). How far
 * behind an acknowledgement may be is the widest window that the peer has offered,
 * which is not kept here: one that is behind at all is the guest's to judge.
 */
static __always_inline bool is_acceptable(const struct snoop_flow *f,
					  const struct segment *s)
{
	return same_mac(s->to, f->vm_mac) && !after(s->ack, f->vm_snd) &&
	       !before(s->ack, f->vm_una);
}

/* It goes to the guest and is not promised. Beyond a hole it waits there, and the
 * guest tells of it (SACK) for as long as it has not come to what fills the hole,
 * which may have been promised meanwhile: it is behind it in the ring.
 */
static __always_inline void goes_ahead(struct snoop_flow *f,
				       const struct segment *s)
{
	__u32 end = s->seq + s->len + !!(s->flags & TH_FIN);

	/* (What is no data and no end, ends where it begins.) */
	if (end != s->seq && after(end, f->next_seq) && after(end, f->ahead))
		f->ahead = end;
}

/* The flow's guest and peer have both closed it, and each has the other's FIN. */
static __always_inline bool is_over(const struct snoop_flow *f)
{
	return f->fins == SNOOP_FIN_ALL && !after(f->acked_seq, f->vm_seq);
}

/* Whether the peer's segment says something that is not known. */
static __always_inline bool peer_tells(const struct snoop_flow *f,
				       const struct segment *s)
{
	return s->flags & TH_ACK &&
	       (after(s->ack, f->vm_una) || s->window != f->peer_window ||
		f->fins || s->flags & TH_FIN ||
		(s->options.has_ts && after(s->options.tsval, f->ts_peer)));
}

/* Everything of the peer's that passes tells how late it is there, and what it has
 * of the guest's. (Without the lock where it has no data, and its checksum is known
 * to be right then: see snoop_to_guest.)
 */
static __always_inline void hear_peer(struct snoop_flow *f,
				      const struct segment *s)
{
	__u32 edge = after(f->grown_edge, f->rcv_edge) ? f->grown_edge
							: f->rcv_edge;

	/* What the guest will not look at tells it nothing. (In mid-flow the edge
	 * may be farther than is known; what is beyond it sets no time there
	 * either, for it does not come in order: RFC 7323 4.3.)
	 */
	if (!(s->flags & TH_ACK) || !is_acceptable(f, s) ||
	    after(s->seq, edge) || before(s->seq, f->vm_seq - SEQ_BEHIND))
		return;
	if (s->options.has_ts && after(s->options.tsval, f->ts_peer))
		f->ts_peer = s->options.tsval;
	f->vm_una = s->ack;
	f->peer_window = s->window;
	if (s->flags & TH_FIN) {
		f->peer_fin = s->seq + s->len + 1;
		f->fins |= SNOOP_FIN_PEER;
	}
	if (f->fins & SNOOP_FIN_VM && !before(s->ack, f->vm_fin))
		f->fins |= SNOOP_FIN_VM_ACKED;
}

/* The guest has sent something. */
static __always_inline void hear_of_guest(struct snoop_flow *f, __u64 now)
{
	f->seen_ns = now;
	f->heard = now >> TICK_SHIFT;
	if (!f->heard_since)
		f->awake = f->heard;
	f->heard_since = 1;
}

/* Something is owed from now on, or the guest has taken some of it. */
static __always_inline void owe_from(struct snoop_flow *f, __u64 now)
{
	f->owed = now >> TICK_SHIFT;
	f->heard_since = 0;
}

/* The sender is told of all that is in the ring. */
static __always_inline void acknowledged_early(struct snoop_flow *f, __u64 now)
{
	if (!after(f->acked_seq, f->vm_seq))
		owe_from(f, now);
	f->acked_seq = f->next_seq;
	if (f->acked_seq - f->vm_seq > f->exposed_most)
		f->exposed_most = f->acked_seq - f->vm_seq;
}

/* What the guest's packets are like, and whom it sends them to. */
static __always_inline void see_guest(struct snoop_flow *f,
				      const struct segment *s)
{
	f->tos = s->tos & ~ECN_MASK;
	f->ttl = s->ttl;
	f->vm_word = s->vm_word;
	__builtin_memcpy(f->vm_mac, s->from, sizeof(f->vm_mac));
	__builtin_memcpy(f->peer_mac, s->to, sizeof(f->peer_mac));
}

/* Everything before @first has been acknowledged, and nothing after it is known
 * of. The sender was told of a window of @window bytes.
 */
static __always_inline void begin_at(struct snoop_flow *f, __u32 first,
				     __u32 window)
{
	f->next_seq = first;
	f->acked_seq = first;
	f->vm_seq = first;
	f->ahead = first;
	f->sack_start = first;
	f->sack_end = first;
	f->rcv_edge = first + window;
	f->advertised_edge = f->rcv_edge;
	f->grown_edge = f->rcv_edge;
	f->far_edge = f->rcv_edge;
	f->extra = 0;
	f->extra_older = 0;
	f->extra_mark = first;
	f->run = 0;
	f->held = 0;
	f->stretch_most = STRETCH_MAX;
}

#endif
