/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Decides whether a segment that is put into the ring may be acknowledged for
 * the guest.
 */
#ifndef TAUT_EARLY_ACK_H
#define TAUT_EARLY_ACK_H

#include "window.h"

/*
 * Returns whether the guest has made no progress for so long that early ACKs
 * stop.
 */
static __always_inline bool is_overdue(const struct snoop_flow *f,
				       const struct snoop_config *c, __u64 now)
{
	return after(f->acked_seq, f->vm_seq) &&
	       (__s64)(__s32)((__u32)(now >> TICK_SHIFT) - f->owed) >
		       (__s64)c->exposure_ticks;
}

/*
 * Returns whether the segment is likely to be acknowledged, while another CPU
 * may be changing the flow. Only the decision under the lock counts; this check
 * avoids taking the lock before the delivery.
 */
static __always_inline bool might_acknowledge(const struct snoop_flow *f,
					      const struct snoop_config *c,
					      const struct segment *s, __u64 now)
{
	return f->mode >= SNOOP_ACTIVE && f->mode <= SNOOP_NO_BUF &&
	       s->seq == f->next_seq && s->len &&
	       s->seq + s->len - f->vm_seq <= c->exposure &&
	       !is_overdue(f, c, now) &&
	       (s->flags | TH_PSH) == (TH_ACK | TH_PSH) &&
	       !s->options.bypass && !s->options.other &&
	       (c->ecn || !(s->tos & ECN_MASK)) &&
	       !after(s->seq + s->len, early_ack_edge(f, c));
}

/*
 * Returns the buffer space that a segment takes in the guest beyond its bytes.
 * The guest's kernel accounts for whole buffers (some 2,300 bytes for a segment
 * of 1,448, or of one byte) and advertises half of its memory as window. Since
 * Linux 6.6, it advertises the share that data had in the buffers it has seen.
 */
static __always_inline __u32 extra_of(const struct snoop_flow *f,
				      const struct segment *s)
{
	return s->len < f->mss - f->mss / 5 ? f->mss - s->len : 0;
}

/*
 * THE decision whether a segment that is put into the ring may be acknowledged.
 * Its delivery into the ring moves NEXT_SEQ (see delivered()).
 */
