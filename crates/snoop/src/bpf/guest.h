/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Learns the state of the guest from its segments, and decides whether they
 * pass.
 */
#ifndef TAUT_GUEST_H
#define TAUT_GUEST_H

#include "window.h"

/*
 * A guest that is heard this long after data was put into its ring, in ticks of
 * 2^20 ns, has had time to take the data: several time slices of a scheduler.
 */
#define RUNNING_TICKS	96

/* Flags in snoop_flow.told. */
#define TOLD_MET	0x01	/* the flow begins with this segment */
#define TOLD_PROOF	0x02	/* the segment proves that the connection exists */
#define TOLD_ON		0x04	/* early ACKs are allowed */

/* Returns whether the guest's right edge is a unit of the scale or more behind. */
static __always_inline bool retreats(const struct snoop_flow *f, __u32 was_edge)
{
	return before(f->rcv_edge + (1U << scale_of(f)) - 1, was_edge);
}

/*
 * Returns whether the guest retracts its window (SNOOP_CONTRADICTED), or seems
 * to lack data that is in its ring (SNOOP_DOUBT). The guest may then have lost
 * early-acknowledged data:
 *
 *   - the guest is behind, and its right edge retreats, or is before the end of
 *     the data in its ring. A receiver must not shrink its window (RFC 9293
 *     3.8.6); Linux does so after it dropped data for lack of buffer.
 *   - the guest is behind, repeats itself, and has been running for long since
 *     the missing data was put into its ring. A client can cause this by itself,
 *     for example with a timestamp in a packet that is not read here.
 *
 * @was_vm_seq, @was_edge: the flow's state before this segment.
 */
static __always_inline enum snoop_bypass
contradicts(const struct snoop_flow *f, const struct snoop_config *c,
	    const struct segment *s, __u32 was_vm_seq, __u32 was_edge, __u64 now)
{
	if (!before(s->ack, f->next_seq) || before(s->ack, f->vm_seq))
		return SNOOP_NO_BYPASS;
	if (retreats(f, was_edge) ||
	    (!c->guest_rcvbuf && retreats(f, f->next_seq)))
		return SNOOP_CONTRADICTED;
	if (s->ack == was_vm_seq && !s->len && before(s->ack, f->acked_seq) &&
	    !after(f->rcv_edge, was_edge) && f->heard_since &&
	    (__s32)((__u32)(now >> TICK_SHIFT) - f->awake) >= RUNNING_TICKS)
		return SNOOP_DOUBT;
	return SNOOP_NO_BYPASS;
}

/*
 * Learns the guest's state from its segment. @scale_most: the largest scale in
 * the guest's SYNs.
 */
static __always_inline void learn(struct snoop_flow *f,
				  const struct segment *s, __u8 scale_most,
				  __u64 now)
{
	__u32 window;

	if (f->scale == SCALE_UNKNOWN) {
		f->scale = 0;
		begin_at(f, s->ack, s->window);
		f->vm_snd = s->seq;
		f->vm_una = s->seq;
		/*
		 * Data that is already in the ring was not seen. It is within
		 * the window by the widest scale, or within 512 at that scale
		 * if the guest advertises less by now.
		 */
		window = s->window > 512 ? s->window : 512;
		f->ahead = s->ack + (window << SCALE_MAX);
		/*
		 * Timestamps may start at any number, and half of all numbers
		 * are before 0.
		 */
		f->ts_vm = s->options.tsval;
		/* The last of the peer's timestamps that the guest has seen. */
		f->ts_peer = s->options.tsecr;
		f->has_offer = 0;
		f->has_excess = 0;
	} else if (!(f->flags & SNOOP_F_VM_SYN) && f->has_excess &&
		   !before(s->ack, f->excess_end)) {
		/*
		 * The guest has taken what its window allows only by a larger
		 * scale, unless its window has moved there meanwhile.
		 */
		if (after(f->excess_end, f->far_edge + f->mss)) {
			if (f->scale < scale_most)
				f->scale++;
			f->offer_ts = f->ts_vm;
			f->far_edge = s->ack;
		}
		f->has_excess = 0;
	}
	f->flags |= SNOOP_F_LEARNT;
	if (!(f->flags & SNOOP_F_VM_SYN) && s->options.has_ts)
		f->flags |= SNOOP_F_VM_TS;
	if (after(s->ack, f->vm_seq)) {
		/* A sender takes the window of an ACK of new data. */
		if (!f->has_offer) {
			f->has_offer = 1;
			f->offer_ts = s->options.tsval;
		}
		f->vm_seq = s->ack;
		owe_from(f, now);
		if (before(f->ahead, s->ack))
			f->ahead = s->ack;
	}
	if (!before(s->ack, f->vm_seq)) {
		window = (__u32)s->window << scale_of(f);
		f->rcv_edge = s->ack + window;
		if (f->vm_widest < window)
			f->vm_widest = window;
		if (before(f->far_edge, f->rcv_edge))
			f->far_edge = f->rcv_edge;
	}
	if (after(s->ack, f->next_seq))
		f->next_seq = s->ack;
	/*
	 * The guest has all older segments; the segments since then are the
	 * older ones now.
	 */
	if (!before(f->vm_seq, f->extra_mark)) {
		f->extra_older = f->vm_seq == f->next_seq ? 0 : f->extra;
		f->extra = 0;
		f->extra_mark = f->next_seq;
	}
	/*
	 * The data that the guest has beyond a hole. (A first block below the
	 * acknowledgment number reports a duplicate, RFC 2883 4; the earlier
	 * block then stays valid.)
	 */
	if (!before(s->ack, f->vm_seq) &&
	    (!s->options.has_sack || after(s->options.sack_start, s->ack))) {
		f->sack_start = s->options.has_sack ? s->options.sack_start : s->ack;
		f->sack_end = s->options.sack_end;
	}
	if (before(f->vm_snd, s->seq + s->len))
		f->vm_snd = s->seq + s->len;
	if (s->options.has_ts && !before(s->options.tsval, f->ts_vm))
		f->ts_vm = s->options.tsval;
	/*
	 * The guest's own TS.Recent (RFC 7323 4.3). It may come from a segment
	 * that was not read here: the guest drops older segments,
	 * retransmissions too.
	 */
	if (s->options.has_ts && after(s->options.tsecr, f->ts_peer))
		f->ts_peer = s->options.tsecr;
	see_guest(f, s);
}

