/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is decided about a segment, given what is known of its flow. Nothing
 * here touches a packet, and all of it runs with the flow's lock held, unless
 * it says otherwise.
 */
#ifndef TAUT_FLOW_H
#define TAUT_FLOW_H

#include "segment.h"

#define SCALE_UNKNOWN	15
#define SHARE_MAX	(1U << 30)
#define MSS_USUAL	1460	/* where the SYN has not been seen */

/* A segment's number that is farther behind is nobody's repetition. */
#define SEQ_BEHIND	(1U << 24)

/* Segments that each get an acknowledgement, at the start and after each gap. A
 * sender with a small window waits for every one of them.
 */
#define QUICK_SEGMENTS	16

/* Of a time: ticks of 2^20 ns. */
#define TICK_SHIFT	20

/* What the sender is told, or the caller is to do with a guest's segment. */
struct lift {
	__u32 ack;
	__u32 tsecr;
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

/* How far the sender may be told, who knows of @ack: as far as @edge, no wider
 * than the buffer, and with what is in the ring no more than this flow's share
 * of it: what does not fit is lost, and may be repaired only after a timeout.
 * What has been told is not taken back (RFC 9293 3.8.6), and a window that is
 * open is not closed, nor made too small for two segments.
 */
static __always_inline __u16 window_from(const struct snoop_flow *f,
					 const struct snoop_config *c,
					 __u32 ack, __u32 edge)
{
	__u32 most = c->buf_size ? ack + c->buf_size : edge;
	__u32 window, scale = scale_of(f);
	__u64 share;

	if (c->ring) {
		share = f->frame > f->mss ? f->frame : f->mss;
		share = share * c->ring / (c->sharing ? c->sharing : 1);
		if (share > SHARE_MAX)
			share = SHARE_MAX;
		if (after(most, f->vm_seq + (__u32)share))
			most = f->vm_seq + (__u32)share;
	}
	if (before(most, f->told_edge))
		most = f->told_edge;
	if (before(most, ack + 2 * f->mss))
		most = ack + 2 * f->mss;
	/* Up to a whole unit of the scale, and within what there is. */
	window = (room(ack, most) + (1U << scale) - 1) >> scale;
	edge = room(ack, edge) >> scale;
	if (window > edge)
		window = edge;
	return window > 0xffff ? 0xffff : window;
}

/* As far as may be promised: the guest's right edge, or with growth what is
 * known to fit behind what it has acknowledged.
 */
static __always_inline __u32 promise_edge(const struct snoop_flow *f,
					  const struct snoop_config *c)
{
	if (c->guest_rcvbuf && after(f->grown_edge, f->rcv_edge))
		return f->grown_edge;
	return f->rcv_edge;
}

/* The paper's growth: two segments for each that is acknowledged (III-C). */
static __always_inline void grow(struct snoop_flow *f,
				 const struct snoop_config *c)
{
	__u32 most = f->rcv_edge;

	/* In mid-flow windows are known by a lower bound of their scale: what the
	 * guest has not read is more than it seems, and the sender counts what it
	 * is told in the scale that there is.
	 */
	if (!c->guest_rcvbuf || !(f->flags & SNOOP_F_VM_SYN))
		return;
	/* What the guest has not read takes room, and shows in a window that is
	 * less than the widest that it offered. So from its own edge, which does
	 * not move until it reads, there is left what it never offered.
	 */
	if (c->guest_rcvbuf > f->vm_widest)
		most += c->guest_rcvbuf - f->vm_widest;
	if (before(f->grown_edge, f->rcv_edge))
		f->grown_edge = f->rcv_edge;
	f->grown_edge += 2 * f->mss;
	if (after(f->grown_edge, most))
		f->grown_edge = most;
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

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) |
		 (a[3] ^ b[3]) | (a[4] ^ b[4]) | (a[5] ^ b[5]));
}