static __always_inline enum snoop_to_guest
may_acknowledge(struct snoop_flow *f, const struct snoop_config *c,
		const struct segment *s, __u64 now)
{
	__u32 edge = early_ack_edge(f, c), charged, offered;

	if (f->mode == SNOOP_BYPASS)
		return SNOOP_TG_BYPASS;
	if (!(f->flags & SNOOP_F_LEARNT) || f->mode == SNOOP_SYN)
		return SNOOP_TG_UNLEARNT;
	/* A forged segment must not change the mode. */
	if (after(s->seq, edge) || before(s->seq, f->vm_seq - SEQ_BEHIND))
		return SNOOP_TG_OUT_OF_ORDER;
	if (!is_acceptable(f, s))
		return SNOOP_TG_MISDIRECTED;
	if (s->flags & TH_FIN) {
		bypass(f, SNOOP_CLOSING);
		return SNOOP_TG_BYPASS;
	}
	if (s->flags & TH_URG) {
		bypass(f, SNOOP_URGENT);
		return SNOOP_TG_BYPASS;
	}
	if (s->options.bypass || s->options.other) {
		bypass(f, s->options.bypass ? s->options.bypass : SNOOP_OPTION);
		return SNOOP_TG_BYPASS;
	}
	if (!s->len)
		return SNOOP_TG_NO_DATA;
	if (s->tos & ECN_MASK && !c->ecn) {
		bypass(f, SNOOP_ECT);
		return SNOOP_TG_BYPASS;
	}
	if (f->mode == SNOOP_UNPROVEN)
		return SNOOP_TG_UNLEARNT;
	if (s->seq != f->next_seq) {
		f->mode = SNOOP_UNEXPECTED_SEQ;
		return SNOOP_TG_OUT_OF_ORDER;
	}
	if ((s->tos & ECN_MASK) == ECN_CE || s->ae ||
	    s->flags & (TH_CWR | TH_ECE)) {
		f->mode = SNOOP_UNEXPECTED_SEQ;
		return SNOOP_TG_CE;
	}
	if (s->flags != TH_ACK && s->flags != (TH_ACK | TH_PSH)) {
		f->mode = SNOOP_UNEXPECTED_SEQ;
		return SNOOP_TG_OPTIONS;
	}
	/* In a flow found in mid-flow, the first segment shows the option. */
	if (f->flags & SNOOP_F_VM_TS && !(f->flags & SNOOP_F_PEER_SYN) &&
	    s->options.has_ts)
		f->flags |= SNOOP_F_PEER_TS;
	if (s->options.has_ts != has_timestamps(f)) {
		f->mode = SNOOP_UNEXPECTED_SEQ;
		return SNOOP_TG_OPTIONS;
	}
	/*
	 * The guest drops an old segment, and it may have seen everything
	 * before this segment by the time it reaches it (PAWS, RFC 7323 5.3).
	 */
	if (s->options.has_ts && before(s->options.tsval, f->ts_peer)) {
		f->mode = SNOOP_UNEXPECTED_SEQ;
		return SNOOP_TG_OPTIONS;
	}
	if (after(s->seq + s->len, edge)) {
		f->mode = SNOOP_NO_BUF;
		return SNOOP_TG_BEYOND_WINDOW;
	}
	if (s->seq + s->len - f->vm_seq > c->exposure) {
		f->mode = SNOOP_NO_BUF;
		return SNOOP_TG_EXPOSURE;
	}
	if (is_overdue(f, c, now)) {
		f->mode = SNOOP_NO_BUF;
		return SNOOP_TG_OVERDUE;
	}
	/*
	 * A sender ends each window that it fills with a small segment: an
	 * eighth of the window is allowed for these. With a whole window, that
	 * takes 9/8 * 2,304 / 1,448 = 1.8 times the window of memory, and twice
	 * the window is available.
	 */
	charged = s->seq + s->len - f->vm_seq + f->extra + f->extra_older;
	charged += extra_of(f, s);
	offered = room(f->vm_seq, edge);
	if (charged > offered + offered / 8 + f->mss) {
		f->mode = SNOOP_NO_BUF;
		return SNOOP_TG_BUDGET;
	}
	return SNOOP_TG_ACKED;
}

/*
 * Returns the number of segments that one ACK may cover. The sender should not
 * have to wait for an ACK. From a start, its congestion window is one segment,
 * plus one for each ACK (RFC 5681 3.1); after a gap or a pause, it may be two,
 * plus one per window. Other limits on its data in flight are unknown until it
 * was seen to wait (see guest_tells()).
 */
static __always_inline __u32 stretch_of(const struct snoop_flow *f)
{
	__u32 stretch = f->run & RUN_GAP ? 1 + (f->run & ~RUN_GAP) / 8 : f->run;

	if (stretch > f->stretch_most)
		stretch = f->stretch_most;
	return stretch ? stretch : 1;
}

/*
 * An awake guest acknowledges by itself, but the next tick may take its CPU
 * away. So the host still acknowledges, several full segments at a time: an ACK
 * per segment costs the way back and, many times that, the sender, and gains
 * nothing. A sender that waits for held segments waits for the guest, as it
 * would without snoop. It does not have to wait where the need is visible: it
 * has pushed, has no window for that much data again, or is filling a gap (RFC
 * 5681 4.2).
 */
static __always_inline bool may_be_held(const struct snoop_flow *f,
					const struct snoop_config *c,
					const struct segment *s, __u64 now)
{
	__u32 stretch = stretch_of(f);

	return (__u32)(now >> TICK_SHIFT) - f->heard < c->awake_ticks &&
	       !(s->flags & TH_PSH) && s->len <= f->mss && !extra_of(f, s) &&
	       f->held + 1 < stretch && !before(f->next_seq, f->ahead) &&
	       !before(f->advertised_edge, f->next_seq + stretch * f->mss);
}

/* Starts a run with the first segment after a gap or a pause. */
static __always_inline void begin_run(struct snoop_flow *f,
				      const struct snoop_config *c, __u64 now)
{
	__u32 tick = now >> TICK_SHIFT;

	if (f->mode != SNOOP_ACTIVE)
		f->run = RUN_GAP;
	/*
	 * A retransmission of the next segment is not a gap here, and a new
	 * flow has had no data yet.
	 */
	else if (f->acked_bytes && (tick - f->fed) / IDLE >= c->awake_ticks)
		f->run = RUN_GAP;
	f->fed = tick;
}

