/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How far the sender may be told, and how far may be promised.
 */
#ifndef TAUT_WINDOW_H
#define TAUT_WINDOW_H

#include "flow.h"

#define SHARE_MAX	(1U << 30)

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
	if (before(most, f->advertised_edge))
		most = f->advertised_edge;
	if (before(most, ack + 2 * f->mss))
		most = ack + 2 * f->mss;
	/* Up to a whole unit of the scale, and within what there is. */
	window = (room(ack, most) + (1U << scale) - 1) >> scale;
	edge = room(ack, edge) >> scale;
	if (window > edge)
		window = edge;
	return window > 0xffff ? 0xffff : window;
}

/* The farthest that growth may go (III-C): what the guest has not read takes room, and
 * shows in a window that is less than the widest that it offered. So from its own edge,
 * which does not move until it reads, there is left what it never offered.
 *
 * In mid-flow windows are known by a lower bound of their scale: what the guest has not
 * read is more than it seems, and the sender counts what it is told in the scale that
 * there is. So nothing grows there.
 */
static __always_inline __u32 grow_limit(const struct snoop_flow *f,
					const struct snoop_config *c)
{
	if (!(f->flags & SNOOP_F_VM_SYN) || c->guest_rcvbuf <= f->vm_widest)
		return f->rcv_edge;
	return f->rcv_edge + c->guest_rcvbuf - f->vm_widest;
}

/* As far as may be acknowledged early: the guest's right edge, or with growth what is
 * known to fit behind what it has acknowledged. (The guest's edge may have retreated
 * since it grew.)
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

/* The paper's growth: two segments for each that is acknowledged (III-C). */
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
