/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types shared by taut_pipe, its loader and its tests.
 */
#ifndef TAUT_PIPE_H
#define TAUT_PIPE_H

#include <linux/types.h>

#define PIPE_CA_NAME_MAX	16	/* TCP_CA_NAME_MAX, with the NUL */
#define PIPE_FALLBACKS		3
#define PIPE_PEERS		4096	/* remote addresses that are remembered */
#define PIPE_KNOWN_FOR_S	3600	/* what was learnt of them; as the kernel keeps TCP metrics */

/* Read-only after loading. */
struct pipe_config {
	/* The index of the rate sample among cong_control's arguments: 1; since
	 * Linux 6.10, 3.
	 */
	__u32	cong_control_rs;
	char	fallback[PIPE_FALLBACKS][PIPE_CA_NAME_MAX];	/* tried in turn; "" is none */
	char	crowded[PIPE_FALLBACKS][PIPE_CA_NAME_MAX];	/* the same, for losses that come with a queue */
};

/* How a leg starts. */
struct pipe_settings {
	__u64	rate;		/* bytes a second */
	__u32	window;		/* bytes */
	__u32	reserved;
};

/* An IPv6 address, or an IPv4 one mapped into IPv6, in network order. */
struct pipe_peer {
	__u32	addr[4];
};

/* The leg to one peer: what is known of it, and what all its connections do now. */
struct pipe_leg {
	__u64	rate;		/* bytes a second known to be delivered; 0: unknown */
	__u64	stamp;		/* when `rate` or `full` was learnt, ktime in nanoseconds */
	__u64	born;		/* when this entry was made, which identifies it */
	__u64	bytes;		/* delivered so far */
	__u64	span_began;	/* the current span of the measurement of the load, ktime */
	__u64	span_bytes;	/* bytes when it began */
	__u64	load;		/* bytes a second in the span before */
	__u32	window;		/* bytes, as last set */
	__s32	active;		/* connections with data in flight, or that waits for its turn */
	__s32	starting;	/* of these, connections whose rate is a share of the leg's */
	__u32	full;		/* 1: a higher rate made a queue or losses */
	__u64	rtt_stamp;	/* when `rtt_us` was last seen, ktime */
	__u32	rtt_us;		/* the least round trip of all connections; 0: unknown */
	__u32	reserved;
};

/* What a connection does and knows. */
struct pipe_pace {
	__u64	rate;		/* paced at, bytes a second */
	__u64	proven;		/* the rate before the last raise, until that has been delivered; or 0 */
	__u8	lossy;		/* rounds in succession, with loss above the threshold */
	__u8	queued;		/* with a standing queue */
	__u8	clear;		/* with neither, and the rate in use */
	__u8	seeking;	/* no raise has failed so far */
	__u8	competing;	/* shares the link by a window, not by `rate` */
	__u8	entering;	/* has begun to; its first flight is not acknowledged yet */
	__u8	reducing;	/* a flight is acknowledged that was sent before a reduction */
	__u8	rounds;		/* since it competes, up to 255 */
	__u32	reduced_at;	/* segments delivered before the last reduction */
	__u32	window;		/* while it competes, in segments */
	__u32	plateau;	/* the window near which growth is slow (W_max in RFC 9438), in segments */
	__u32	plateau_ms;	/* how long growth takes to get there (K) */
	__u32	growing_from_ms;	/* when growth began, ktime */
	__u8	patience;	/* how often it took itself for alone and was not */
	__u8	reserved[3];
};

/* What an acknowledgement showed. */
struct pipe_ack {
	__u64	now_us;		/* ktime */
	__u32	acked;		/* segments */
	__u32	lost;		/* found to be lost with this acknowledgement */
	__u32	marked;		/* by a router, instead of losing them (ECN) */
	__u32	delivered;	/* so far */
	__u32	prior_delivered;	/* when the segment was sent that is acknowledged now */
	__u32	flight;		/* segments that had not arrived before it, lost ones included */
	__u32	rtt_us;		/* smoothed */
	__u32	least_rtt_us;	/* the least so far */
	__u32	timed_out;	/* the first one after a retransmission time-out */
	__u32	reserved;
};

/* What a round showed. */
struct pipe_round {
	__u64	delivery;	/* the highest rate of delivery, bytes a second */
	__u64	leg_delivery;	/* the mean rate of all connections to that peer */
	__u64	own_delivery;	/* the mean rate of this one; 0: it says nothing */
	__u32	delivered;	/* segments */
	__u32	lost;
	__u32	rtt_us;		/* the least of the round; 0: no sample */
	__u32	least_rtt_us;	/* the least so far */
	__u32	mss;
	__u32	app_limited;	/* the sender had less to send than the path would have taken */
};

/* What a decision is bound by. */
struct pipe_terms {
	__u64	start;		/* the rate that the leg starts at when nothing is known */
	__u64	limit;		/* the highest rate of this connection */
	__u64	known;		/* the leg's known rate; 0: none */
	__u32	window;		/* the initial window in bytes */
	__u32	reserved;
};

/* What to do after a round. */
struct pipe_decision {
	__u64	learn;		/* the leg's rate from now on; 0: as before */
	__u32	full;		/* 1: the leg carries no more than that */
	__u8	lossy;		/* the round had more loss than the threshold */
	__u8	fall_back;	/* hand the connection to the kernel's own control */
	__u8	capped;		/* the rate was lowered because of a standing queue */
	__u8	raised;		/* the rate was raised */
	__u8	taken_back;	/* the last raise was undone */
	__u8	competes;	/* the connection begins to share the link with others */
	__u8	decreased;	/* its share was reduced after a loss */
	__u8	alone;		/* it has the link for itself again */
	__u8	crowded;	/* of a fall-back: losses come with a queue */
	__u8	reserved[3];
};

/* The input and output of the program that tests of the decisions run. */
struct pipe_trial {
	struct pipe_pace	pace;
	struct pipe_ack		ack;
	struct pipe_round	round;
	struct pipe_terms	terms;
	struct pipe_decision	decision;
	struct pipe_leg		leg;
	__u64			now;		/* nanoseconds */
	__u64			acked;		/* bytes to count as delivered */
	__u64			share;		/* the rate for a connection that starts now */
};

enum pipe_count {
	PIPE_STARTED,			/* connections that began with taut_pipe */
	PIPE_STARTED_KNOWN,		/* of these, at the peer's last known rate */
	PIPE_SHARED,			/* starts at less than the leg's rate, because other connections are active */
	PIPE_LOST,			/* segments lost, and retransmitted */
	PIPE_MARKED,			/* segments that a router marked instead (ECN) */
	PIPE_LOSSY_ROUNDS,		/* rounds with more loss than the threshold */
	PIPE_FELL_BACK,			/* connections handed to the kernel's own control */
	PIPE_FALL_BACK_FAILED,		/* the kernel accepted none of the names; slowed down instead */
	PIPE_CAPPED,			/* rates lowered because of a standing queue */
	PIPE_RAISED,			/* rates raised */
	PIPE_TAKEN_BACK,		/* raises undone because of a queue or losses */
	PIPE_COMPETED,			/* times a connection began to share the link, after a loss with a queue */
	PIPE_DECREASED,			/* reductions of such a share, after a further loss */
	PIPE_ALONE,			/* times a connection had the link for itself again */
	PIPE_PEER_NOT_KEPT,		/* a leg that could not be remembered */
	NR_PIPE,
};

#endif