/* Handles a segment that is in the ring and may be acknowledged. */
static __always_inline enum snoop_to_guest
delivered(struct snoop_flow *f, const struct snoop_config *c,
	  const struct segment *s, __u64 now, struct lift *lift)
{
	if (f->next_seq == f->acked_seq)
		f->held_ts = s->options.tsval;
	f->next_seq += s->len;
	f->frame = f->frame ? f->frame - f->frame / 8 + s->len / 8 : s->len;
	f->extra += extra_of(f, s);
	begin_run(f, c, now);
	f->mode = SNOOP_ACTIVE;
	grow(f, c);
	if (may_be_held(f, c, s, now)) {
		f->held++;
		return SNOOP_TG_HELD;
	}
	/* Only full segments open a congestion window. */
	if (!(s->flags & TH_PSH) && !extra_of(f, s) &&
	    (f->run & ~RUN_GAP) < RUN_MAX)
		f->run++;
	lift->ack = f->next_seq;
	/* The TSval of the first acknowledged segment (RFC 7323 4.3). */
	lift->tsecr = f->held_ts;
	lift->window = window_from(f, c, f->next_seq, early_ack_edge(f, c));
	f->acked_segments += f->held + 1;
	f->held = 0;
	f->acked_bytes += f->next_seq - f->acked_seq;
	acknowledged_early(f, now);
	f->advertised_edge = f->next_seq + ((__u32)lift->window << scale_of(f));
	return SNOOP_TG_ACKED;
}

/* Handles a segment that is not in the ring, or that the guest would not take.
 */
static __always_inline void go_offline(struct snoop_flow *f,
				       const struct segment *s,
				       enum snoop_mode mode)
{
	if (f->mode >= SNOOP_ACTIVE && f->mode <= SNOOP_NO_BUF &&
	    s->seq == f->next_seq)
		f->mode = mode;
}

/*
 * Applies a segment to its flow, whatever its exit. @exit is the progress of
 * put_into_ring() (SNOOP_TG_ACKED: the segment is in the ring). Returns the exit
 * to count.
 */
static __always_inline enum snoop_to_guest
settle(struct snoop_flow *f, const struct snoop_config *c,
       const struct segment *s, enum snoop_to_guest exit, __u64 now,
       struct lift *lift)
{
	enum snoop_to_guest decided;

	switch (exit) {
	case SNOOP_TG_ACKED:
		/*
		 * Early ACKs were turned off meanwhile. User space next checks,
		 * under this lock, what the guest has yet to take.
		 */
		if (!c->on) {
			go_offline(f, s, SNOOP_UNEXPECTED_SEQ);
			exit = SNOOP_TG_OFF;
			break;
		}
		/* fallthrough */
	case SNOOP_TG_OVERTAKEN:
		decided = may_acknowledge(f, c, s, now);
		if (decided != SNOOP_TG_ACKED)
			exit = decided;
		else if (exit == SNOOP_TG_ACKED)
			return delivered(f, c, s, now, lift);
		break;
	case SNOOP_TG_OFF:
		/* From now on the guest acknowledges by itself. */
		if (s->flags & TH_FIN && is_acceptable(f, s))
			bypass(f, SNOOP_CLOSING);
		else if (s->len && f->mode == SNOOP_ACTIVE)
			f->mode = SNOOP_UNEXPECTED_SEQ;
		break;
	case SNOOP_TG_IN_PARTS:
		go_offline(f, s, SNOOP_UNEXPECTED_SEQ);
		break;
	case SNOOP_TG_CHECKSUM:
		go_offline(f, s, SNOOP_UNEXPECTED_SEQ);
		return exit;
	case SNOOP_TG_RING_FULL:
		go_offline(f, s, SNOOP_NO_BUF);
		return exit;
	default:
		go_offline(f, s, SNOOP_NO_BUF);
		break;
	}
	goes_ahead(f, s);
	return exit;
}

#endif
