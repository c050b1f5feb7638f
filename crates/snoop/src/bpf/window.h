/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The width of the window for the sender, and the limit of early ACKs.
 */
#ifndef TAUT_WINDOW_H
#define TAUT_WINDOW_H

#include "flow.h"

#define SHARE_MAX	(1U << 30)

/*
 * Returns the window in an ACK of @ack, up to @edge. It is no wider than the
 * configured buffer; together with the data in the ring, it is no wider than
 * this flow's share of the ring, because a frame that does not fit is lost and
 * may be repaired only after a timeout. An advertised edge is not retracted
 * (RFC 9293 3.8.6), and an open window is not closed, nor made too small for
 * two segments.
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
	if (before(most, f->advertised_edge))
		most = f->advertised_edge;
	if (before(most, ack + 2 * f->mss))
		most = ack + 2 * f->mss;
	/* Rounded up to the scale's unit, within the edge. */
	window = (room(ack, most) + (1U << scale) - 1) >> scale;
	edge = room(ack, edge) >> scale;
	if (window > edge)
		window = edge;
	return window > 0xffff ? 0xffff : window;
}

/*
 * Returns the limit of growth (III-C). Unread data takes buffer space in the
 * guest, which shows in a window smaller than the widest one it advertised. So
 * beyond the guest's own edge, which does not move until the guest reads, there
 * remains the space that it never advertised.
 *
 * In mid-flow, only a lower bound of the window's scale is known: more data is
 * unread than it seems, and the sender applies the real scale. So nothing grows
 * there.
 */
static __always_inline __u32 grow_limit(const struct snoop_flow *f,
					const struct snoop_config *c)
{
	if (!(f->flags & SNOOP_F_VM_SYN) || c->guest_rcvbuf <= f->vm_widest)
		return f->rcv_edge;
	return f->rcv_edge + c->guest_rcvbuf - f->vm_widest;
}

/*
 * Returns the limit of early ACKs: the guest's right edge or, with growth, the
 * edge of what is known to fit behind its acknowledgment number. (The guest's
 * edge may have retreated since the growth.)
 */
static __always_inline __u32 early_ack_edge(const struct snoop_flow *f,
					  const struct snoop_config *c)
{
	__u32 limit;

	if (!c->guest_rcvbuf || !after(f->grown_edge, f->rcv_edge))
		return f->rcv_edge;
	limit = grow_limit(f, c);
	return after(f->grown_edge, limit) ? limit : f->grown_edge;
}

/* The paper's growth: two segments for each acknowledged one (III-C). */
static __always_inline void grow(struct snoop_flow *f,
				 const struct snoop_config *c)
{
	__u32 most = grow_limit(f, c);

	if (!c->guest_rcvbuf)
		return;
	if (before(f->grown_edge, f->rcv_edge))
		f->grown_edge = f->rcv_edge;
	f->grown_edge += 2 * f->mss;
	if (after(f->grown_edge, most))
		f->grown_edge = most;
}

#endif
