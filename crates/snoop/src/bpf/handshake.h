/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Handles the start and the reset of a connection.
 */
#ifndef TAUT_HANDSHAKE_H
#define TAUT_HANDSHAKE_H

#include "flow.h"

#define MSS_USUAL	1460	/* if the SYN was not seen */

/* Returns the window for the sender in the guest's SYN-ACK. */
static __always_inline __u16 syn_window(const struct snoop_config *c,
					const struct segment *s)
{
	return c->buf_size && s->window > c->buf_size ? c->buf_size : s->window;
}

/*
 * Returns the reason for SNOOP_BYPASS in a SYN: a property that the answer
 * cannot decline, which is signed segments. The other end may decline anything
 * else that a SYN offers.
 */
static __always_inline __u8 reason_in_syn(const struct segment *s)
{
	__u8 why = s->options.bypass;

	return why == SNOOP_MD5 || why == SNOOP_TCP_AO ? why : SNOOP_NO_BYPASS;
}

/*
 * Returns whether a SYN-ACK accepts accurate ECN (RFC 9768 3.1.1, table 2): no
 * flag or all three decline, and ECE alone is classic ECN.
 */
static __always_inline bool accepts_accecn(const struct segment *s)
{
	bool cwr = s->flags & TH_CWR, ece = s->flags & TH_ECE;

	return (s->ae || cwr) && !(s->ae && cwr && ece);
}

/* Returns the reason why a connection with this SYN-ACK is in SNOOP_BYPASS. */
static __always_inline __u8 reason_in_syn_ack(const struct segment *s)
{
	__u8 why = s->options.bypass;

	/* (A cookie is for the next connection.) */
	if (why && why != SNOOP_FAST_OPEN)
		return why;
	if (s->options.other)
		return SNOOP_OPTION;
	if (s->len)
		return SNOOP_FAST_OPEN;
	return accepts_accecn(s) ? SNOOP_ACCECN : SNOOP_NO_BYPASS;
}

/* Starts the state of a new connection. */
static __always_inline void restart(struct snoop_flow *f, __u8 flags)
{
	f->flags = flags;
	f->mode = SNOOP_SYN;
	f->bypass = SNOOP_NO_BYPASS;
	f->fins = 0;
	f->vm_widest = 0;
	f->frame = 0;
	f->exposed_most = 0;
	f->acked_segments = 0;
	f->acked_bytes = 0;
	f->suppressed = 0;
	f->lifted = 0;
}

static __always_inline __u8 flags_of_peer_syn(const struct segment *s)
{
	__u8 flags = SNOOP_F_PEER_SYN;

	if (s->options.has_scale)
		flags |= SNOOP_F_PEER_SCALES;
	if (s->options.has_ts)
		flags |= SNOOP_F_PEER_TS;
	return flags;
}

/*
 * Records a peer's SYN. It describes a possible connection. The guest decides
 * whether the connection exists: anyone can forge a SYN with any number, even
 * for an existing connection.
 */
static __always_inline void note_peer_syn(struct snoop_pending *p,
					  const struct segment *s)
{
	p->first = s->seq + 1;
	p->ts = s->options.tsval;
	p->data = s->len > 0xffff ? 0xffff : s->len;
	p->flags = flags_of_peer_syn(s);
	p->bypass = reason_in_syn(s);
}

/* Handles the peer's answer to the guest's SYN. */
static __always_inline void see_peer_syn_ack(struct snoop_flow *f,
					     const struct segment *s)
{
	if (f->mode != SNOOP_SYN || !(f->flags & SNOOP_F_VM_CLIENT) ||
	    s->ack != f->vm_snd || !same_mac(s->to, f->vm_mac))
		return;
	f->flags |= flags_of_peer_syn(s);
	f->begun = s->seq + 1;
	f->ts_peer = s->options.tsval;
	/* The guest's SYN had a window, without scale. */
	begin_at(f, s->seq + 1, f->vm_widest);
	f->mode = SNOOP_UNPROVEN;
	if (reason_in_syn_ack(s))
		bypass(f, reason_in_syn_ack(s));
}


