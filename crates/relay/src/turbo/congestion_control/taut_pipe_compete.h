/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a connection of taut_pipe shares a link with the flows of others: as CUBIC does (RFC 9438),
 * from a loss that comes with a queue until the queue is gone. No clock, no socket, no map, as in
 * taut_pipe_decide.h. Windows are in segments.
 *
 * docs/design/turbo.md explains the figures.
 */
#ifndef TAUT_PIPE_COMPETE_H
#define TAUT_PIPE_COMPETE_H

#include "taut_pipe.h"

#define USEC_PER_SEC		1000000ULL
#define QUEUE_SLACK_US		5000	/* CoDel's target (RFC 8289 4.3) */
#define CROWDED_SHARE		8	/* of the least round trip */
#define CUBIC_SPAN_MS		100000	/* the cubic function ends here; its products fit into 64 bits */
#define CUBIC_STEPS		16	/* from CUBIC_SPAN_MS to the root for one segment, 1357 ms */
#define CUBIC_PER_C		2500000000ULL	/* ms^3 a segment: C is 0.4 a second^3 (RFC 9438 5) */
#define ALONE_ROUNDS		8
#define PATIENCE_MOST		4	/* doublings of ALONE_ROUNDS */
#define COMPETE_MIN		2	/* segments, as CUBIC's after a loss (RFC 5681 3.1) */
#define COMPETE_MOST		(1U << 24)	/* segments; products of windows and times fit into 64 bits */

/* Whether segments wait in a queue on the path. A loss is a sign of congestion then. */
static __always_inline _Bool crowded(__u32 rtt_us, __u32 least_rtt_us)
{
	__u32 share = least_rtt_us / CROWDED_SHARE;
	__u32 slack = share > QUEUE_SLACK_US ? share : QUEUE_SLACK_US;

	return rtt_us > (__u64)least_rtt_us + slack;
}

/* The multiplicative decrease (beta, RFC 9438 4.6). */
static __always_inline __u32 decreased(__u32 window)
{
	__u32 less = (__u64)window * 7 / 10;

	return less > COMPETE_MIN ? less : COMPETE_MIN;
}

/*
 * The milliseconds in which the cubic function grows by `segments` up to its plateau: a cube root by
 * Newton's method. It has no branch, because the verifier follows each of them in every step.
 */
static __always_inline __u32 cubic_time(__u32 segments)
{
	__u64 cube = segments * CUBIC_PER_C;
	__u64 root = CUBIC_SPAN_MS;
	int step;

	if (!segments)
		return 0;
	for (step = 0; step < CUBIC_STEPS; step++)
		root = (2 * root + cube / (root * root)) / 3;
	return root < CUBIC_SPAN_MS ? root : CUBIC_SPAN_MS;
}

/* The window from which growth begins. */
static __always_inline __u32 cubic_first(const struct pipe_pace *p)
{
	__u64 plateau = p->plateau_ms;
	__u64 below = plateau * plateau * plateau / CUBIC_PER_C;

	return below < p->plateau ? p->plateau - below : 0;
}

/* Begins a period of growth from the present window to `plateau`, and beyond. */
static __always_inline void begin_growth(struct pipe_pace *p, __u32 plateau, __u64 now_us)
{
	p->plateau = plateau > p->window ? plateau : p->window;
	p->plateau_ms = cubic_time(p->plateau - p->window);
	p->growing_from_ms = now_us / 1000;
}

/* The window that CUBIC has at a time of its growth (RFC 9438 4.2, 4.3). */
static __always_inline __u32 cubic_window(const struct pipe_pace *p, const struct pipe_ack *a)
{
	/* One round trip ahead: the window is for the segments that are acknowledged then. */
	__u32 ms = (__u32)(a->now_us / 1000) - p->growing_from_ms + a->least_rtt_us / 1000;
	__u64 reno = cubic_first(p) + (__u64)ms * 1000 * 9 / 17 / (a->rtt_us ? a->rtt_us : 1);
	__u64 cubic;
	__u64 span;

	if (ms < p->plateau_ms) {
		span = p->plateau_ms - ms;
		cubic = span * span * span / CUBIC_PER_C;
		cubic = cubic < p->plateau ? p->plateau - cubic : 0;
	} else {
		span = ms - p->plateau_ms;
		if (span > CUBIC_SPAN_MS)
			span = CUBIC_SPAN_MS;
		cubic = p->plateau + span * span * span / CUBIC_PER_C;
	}
	if (cubic < reno)
		cubic = reno;
	return cubic < COMPETE_MOST ? cubic : COMPETE_MOST;
}

