/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decisions of taut_pipe: how fast a connection starts, and what a round changes. They have no
 * clock, no socket and no map, so that a test can run them in virtual time (taut_pipe_trial.bpf.c).
 *
 * docs/design/turbo.md explains the figures.
 */
#ifndef TAUT_PIPE_DECIDE_H
#define TAUT_PIPE_DECIDE_H

#include "taut_pipe_compete.h"

#define NSEC_PER_SEC		1000000000ULL

/* Bytes a second. Products of rates and times fit into 64 bits below it. */
#define RATE_MAX		1000000000000ULL
#define LOSS_ONE_IN		50	/* 2 %, as BBRv2 and BBRv3 have it */
#define LOSSY_ROUNDS		3
#define QUEUED_ROUNDS		3
#define QUEUE_SHARE		8	/* of the initial window */
#define CLEAR_ROUNDS		8
#define WINDOW_MIN		10	/* segments, as any connection begins (RFC 6928) */
#define LEAST_RTT_US		10000	/* for the least rate */
#define KNOWN_FOR		(PIPE_KNOWN_FOR_S * NSEC_PER_SEC)
#define RTT_KNOWN_FOR		(300 * NSEC_PER_SEC)	/* as net.ipv4.tcp_min_rtt_wlen */
#define LOAD_SPAN		(50 * 1000 * 1000ULL)	/* ns */

/*
 * The default initial window per round trip; no learnt rate is lower. On short paths that would
 * be more than many links carry.
 */
static __always_inline __u64 least_rate(__u32 mss, __u32 rtt_us)
{
	__u32 rtt = rtt_us > LEAST_RTT_US ? rtt_us : LEAST_RTT_US;

	return WINDOW_MIN * (__u64)mss * USEC_PER_SEC / rtt;
}

/* Whether what was learnt of the leg still counts. Another CPU may have learnt it after `now`. */
static __always_inline _Bool leg_fresh(const struct pipe_leg *leg, __u64 now)
{
	return now < leg->stamp + KNOWN_FOR;
}

/* The rate that a leg is known to carry, or the one that it starts at. */
static __always_inline __u64 leg_rate(const struct pipe_leg *leg, __u64 start, __u64 now)
{
	return leg->rate && leg_fresh(leg, now) ? leg->rate : start;
}

/* Whether the leg is known to carry no more than its rate. */
static __always_inline _Bool leg_full(const struct pipe_leg *leg, __u64 now)
{
	return leg->full && leg_fresh(leg, now);
}

/* Keeps what a decision says of the leg. Nothing of what was forgotten comes back with it. */
static __always_inline void leg_learn(struct pipe_leg *leg, const struct pipe_decision *d,
				      __u64 now)
{
	_Bool fresh = leg_fresh(leg, now);

	if (!d->learn && !d->full)
		return;
	if (d->learn || !fresh)
		leg->rate = d->learn;
	if (d->full || !fresh)
		leg->full = d->full;
	leg->stamp = now;
}

/*
 * The least round trip on the leg, when one of its connections has seen `rtt_us`. A connection that
 * was made while others filled a queue has never seen the path empty; an older one may have.
 */
static __always_inline __u32 leg_rtt(struct pipe_leg *leg, __u32 rtt_us, __u64 now)
{
	if (!rtt_us)
		return leg->rtt_us;
	if (!leg->rtt_us || rtt_us <= leg->rtt_us || now > leg->rtt_stamp + RTT_KNOWN_FOR) {
		leg->rtt_us = rtt_us;
		leg->rtt_stamp = now;
	}
	return leg->rtt_us;
}

/* Counts delivered bytes, and measures the leg's load. */
static __always_inline void leg_delivered(struct pipe_leg *leg, __u64 bytes, __u64 now)
{
	__u64 all = __sync_fetch_and_add(&leg->bytes, bytes) + bytes;
	__u64 began = leg->span_began;

	/* One of the CPUs begins the next span. */
	if (now - began >= LOAD_SPAN && now > began &&
	    __sync_val_compare_and_swap(&leg->span_began, began, now) == began) {
		__u64 us = (now - began) / 1000;

		leg->load = (all - leg->span_bytes) * USEC_PER_SEC / us;
		leg->span_bytes = all;
	}
}

/* Bytes a second that the leg carries now. */
static __always_inline __u64 leg_load(const struct pipe_leg *leg, __u64 now)
{
	__u64 elapsed = (now - leg->span_began) / 1000;

	/* Without acknowledgements no span ends. */
	if (now > leg->span_began && elapsed > 2 * LOAD_SPAN / 1000)
		return (leg->bytes - leg->span_bytes) * USEC_PER_SEC / elapsed;
	return leg->load;
}

/*
 * The rate of a connection that starts: what the leg's other connections leave of the leg's rate,
 * divided among those that start now, or an equal share of the whole, whichever is more.
 */
static __always_inline __u64 leg_share(const struct pipe_leg *leg, __u64 rate, __u64 now)
{
	__u64 active = leg->active > 1 ? leg->active : 1;
	__u64 starting = leg->starting > 1 ? leg->starting : 1;
	__u64 load = leg_load(leg, now);
	__u64 rest = load < rate ? (rate - load) / starting : 0;
	__u64 equal;

	if (active < starting)
		active = starting;
	equal = rate / active;
	return rest > equal ? rest : equal;
}

/*
 * What the leg delivered. Acknowledgements that were held up come together, and a round with them
 * shows more than the path carries. The kernel's samples of this connection leave that out, because
 * they count the time in which the data was sent, too. Its share of the excess is everybody's.
 */