/*
 * Handles the guest's own ACK of some held segments. If no data has come for
 * long, the sender may have waited for this ACK: with this many held segments
 * in flight, it must not have to wait again. The sender may have a small
 * buffer, or a temporarily small window (as BBR does, to probe the round-trip
 * time of an empty path).
 */
static __always_inline void guest_tells(struct snoop_flow *f,
					const struct snoop_config *c, __u64 now)
{
	__u32 tick = now >> TICK_SHIFT;

	if (f->held && tick - f->fed > c->awake_ticks / WAITED &&
	    f->held < f->stretch_most)
		f->stretch_most = f->held;
}

/* Passes the segment, narrowing a window that is too wide. */
static __always_inline enum snoop_from_guest
pass(struct snoop_flow *f, const struct snoop_config *c, bool on,
     const struct segment *s, struct lift *lift)
{
	__u16 window = s->window;

	if (on)
		window = window_from(f, c, s->ack, f->rcv_edge);
	if (after(s->ack, f->acked_seq)) {
		/*
		 * The segments still held are no older than the acknowledged
		 * one.
		 */
		if (s->options.has_ts && after(s->options.tsecr, f->held_ts))
			f->held_ts = s->options.tsecr;
		f->acked_seq = s->ack;
		/* After a partial ACK, the count stays an upper bound. */
		if (!before(f->acked_seq, f->next_seq))
			f->held = 0;
	}
	if (!before(s->ack, f->acked_seq))
		f->advertised_edge = s->ack + ((__u32)window << scale_of(f));
	if (window >= s->window)
		return SNOOP_FG_PASSED;
	lift->ack = s->ack;
	lift->window = window;
	return SNOOP_FG_NARROWED;
}

/*
 * Returns whether everything that the guest says, with this segment for the
 * first time, was already in an early ACK: passed on, the segment would be a
 * duplicate ACK (RFC 5681 2). A segment that the guest repeats answers
 * something, such as a keepalive.
 */
static __always_inline bool repeats(const struct snoop_flow *f,
				    const struct snoop_config *c,
				    const struct segment *s, __u32 was_vm_seq)
{
	__u32 window = window_from(f, c, s->ack, f->rcv_edge);

	return !s->len && s->ack == f->acked_seq && s->ack != was_vm_seq &&
	       !after(s->ack + (window << scale_of(f)), f->advertised_edge);
}

/*
 * Tracks, in a flow that is closing or in SNOOP_BYPASS, what the guest has and
 * what it can still take.
 */
static __always_inline void follow_to_the_end(struct snoop_flow *f,
					      const struct segment *s, __u64 now)
{
	__u32 end = s->seq + s->len;

	if (s->flags & TH_FIN) {
		f->vm_fin = ++end;
		f->fins |= SNOOP_FIN_VM;
	}
	if (after(end, f->vm_snd))
		f->vm_snd = end;
	if (!(s->flags & TH_ACK))
		return;
	if (after(s->ack, f->vm_seq)) {
		f->vm_seq = s->ack;
		owe_from(f, now);
	}
	if (s->ack == f->vm_seq)
		f->rcv_edge = s->ack + ((__u32)s->window << scale_of(f));
	if (f->fins & SNOOP_FIN_PEER && !before(s->ack, f->peer_fin))
		f->fins |= SNOOP_FIN_PEER_ACKED;
}

/*
 * Handles a segment of the guest that is neither SYN nor RST. @on: early ACKs
 * are allowed.
 */