/* Handles the guest's SYN or SYN-ACK. @pending: the peer's SYN, if it was seen.
 */
static __always_inline void see_guest_syn(struct snoop_flow *f,
					  const struct snoop_config *c,
					  const struct segment *s,
					  const struct snoop_pending *pending)
{
	const struct options *o = &s->options;
	__u8 flags = SNOOP_F_VM_SYN, why = reason_in_syn(s);
	bool repeated = false;

	if (o->has_scale)
		flags |= SNOOP_F_VM_SCALES;
	if (o->has_ts)
		flags |= SNOOP_F_VM_TS;
	if (!(s->flags & TH_ACK)) {
		/* A repeated SYN restarts the same connection. */
		restart(f, flags | SNOOP_F_VM_CLIENT);
	} else if (pending && s->ack == pending->first) {
		restart(f, flags | pending->flags);
		f->ts_peer = pending->ts;
		why = pending->bypass ? pending->bypass : reason_in_syn_ack(s);
	} else if (pending && s->ack - pending->first <= pending->data) {
		/* The guest has taken the data in the SYN. */
		restart(f, flags | pending->flags);
		f->ts_peer = pending->ts;
		why = SNOOP_FAST_OPEN;
	} else if (f->mode == SNOOP_SYN && !(f->flags & SNOOP_F_VM_SYN)) {
		/*
		 * The peer's SYN was not seen. The guest answers with a scale
		 * and timestamps only if the SYN had them (RFC 7323 2.2, 3.2).
		 */
		restart(f, flags | SNOOP_F_PEER_SYN | SNOOP_F_PEER_SCALES |
			SNOOP_F_PEER_TS);
		f->ts_peer = o->tsecr;
		why = reason_in_syn_ack(s);
		repeated = true;
	} else {
		return;
	}
	f->scale = o->scale > SCALE_MAX ? SCALE_MAX : o->scale;
	f->ts_vm = o->tsval;
	f->vm_snd = s->seq + 1;
	f->vm_una = s->seq;
	f->mss = o->mss ? o->mss : MSS_DEFAULT;
	see_guest(f, s);
	/* The window of a SYN is not scaled (RFC 7323 2.2). */
	f->vm_widest = s->window;
	if (s->flags & TH_ACK) {
		f->begun = s->ack;
		begin_at(f, s->ack, s->window);
		f->advertised_edge = s->ack + syn_window(c, s);
		/*
		 * The first SYN-ACK was sent before the program was attached,
		 * and data that it invited may be in the ring. No such data is
		 * beyond the window, because the sender knows no other window.
		 */
		if (repeated)
			f->ahead = f->rcv_edge;
		f->flags |= SNOOP_F_LEARNT;
		f->mode = SNOOP_UNPROVEN;
	}
	if (why)
		bypass(f, why);
}

/*
 * A peer's RST ends the connection if its number is the expected one; otherwise
 * the guest challenges it (RFC 5961 3.2). In both cases, no early ACK follows.
 * An RST outside the window is forged.
 */
static __always_inline void see_peer_reset(struct snoop_flow *f,
					   const struct segment *s)
{
	if (f->mode == SNOOP_SYN || !same_mac(s->to, f->vm_mac) ||
	    before(s->seq, f->vm_seq) || after(s->seq, f->rcv_edge))
		return;
	/* No endpoint waits for the early-acknowledged data any more. */
	if (s->seq == f->next_seq && after(f->acked_seq, f->vm_seq))
		f->vm_seq = f->acked_seq;
	bypass(f, SNOOP_CLOSING);
}

/* Starts a flow whose guest is first seen in mid-flow. */
static __always_inline void begin_in_midflow(struct snoop_flow *f)
{
	f->mode = SNOOP_UNPROVEN;
	f->scale = SCALE_UNKNOWN;
	f->mss = MSS_USUAL;
}

#endif
