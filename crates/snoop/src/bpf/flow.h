/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The state of a flow, shared by window.h, handshake.h, early_ack.h and
 * guest.h. These files touch no packet. Unless stated otherwise, their
 * functions run with the flow's lock held.
 */
#ifndef TAUT_FLOW_H
#define TAUT_FLOW_H

#include "segment.h"

#define SCALE_UNKNOWN	15

/* A segment whose number is farther behind is not a retransmission. */
#define SEQ_BEHIND	(1U << 24)

/*
 * Limit of segments per ACK while the guest is awake. Four is the minimum that
 * BBR has in flight while it probes the round-trip time of an empty path.
 */
#define STRETCH_MAX	4

/*
 * Flag in snoop_flow.run: the run began with a gap or a pause. After that, the
 * sender may be in congestion avoidance with a small window instead of slow
 * start.
 */
#define RUN_GAP		0x80
#define RUN_MAX		(8 * STRETCH_MAX)

/*
 * A pause of this many times the awake time starts another run: the sender may
 * have timed out (Linux does after 200 ms or more), or it restarts after idling
 * (RFC 5681 4.1).
 */
#define IDLE		8

/*
 * If no data came for more than this fraction of the awake time, the sender may
 * have waited: an awake guest acknowledges held segments before that. (The
 * clock's own ticks may be 4 ms.)
 */
#define WAITED		2

/* A flow without a packet for this long makes room for a new one. */
#define SILENT_NS	(60ULL * 1000 * 1000 * 1000)

/*
 * One with a packet within this time does not: another CPU may be handling the
 * packet, and the map gives the place of a removed flow to the next one.
 */
#define RECENT_NS	(100ULL * 1000 * 1000)

/* Times in ticks of 2^20 ns. */
#define TICK_SHIFT	20

/* The ACK for the sender, or the caller's task for a guest's segment. */
struct lift {
	__u32 ack;
	__u32 tsecr;
	__u32 reach;	/* the evidence against an early ACK */
	__u16 window;
	bool begun;	/* the handshake is over with this segment */
};

/* Returns the distance from @seq to @edge, or 0 if @edge is behind. */
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

/*
 * Returns whether the guest will accept the segment as part of this connection;
 * it drops any other (RFC 9293 3.10.7.4, RFC 5961 5.2). The acceptable age of
 * an ACK depends on the widest window that the peer has advertised. The flow
 * does not keep that window, so any ACK that is behind is left to the guest.
 */
static __always_inline bool is_acceptable(const struct snoop_flow *f,
					  const struct segment *s)
{
	return same_mac(s->to, f->vm_mac) && !after(s->ack, f->vm_snd) &&
	       !before(s->ack, f->vm_una);
}

/*
 * Records a segment that goes to the guest without an early ACK. Beyond a hole,
 * the guest queues it and reports it (SACK) until it reaches the data that
 * fills the hole. That data may have been acknowledged early meanwhile, because
 * it is behind the segment in the ring.
 */
static __always_inline void goes_ahead(struct snoop_flow *f,
				       const struct segment *s)
{
	__u32 end = s->seq + s->len + !!(s->flags & TH_FIN);

	/* (A segment without data or FIN ends where it begins.) */
	if (end != s->seq && after(end, f->next_seq) && after(end, f->ahead))
		f->ahead = end;
}

/*
 * Returns whether guest and peer have both closed the flow, and each has the
 * other's FIN.
 */
static __always_inline bool is_over(const struct snoop_flow *f)
{
	return f->fins == SNOOP_FIN_ALL && !after(f->acked_seq, f->vm_seq);
}

/*
 * Returns whether the flow may be removed to make room: the guest has all that
 * was acknowledged early, and the connection is not known to exist, is closing,
 * or has been silent for long.
 */
static __always_inline bool is_idle(const struct snoop_flow *f, __u64 now)
{
	return !after(f->acked_seq, f->vm_seq) && f->seen_ns &&
	       now > f->seen_ns + RECENT_NS &&
	       (f->mode <= SNOOP_UNPROVEN || f->bypass == SNOOP_CLOSING ||
		now > f->seen_ns + SILENT_NS);
}

/* Returns whether the peer's segment has news. */
static __always_inline bool peer_tells(const struct snoop_flow *f,
				       const struct segment *s)
{
	return s->flags & TH_ACK &&
	       (after(s->ack, f->vm_una) || s->window != f->peer_window ||
		f->fins || s->flags & TH_FIN ||
		(s->options.has_ts && after(s->options.tsval, f->ts_peer)));
}

/*
 * Learns from a passing segment of the peer: its clock, and its progress with
 * the guest's data. (Called without the lock if the segment has no data and its
 * checksum is known to be right: see snoop_to_guest.)
 */
static __always_inline void hear_peer(struct snoop_flow *f,
				      const struct segment *s)
{
	__u32 edge = after(f->grown_edge, f->rcv_edge) ? f->grown_edge
							: f->rcv_edge;

	/*
	 * A segment that the guest drops teaches nothing. (In mid-flow, the
	 * edge may be farther than known. A segment beyond the known edge sets
	 * no timestamp in the guest either, because it is not in order: RFC
	 * 7323 4.3.)
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

/*
 * Returns whether the peer's data shows that the guest's windows have a larger
 * scale than assumed, once the guest takes it: the peer knows a window that was
 * seen here (otherwise it may use an earlier offer of the guest, since
 * retracted), and sends a segment more than that would allow. (Into a closed
 * window, it retransmits its first segment.)
 */
static __always_inline bool exceeds_scale(const struct snoop_flow *f,
					  const struct segment *s)
{
	__u32 end = s->seq + s->len;

	return f->flags & SNOOP_F_VM_TS && !(f->flags & SNOOP_F_VM_SYN) &&
	       f->has_offer && !f->has_excess && s->len && s->options.has_ts &&
	       after(s->seq, f->acked_seq) &&
	       after(s->options.tsecr, f->offer_ts) && is_acceptable(f, s) &&
	       after(end, f->far_edge + f->mss) &&
	       before(end, f->vm_seq + (0xffffU << SCALE_MAX));
}

/* Records that the guest has sent something. */
static __always_inline void hear_of_guest(struct snoop_flow *f, __u64 now)
{
	f->seen_ns = now;
	f->heard = now >> TICK_SHIFT;
	if (!f->heard_since)
		f->awake = f->heard;
	f->heard_since = 1;
}

/* Starts the time limit for the guest's progress. */
static __always_inline void owe_from(struct snoop_flow *f, __u64 now)
{
	f->owed = now >> TICK_SHIFT;
	f->heard_since = 0;
}

/* Records an ACK of everything in the ring. */
static __always_inline void acknowledged_early(struct snoop_flow *f, __u64 now)
{
	if (!after(f->acked_seq, f->vm_seq))
		owe_from(f, now);
	f->acked_seq = f->next_seq;
	if (f->acked_seq - f->vm_seq > f->exposed_most)
		f->exposed_most = f->acked_seq - f->vm_seq;
}

/* Learns the headers of the guest's packets, and their destination. */
static __always_inline void see_guest(struct snoop_flow *f,
				      const struct segment *s)
{
	f->tos = s->tos & ~ECN_MASK;
	f->ttl = s->ttl;
	f->vm_word = s->vm_word;
	__builtin_memcpy(f->vm_mac, s->from, sizeof(f->vm_mac));
	__builtin_memcpy(f->peer_mac, s->to, sizeof(f->peer_mac));
}

/*
 * Starts a flow in which everything before @first is acknowledged and nothing
 * after it is known. The sender knows of a window of @window bytes.
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
