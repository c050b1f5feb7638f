/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a segment that is put into the ring may be acknowledged for the guest.
 */
#ifndef TAUT_EARLY_ACK_H
#define TAUT_EARLY_ACK_H

#include "window.h"

/* Whether the guest has taken nothing of what was acknowledged early for so long that
 * nothing more is to be.
 */
static __always_inline bool is_overdue(const struct snoop_flow *f,
				       const struct snoop_config *c, __u64 now)
{
	return after(f->acked_seq, f->vm_seq) &&
	       (__s64)(__s32)((__u32)(now >> TICK_SHIFT) - f->owed) >
		       (__s64)c->exposure_ticks;
}

/* Whether it looks as if the segment might be acknowledged, at a moment at
 * which somebody else may be changing the flow. Only what is decided under the
 * lock counts; this spares one that would be taken before delivery.
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

/* What a segment takes of the guest's buffer beyond its bytes: the guest's kernel
 * accounts for buffers (some 2,300 bytes for a segment of 1,448, or of one byte),
 * and offers half of its memory as window; since Linux 6.6 the part that data had
 * of the buffers that it has seen.
 */
static __always_inline __u32 extra_of(const struct snoop_flow *f,
				      const struct segment *s)
{
	return s->len < f->mss - f->mss / 5 ? f->mss - s->len : 0;
}

/* THE place where it is decided whether a segment that is put into the ring may
 * be acknowledged. That it is in the ring is what moves NEXT_SEQ (see
 * delivered()).
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
	/* A stranger's does not change the mode. */
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
	/* In mid-flow it is the first segment that tells. */
	if (f->flags & SNOOP_F_VM_TS && !(f->flags & SNOOP_F_PEER_SYN) &&
	    s->options.has_ts)
		f->flags |= SNOOP_F_PEER_TS;
	if (s->options.has_ts != has_timestamps(f)) {
		f->mode = SNOOP_UNEXPECTED_SEQ;
		return SNOOP_TG_OPTIONS;
	}
	/* An old one would be thrown away by the guest, which by the time it comes
	 * to it may have seen all that went before (PAWS, RFC 7323 5.3).
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
	/* A sender ends each window that it fills with one that is small: of
	 * these an eighth is let in. That many and a whole window take 9/8 * 2,304
	 * / 1,448 = 1.8 times the window of memory, and there is twice of it.
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

/* How many segments an acknowledgement may be of. The sender should not come to wait
 * for one: from a start its congestion window is a segment, and one more for each
 * acknowledgement (RFC 5681 3.1); since a gap or a pause it may be two, and one more
 * for as many as it is. What else bounds what it has in flight cannot be known before
 * it was seen to wait (see guest_tells()).
 */
static __always_inline __u32 stretch_of(const struct snoop_flow *f)
{
	__u32 stretch = f->run & RUN_GAP ? 1 + (f->run & ~RUN_GAP) / 8 : f->run;

	if (stretch > f->stretch_most)
		stretch = f->stretch_most;
	return stretch ? stretch : 1;
}

/* While the guest is awake it need not be spoken for, but it may be put off its CPU
 * with the next tick. So it is spoken for, of several full segments at a time: to
 * tell of each costs the way back, and the sender, many times as much, and gains
 * nothing. Should the sender wait for what is held, it waits for the guest, as without
 * us. It is not made to where that can be seen: it has pushed, has no window for as
 * many again, or is filling a gap (RFC 5681 4.2).
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

/* A segment that is the first after a gap, or after a pause, begins a run. */
static __always_inline void begin_run(struct snoop_flow *f,
				      const struct snoop_config *c, __u64 now)
{
	__u32 tick = now >> TICK_SHIFT;

	if (f->mode != SNOOP_ACTIVE)
		f->run = RUN_GAP;
	/* What was lost and is the next one is no gap here. A flow that has just
	 * begun has been fed nothing.
	 */
	else if (f->acked_bytes && (tick - f->fed) / IDLE >= c->awake_ticks)
		f->run = RUN_GAP;
	f->fed = tick;
}

/* The segment is in the ring, and may be acknowledged. */
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
	/* A window grows with what fills it. */
	if (!(s->flags & TH_PSH) && !extra_of(f, s) &&
	    (f->run & ~RUN_GAP) < RUN_MAX)
		f->run++;
	lift->ack = f->next_seq;
	/* Of what is acknowledged, the first (RFC 7323 4.3). */
	lift->tsecr = f->held_ts;
	lift->window = window_from(f, c, f->next_seq, early_ack_edge(f, c));
	f->acked_segments += f->held + 1;
	f->held = 0;
	f->acked_bytes += f->next_seq - f->acked_seq;
	acknowledged_early(f, now);
	f->advertised_edge = f->next_seq + ((__u32)lift->window << scale_of(f));
	return SNOOP_TG_ACKED;
}

/* It is not in the ring, or the guest would not take it from there. */
static __always_inline void go_offline(struct snoop_flow *f,
				       const struct segment *s,
				       enum snoop_mode mode)
{
	if (f->mode >= SNOOP_ACTIVE && f->mode <= SNOOP_NO_BUF &&
	    s->seq == f->next_seq)
		f->mode = mode;
}

/*
 * What a segment does to its flow on the way to the guest, in one place for all
 * exits. @exit: how far the attempt to put it into the ring came (SNOOP_TG_ACKED:
 * it is there). Returns the exit that counts.
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
		 * Turned off meanwhile: user space looks at what this flow is
		 * owed next, under its lock.
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