static __always_inline __u64 leg_carried(const struct pipe_round *r)
{
	__u64 leg = r->leg_delivery < RATE_MAX ? r->leg_delivery : RATE_MAX;

	if (r->own_delivery <= r->delivery)
		return leg;
	return leg * (r->delivery * 1024 / r->own_delivery) / 1024;
}

/*
 * Evaluates a round of a connection that shares the link. It has the link for itself again when no
 * queue stood in several rounds in succession, though it used its window.
 */
static __always_inline void decide_competing(struct pipe_pace *p, const struct pipe_round *r,
					     __u64 leg, __u64 known, struct pipe_decision *d)
{
	__u64 flight = r->delivery * r->least_rtt_us / USEC_PER_SEC;
	_Bool used = flight >= (__u64)p->window * r->mss / 2;
	__u64 carried = leg_carried(r);

	if (p->rounds < 255)
		p->rounds++;
	/*
	 * The second round has no data from before. Others may have the rest of the leg's rate. An
	 * application that sends little shows nothing of what the leg carries.
	 */
	if (p->rounds == 2 && !r->app_limited) {
		d->learn = leg;
		d->full = 1;
	}
	if (d->lossy) {
		p->clear = 0;
		if (++p->lossy >= LOSSY_ROUNDS) {
			p->lossy = 0;
			d->learn = leg;
			d->full = 1;
			d->fall_back = 1;
			d->crowded = 1;
		}
		return;
	}
	p->lossy = 0;
	if (carried > known)
		d->learn = carried;
	if (crowded(r->rtt_us, r->least_rtt_us)) {
		p->clear = 0;
		return;
	}
	if (!used || p->entering || ++p->clear < ALONE_ROUNDS << p->patience)
		return;
	p->clear = 0;
	p->competing = 0;
	p->rate = r->delivery;
	p->proven = 0;
	d->alone = 1;
}

/* Evaluates a round. */
static __always_inline void decide(struct pipe_pace *p, const struct pipe_round *r,
				   const struct pipe_terms *t, struct pipe_decision *d)
{
	__u32 rtt = r->least_rtt_us;
	__u32 slack = rtt > QUEUE_SLACK_US ? rtt : QUEUE_SLACK_US;
	__u64 lower = r->delivery - r->delivery / 8;
	__u64 carried = leg_carried(r);
	__u64 leg = carried - carried / 8;
	__u64 known = t->known ? t->known : t->start;
	__u64 least = least_rate(r->mss, rtt);
	_Bool lossy, queued, standing, used, delivered, too_much;
	__u64 waiting = 0;

	/* The socket is paced at its ceiling, which may have been lowered. */
	if (p->rate > t->limit) {
		p->rate = t->limit;
		p->proven = 0;
	}

	lossy = (__u64)r->lost * LOSS_ONE_IN > (__u64)r->delivered + r->lost;
	used = r->delivery >= p->rate - p->rate / 4;
	delivered = r->delivery >= p->rate - p->rate / 8;
	standing = r->rtt_us > rtt + slack;
	/*
	 * The queue is our own if we send faster than it drains and our share
	 * of it (the delivery rate times the delay) is large. In another flow's
	 * queue, our bytes come out as fast as they go in, or are few; slowing
	 * down would only make room for that flow.
	 */
	if (standing)
		waiting = r->delivery * (r->rtt_us - rtt) / USEC_PER_SEC;
	queued = waiting > t->window / QUEUE_SHARE && r->delivery < p->rate - p->rate / 16;

	d->lossy = lossy;
	if (lower < least)
		lower = least;
	/* What the leg carries is what all its connections deliver together. */
	if (leg < lower)
		leg = lower;
	if (leg > known)
		leg = known;

	if (p->competing) {
		decide_competing(p, r, leg, known, d);
		if (p->rate < least)
			p->rate = least;
		if (p->rate > t->limit)
			p->rate = t->limit;
		return;
	}

	/* What fills the queue of a leg that is known to be full is the raise, or others. */
	too_much = lossy || queued || (!p->seeking && crowded(r->rtt_us, rtt));
	if (p->proven && too_much) {
		/* The raise asked too much; the rate before it did not. */
		p->rate = p->proven;
		p->proven = 0;
		p->lossy = p->queued = p->clear = p->seeking = 0;
		d->full = 1;
		d->taken_back = 1;
		return;
	}

	if (lossy) {
		p->clear = 0;
		if (++p->lossy >= LOSSY_ROUNDS) {
			p->lossy = 0;
			if (lower < p->rate)
				p->rate = lower;
			p->seeking = 0;
			d->learn = leg;
			d->full = 1;
			d->fall_back = 1;
			return;
		}
	} else {
		p->lossy = 0;
	}

	if (queued) {
		p->clear = 0;
		if (++p->queued >= QUEUED_ROUNDS) {
			p->queued = 0;
			p->seeking = 0;
			p->rate = lower;
			d->learn = leg;
			d->full = 1;
			d->capped = 1;
			return;
		}
	} else {
		p->queued = 0;
	}

	if (lossy || queued || !used)
		return;
	if (delivered)
		p->proven = 0;
	if (carried > known)
		d->learn = carried;
	/* Above the rate that was asked for, somebody else's queue is a limit, too. */
	if (p->rate >= t->limit || (standing && p->rate >= t->start))
		return;
	/* What fills the queue of a full leg is others' or our own. */
	if (!p->seeking && crowded(r->rtt_us, rtt))
		return;
	if (p->seeking ? delivered : ++p->clear >= CLEAR_ROUNDS) {
		__u64 rate = p->rate + (p->seeking ? p->rate / 2 : p->rate / 4);

		p->clear = 0;
		p->proven = p->rate;
		p->rate = rate < t->limit ? rate : t->limit;
		d->raised = 1;
	}
}

#endif
