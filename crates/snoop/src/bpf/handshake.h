/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a connection begins and is reset.
 */
#ifndef TAUT_HANDSHAKE_H
#define TAUT_HANDSHAKE_H

#include "flow.h"

#define MSS_USUAL	1460	/* where the SYN has not been seen */

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

#endif