/* Everything of the peer's that passes tells how late it is there, and what it has
 * of the guest's. (Without the lock, where it has no data.)
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
	if (!same_mac(s->to, f->vm_mac) || after(s->seq, edge) ||
	    before(s->seq, f->vm_seq - SEQ_BEHIND))
		return;
	if (s->options.has_ts && after(s->options.tsval, f->ts_peer))
		f->ts_peer = s->options.tsval;
	if (s->flags & TH_ACK && after(s->ack, f->vm_una) &&
	    !after(s->ack, f->vm_snd))
		f->vm_una = s->ack;
}

/* What the sender is told by the guest's SYN-ACK. */
static __always_inline __u16 syn_window(const struct snoop_config *c,
					const struct segment *s)
{
	return c->buf_size && s->window > c->buf_size ? c->buf_size : s->window;
}

/* Why a connection with this SYN is not touched. */
static __always_inline __u8 reason_in_syn(const struct segment *s)
{
	if (s->options.bypass)
		return s->options.bypass;
	if (s->options.other)
		return SNOOP_OPTION;
	if (s->len)
		return SNOOP_FAST_OPEN;
	if (!(s->flags & TH_ACK) && s->ae && s->flags & (TH_CWR | TH_ECE))
		return SNOOP_ACCECN;
	return SNOOP_TOUCHED;
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
	f->told_seq = first;
	f->vm_seq = first;
	f->ahead = first;
	f->rcv_edge = first + window;
	f->told_edge = f->rcv_edge;
	f->grown_edge = f->rcv_edge;
	f->far_edge = f->rcv_edge;
	f->extra = 0;
	f->extra_older = 0;
	f->extra_mark = first;
	f->quick = QUICK_SEGMENTS;
}

/* A new connection. */
static __always_inline void begin_anew(struct snoop_flow *f, __u8 flags)
{
	f->flags = flags;
	f->mode = SNOOP_SYN;
	f->bypass = SNOOP_TOUCHED;
	f->vm_widest = 0;
	f->frame = 0;
	f->acked_segments = 0;
	f->acked_bytes = 0;
	f->suppressed = 0;
	f->lifted = 0;
}

/* A peer's SYN says what it would be, and the guest whether it is: anybody can
 * forge one, with any number, for a connection that there is.
 */
static __always_inline void see_peer_syn(struct snoop_flow *f,
					 const struct segment *s)
{
	const struct options *o = &s->options;
	__u8 flags = SNOOP_F_PEER_SYN;

	if (o->has_scale)
		flags |= SNOOP_F_PEER_SCALES;
	if (o->has_ts)
		flags |= SNOOP_F_PEER_TS;
	if (!(s->flags & TH_ACK)) {
		/* Repeated, it is of the connection that there is. */
		if (f->flags & SNOOP_F_PEER_SYN && f->begun == s->seq + 1)
			return;
		f->pending = s->seq + 1;
		f->pending_ts = o->tsval;
		f->pending_flags = flags;
		f->pending_bypass = reason_in_syn(s);
		return;
	}
	if (f->mode != SNOOP_SYN || !(f->flags & SNOOP_F_VM_CLIENT) ||
	    s->ack != f->vm_snd)
		return;
	f->flags |= flags;
	f->begun = s->seq + 1;
	f->ts_peer = o->tsval;
	/* The guest's SYN has told of a window, without scale. */
	begin_at(f, s->seq + 1, f->vm_widest);
	f->mode = SNOOP_UNPROVEN;
	if (reason_in_syn(s))
		bypass(f, reason_in_syn(s));
}