static __always_inline enum snoop_from_guest
hear_guest(struct snoop_flow *f, const struct snoop_config *c, bool on,
	   const struct segment *s, __u8 scale_most, __u64 now,
	   struct lift *lift)
{
	/*
	 * A connection exists if the guest has taken data or sends some. For a
	 * flow found in mid-flow, the first ACK is no proof: a handshake that
	 * finds no place in the accept queue ends with an ACK, too.
	 */
	bool met = f->scale == SCALE_UNKNOWN;
	bool proof = s->len || s->flags & TH_FIN ||
		     (!met && after(s->ack, f->vm_seq));
	__u32 edge, was_vm_seq = f->vm_seq, was_edge = f->rcv_edge;
	enum snoop_bypass why;

	/* Even in SNOOP_BYPASS, the place in the accept queue is taken. */
	if (f->counted && proof) {
		f->counted = 0;
		lift->begun = true;
	}
	if (f->mode == SNOOP_BYPASS || s->flags & TH_FIN) {
		/* Early-acknowledged data is tracked until the end. */
		follow_to_the_end(f, s, now);
		if (f->mode == SNOOP_BYPASS)
			return SNOOP_FG_BYPASS;
		bypass(f, SNOOP_CLOSING);
		return SNOOP_FG_FIN;
	}
	if (!(s->flags & TH_ACK) || f->mode == SNOOP_SYN)
		return SNOOP_FG_PASSED;
	if (s->options.bypass) {
		bypass(f, s->options.bypass);
		return SNOOP_FG_BYPASS;
	}
	if (after(s->ack, f->acked_seq))
		guest_tells(f, c, now);
	/*
	 * The verifier checks the rest for each combination of these values if
	 * they are in registers. It does not know what is in memory, so there
	 * it checks the rest once: in less than a third of the time.
	 */
	f->told = (met ? TOLD_MET : 0) | (proof ? TOLD_PROOF : 0) |
		  (on ? TOLD_ON : 0);
	barrier();
	learn(f, s, scale_most, now);
	barrier();
	met = f->told & TOLD_MET;
	proof = f->told & TOLD_PROOF;
	on = f->told & TOLD_ON;
	/* Only the guest's own statements count, not assumptions. */
	why = met || f->mode == SNOOP_UNPROVEN ?
		      SNOOP_NO_BYPASS :
		      contradicts(f, c, s, was_vm_seq, was_edge, now);
	if (why) {
		lift->reach = f->rcv_edge;
		bypass(f, why);
		return why == SNOOP_DOUBT ? SNOOP_FG_DOUBT :
					    SNOOP_FG_CONTRADICTED;
	}
	/* A window that is retracted shows no scale, or that it is too large. */
	if (!met && !(f->flags & SNOOP_F_VM_SYN) && retreats(f, was_edge)) {
		bypass(f, SNOOP_RETRACTED);
		return SNOOP_FG_BYPASS;
	}
	/*
	 * The ring keeps order. So either the data beyond the hole came after
	 * the data that was acknowledged early, or it was there before (see
	 * goes_ahead()) and the guest has yet to reach the early-acknowledged
	 * data. A client may have sent the data beyond the hole in packets that
	 * are not read here, so it is no proof of loss: the flow gets no more
	 * early ACKs, and the guest's next ACKs show whether it takes the data.
	 */
	if (s->options.has_sack && before(s->ack, f->acked_seq) &&
	    after(s->options.sack_start, s->ack) &&
	    after(s->options.sack_end, f->ahead)) {
		lift->reach = s->options.sack_end;
		bypass(f, SNOOP_DOUBT);
		return SNOOP_FG_DOUBT;
	}
	/*
	 * If the guest is the client, its connection exists already. Only the
	 * guest saw data before the proof, so the flow starts with what the
	 * guest has.
	 */
	if (f->mode == SNOOP_UNPROVEN &&
	    (proof || f->flags & SNOOP_F_VM_CLIENT)) {
		f->mode = SNOOP_ACTIVE;
		f->next_seq = f->vm_seq;
	}
	if (!on && f->mode == SNOOP_ACTIVE)
		f->mode = SNOOP_UNEXPECTED_SEQ;
	if (f->mode != SNOOP_ACTIVE || s->options.has_sack ||
	    s->options.other || s->flags & (TH_ECE | TH_CWR | TH_URG))
		return pass(f, c, on, s, lift);
	if (!before(s->ack, f->next_seq)) {
		if (!repeats(f, c, s, was_vm_seq))
			return pass(f, c, on, s, lift);
		f->suppressed++;
		return SNOOP_FG_SUPPRESSED;
	}
	lift->ack = f->next_seq;
	lift->window = window_from(f, c, f->next_seq, early_ack_edge(f, c));
	edge = f->next_seq + ((__u32)lift->window << scale_of(f));
	/*
	 * The segment has no news for the sender. (Held segments are
	 * acknowledged with a later one, or by the guest when it has them.)
	 */
	if (!s->len && !after(s->ack, f->acked_seq) &&
	    !after(edge, f->advertised_edge)) {
		f->suppressed++;
		return SNOOP_FG_SUPPRESSED;
	}
	/* The segment acknowledges the held segments, too. */
	f->acked_segments += f->held;
	f->held = 0;
	f->acked_bytes += f->next_seq - f->acked_seq;
	acknowledged_early(f, now);
	f->advertised_edge = edge;
	f->lifted++;
	return SNOOP_FG_LIFTED;
}

#endif