/* Grows the window by what was acknowledged, at most to one and a half in a round trip. */
static __always_inline void grow(struct pipe_pace *p, const struct pipe_ack *a)
{
	__u64 most = p->window + ((__u64)a->acked + 1) / 2;
	__u32 window;

	/* A window that is not used does not grow (RFC 9438 5.8). */
	if (a->flight < p->window / 2) {
		begin_growth(p, 0, a->now_us);
		return;
	}
	window = cubic_window(p, a);
	if (window > most)
		window = most;
	if (window > p->window)
		p->window = window;
}

/* Reduces the window after a loss that came with a queue. */
static __always_inline void decrease(struct pipe_pace *p, const struct pipe_ack *a)
{
	__u32 window = p->window;

	p->clear = 0;
	p->window = decreased(window);
	/* Fast convergence (RFC 9438 4.7): a window that has not reached the last plateau leaves more. */
	begin_growth(p, window < p->plateau ? (__u64)window * 17 / 20 : window, a->now_us);
}

/* Begins to share the link. What was in flight is more than the path carries. */
static __always_inline void compete(struct pipe_pace *p, const struct pipe_ack *a)
{
	__u32 flight = a->flight < COMPETE_MOST ? a->flight : COMPETE_MOST;

	/* It has shared the link before, and was not alone then. */
	if (p->rounds && p->patience < PATIENCE_MOST)
		p->patience++;
	p->competing = 1;
	p->entering = 1;
	p->rounds = 0;
	p->lossy = p->queued = p->clear = p->seeking = 0;
	p->window = decreased(flight);
	begin_growth(p, flight, a->now_us);
}

/*
 * Everything that was in flight is acknowledged or lost: what the path carried of it is known. The
 * first window leaves the queue out, so that a connection that is alone finds the path empty.
 */
static __always_inline void entered(struct pipe_pace *p, const struct pipe_ack *a)
{
	__u32 carried = a->delivered - p->reduced_at;
	__u32 rtt = a->rtt_us > a->least_rtt_us ? a->rtt_us : a->least_rtt_us;
	__u32 alone = rtt ? (__u64)carried * a->least_rtt_us / rtt : carried;

	p->entering = 0;
	if (decreased(alone) < p->window)
		p->window = decreased(alone);
	begin_growth(p, carried < p->plateau ? carried : p->plateau, a->now_us);
}

/* Evaluates an acknowledgement. */
static __always_inline void on_ack(struct pipe_pace *p, const struct pipe_ack *a,
				   struct pipe_decision *d)
{
	/*
	 * A time-out says that nothing came, and not that a queue stands: the peer's machine may have
	 * waited for its CPU. It is a loss only on a link that is known to be shared.
	 */
	_Bool lost = a->lost || (a->timed_out && p->competing);
	/* A mark counts as a loss (RFC 3168 5), and comes from a queue. */
	_Bool congested = a->marked || (lost && crowded(a->rtt_us, a->least_rtt_us));

	if (p->reducing) {
		/* Once a round trip: what was in flight before the reduction says nothing of it. */
		if ((__s32)(a->prior_delivered - p->reduced_at) < 0)
			return;
		p->reducing = 0;
		if (p->entering) {
			entered(p, a);
			return;
		}
	}
	if (!congested) {
		if (p->competing)
			grow(p, a);
		return;
	}
	p->reducing = 1;
	p->reduced_at = a->delivered;
	if (p->competing) {
		decrease(p, a);
		d->decreased = 1;
	} else if (p->proven) {
		/* The raise asked too much. Below the rate before it, the queue drains. */
		p->rate = p->proven - p->proven / 8;
		p->proven = 0;
		p->lossy = p->queued = p->clear = p->seeking = 0;
		d->full = 1;
		d->taken_back = 1;
	} else {
		compete(p, a);
		d->competes = 1;
	}
}

#endif