static __always_inline void see_guest_syn(struct snoop_flow *f,
					  const struct snoop_config *c,
					  const struct segment *s)
{
	const struct options *o = &s->options;
	__u8 flags = SNOOP_F_VM_SYN, pending = f->pending_flags;
	__u8 why = reason_in_syn(s);
	bool repeated = false;

	if (o->has_scale)
		flags |= SNOOP_F_VM_SCALES;
	if (o->has_ts)
		flags |= SNOOP_F_VM_TS;
	if (!(s->flags & TH_ACK)) {
		/* Repeated, it begins the same anew. */
		begin_anew(f, flags | SNOOP_F_VM_CLIENT);
	} else if (pending && s->ack == f->pending) {
		begin_anew(f, flags | pending);
		f->ts_peer = f->pending_ts;
		why = f->pending_bypass ? f->pending_bypass : why;
	} else if (f->mode == SNOOP_SYN && !(f->flags & SNOOP_F_VM_SYN)) {
		/* The peer's was not seen. The guest answers with a scale and with
		 * timestamps only where they were in it (RFC 7323 2.2, 3.2).
		 */
		begin_anew(f, flags | SNOOP_F_PEER_SYN | SNOOP_F_PEER_SCALES |
				      SNOOP_F_PEER_TS);
		f->ts_peer = o->tsecr;
		repeated = true;
	} else {
		return;
	}
	f->pending_flags = 0;
	f->scale = o->scale > SCALE_MAX ? SCALE_MAX : o->scale;
	f->ts_vm = o->tsval;
	f->vm_snd = s->seq + 1;
	f->vm_una = s->seq;
	f->mss = o->mss ? o->mss : MSS_DEFAULT;
	see_guest(f, s);
	/* A window in a SYN has no scale (RFC 7323 2.2). */
	f->vm_widest = s->window;
	if (s->flags & TH_ACK) {
		f->begun = s->ack;
		begin_at(f, s->ack, s->window);
		f->told_edge = s->ack + syn_window(c, s);
		/* The first one was sent before we were here, and what it called
		 * for may be in the ring: nothing beyond the window, for no other
		 * has been told.
		 */
		if (repeated)
			f->ahead = f->rcv_edge;
		f->flags |= SNOOP_F_LEARNT;
		f->mode = SNOOP_UNPROVEN;
	}
	if (why)
		bypass(f, why);
}

/* A peer's RST ends the connection if its number is the one that is awaited, and
 * else the guest asks whether it is meant (RFC 5961 3.2). Either way there is
 * nothing more to promise; one that is out of the window is a stranger's.
 */
static __always_inline void see_peer_reset(struct snoop_flow *f,
					   const struct segment *s)
{
	if (f->mode == SNOOP_SYN || before(s->seq, f->vm_seq) ||
	    after(s->seq, f->rcv_edge))
		return;
	/* Nobody waits for what was promised any more. */
	if (s->seq == f->next_seq && after(f->told_seq, f->vm_seq))
		f->vm_seq = f->told_seq;
	bypass(f, SNOOP_CLOSING);
}

/* The guest has been seen for the first time, in the middle of a flow. */
static __always_inline void begin_in_midflow(struct snoop_flow *f)
{
	f->mode = SNOOP_UNPROVEN;
	f->scale = SCALE_UNKNOWN;
	f->mss = MSS_USUAL;
}

/* Whether it looks as if the segment might be acknowledged, at a moment at
 * which somebody else may be changing the flow. Only what is decided under the
 * lock counts; this spares one that would be taken before delivery.
 */
static __always_inline bool might_acknowledge(const struct snoop_flow *f,
					      const struct snoop_config *c,
					      const struct segment *s)
{
	return f->mode >= SNOOP_ACTIVE && f->mode <= SNOOP_NO_BUF &&
	       s->seq == f->next_seq && s->len &&
	       (s->flags | TH_PSH) == (TH_ACK | TH_PSH) &&
	       !s->options.bypass && !s->options.other &&
	       (c->ecn || !(s->tos & ECN_MASK)) &&
	       !after(s->seq + s->len, promise_edge(f, c));
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
		const struct segment *s)
{
	__u32 edge = promise_edge(f, c), charged, offered;

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

/* While the guest is awake every second full segment is acknowledged at once (RFC
 * 5681 4.2), as the guest would do: to tell of each costs the way back, and the
 * sender, twice as much, and gains nothing. Should the sender wait for what is
 * held, it waits for the guest, as without us. It is not made to where that can
 * be seen: it has pushed, or has window for no more than this one's successor.
 */
static __always_inline bool may_be_held(const struct snoop_flow *f,
					const struct snoop_config *c,
					const struct segment *s, __u64 now)
{
	return (__u32)(now >> TICK_SHIFT) - f->heard < c->awake_ticks &&
	       !f->quick && !(s->flags & TH_PSH) && s->len <= f->mss &&
	       !extra_of(f, s) && f->next_seq - f->told_seq == s->len &&
	       !before(f->told_edge, f->next_seq + 2 * f->mss);
}

/* The segment is in the ring, and may be acknowledged. */
static __always_inline enum snoop_to_guest
delivered(struct snoop_flow *f, const struct snoop_config *c,
	  const struct segment *s, __u64 now, struct lift *lift)
{
	bool with_held = f->next_seq != f->told_seq;

	f->next_seq += s->len;
	f->frame = f->frame ? f->frame - f->frame / 8 + s->len / 8 : s->len;
	f->extra += extra_of(f, s);
	if (f->mode != SNOOP_ACTIVE)
		f->quick = QUICK_SEGMENTS;
	f->mode = SNOOP_ACTIVE;
	grow(f, c);
	if (may_be_held(f, c, s, now)) {
		f->held_ts = s->options.tsval;
		return SNOOP_TG_HELD;
	}
	if (f->quick)
		f->quick--;
	lift->ack = f->next_seq;
	/* Of what is acknowledged, the first (RFC 7323 4.3). */
	lift->tsecr = with_held ? f->held_ts : s->options.tsval;
	lift->window = window_from(f, c, f->next_seq, promise_edge(f, c));
	f->acked_segments += with_held ? 2 : 1;
	f->acked_bytes += f->next_seq - f->told_seq;
	f->told_seq = f->next_seq;
	f->told_edge = f->next_seq + ((__u32)lift->window << scale_of(f));
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

/* What the guest says of itself. */
static __always_inline void learn(struct snoop_flow *f,
				  const struct segment *s)
{
	__u32 window;

	if (f->scale == SCALE_UNKNOWN) {
		f->scale = 0;
		begin_at(f, s->ack, s->window);
		f->vm_snd = s->seq;
		f->vm_una = s->seq;
		/* What is in the ring already was not seen. It is within the
		 * window by its widest scale, and by that of 512 if the guest
		 * offers less by now.
		 */
		window = s->window > 512 ? s->window : 512;
		f->ahead = s->ack + (window << SCALE_MAX);
		/* Any number may be the first, and half of them are before 0. */
		f->ts_vm = s->options.tsval;
		/* What it has seen last of the peer's. */
		f->ts_peer = s->options.tsecr;
	} else if (!(f->flags & SNOOP_F_VM_SYN) &&
		   after(s->ack, f->far_edge + f->mss)) {
		/* In mid-flow: it has taken more than it ever offered by the scale
		 * that was assumed, so the scale is more. (Less than a segment more
		 * is a window that was taken back.)
		 */
		if (f->scale < SCALE_MAX)
			f->scale++;
		f->far_edge = s->ack;
	}
	f->flags |= SNOOP_F_LEARNT;
	if (!(f->flags & SNOOP_F_VM_SYN) && s->options.has_ts)
		f->flags |= SNOOP_F_VM_TS;
	if (after(s->ack, f->vm_seq)) {
		f->vm_seq = s->ack;
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
	/* The guest has all of the older ones: those since are now older. */
	if (!before(f->vm_seq, f->extra_mark)) {
		f->extra_older = f->vm_seq == f->next_seq ? 0 : f->extra;
		f->extra = 0;
		f->extra_mark = f->next_seq;
	}
	if (before(f->vm_snd, s->seq + s->len))
		f->vm_snd = s->seq + s->len;
	if (s->options.has_ts && !before(s->options.tsval, f->ts_vm))
		f->ts_vm = s->options.tsval;
	see_guest(f, s);
}

/* It passes as it is, but for a window that is too wide. */
static __always_inline enum snoop_from_guest
pass(struct snoop_flow *f, const struct snoop_config *c, bool on,
     const struct segment *s, struct lift *lift)
{
	__u16 window = s->window;

	if (on)
		window = window_from(f, c, s->ack, f->rcv_edge);
	if (after(s->ack, f->told_seq))
		f->told_seq = s->ack;
	if (!before(s->ack, f->told_seq))
		f->told_edge = s->ack + ((__u32)window << scale_of(f));
	if (window >= s->window)
		return SNOOP_FG_PASSED;
	lift->ack = s->ack;
	lift->window = window;
	return SNOOP_FG_LIFTED;
}

/* A segment of the guest's that is no SYN and no RST. @on: something may be said
 * for it.
 */
static __always_inline enum snoop_from_guest
hear_guest(struct snoop_flow *f, const struct snoop_config *c, bool on,
	   const struct segment *s, struct lift *lift)
{
	/* A connection is there when it has taken data, or sends some. What has
	 * only been met says by its first acknowledgement nothing of that: the
	 * handshake of a connection that finds no place ends with one, too.
	 */
	bool met = f->scale == SCALE_UNKNOWN;
	bool proof = s->len || s->flags & TH_FIN ||
		     (!met && after(s->ack, f->vm_seq));
	__u32 edge;

	/* Also where the flow is left alone by now: the place in the accept
	 * queue has been taken.
	 */
	if (f->counted && proof) {
		f->counted = 0;
		lift->begun = true;
	}
	if (f->mode == SNOOP_BYPASS || s->flags & TH_FIN) {
		/* Promises are kept count of to their end. */
		if (s->flags & TH_ACK && after(s->ack, f->vm_seq))
			f->vm_seq = s->ack;
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
	learn(f, s);
	/* The ring keeps order: what is beyond the hole came after what was
	 * promised to be in it, or it was there before (see goes_ahead()), and
	 * the guest has yet to come to the promise. A client may have brought it
	 * there in packets that are not read here, so it is no proof: this flow is
	 * left alone, and whether the guest takes the promise will be seen.
	 */
	if (s->options.has_sack && before(s->ack, f->told_seq) &&
	    after(s->options.sack_start, s->ack) &&
	    after(s->options.sack_end, f->ahead)) {
		bypass(f, SNOOP_DOUBT);
		return SNOOP_FG_DOUBT;
	}
	/* Who opened the connection has it. What came before the proof has been
	 * seen by nobody but the guest: it begins with what the guest has.
	 */
	if (f->mode == SNOOP_UNPROVEN &&
	    (proof || f->flags & SNOOP_F_VM_CLIENT)) {
		f->mode = SNOOP_ACTIVE;
		f->next_seq = f->vm_seq;
	}
	if (!on && f->mode == SNOOP_ACTIVE)
		f->mode = SNOOP_UNEXPECTED_SEQ;
	if (f->mode != SNOOP_ACTIVE || !before(s->ack, f->next_seq) ||
	    s->options.has_sack || s->options.other ||
	    s->flags & (TH_ECE | TH_CWR | TH_URG))
		return pass(f, c, on, s, lift);
	lift->ack = f->next_seq;
	lift->window = window_from(f, c, f->next_seq, promise_edge(f, c));
	edge = f->next_seq + ((__u32)lift->window << scale_of(f));
	/* It says nothing that the sender has not been told. (What is held will
	 * be told with the next one, or by the guest when it has it.)
	 */
	if (!s->len && !after(s->ack, f->told_seq) &&
	    !after(edge, f->told_edge)) {
		f->suppressed++;
		return SNOOP_FG_SUPPRESSED;
	}
	/* It tells of what was held, too. */
	if (f->told_seq != f->next_seq)
		f->acked_segments++;
	f->acked_bytes += f->next_seq - f->told_seq;
	f->told_seq = f->next_seq;
	f->told_edge = edge;
	f->lifted++;
	return SNOOP_FG_LIFTED;
}

#endif
