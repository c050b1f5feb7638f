/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types shared by taut_pipe and its loader.
 */
#ifndef TAUT_PIPE_H
#define TAUT_PIPE_H

#include <linux/types.h>

#define PIPE_CA_NAME_MAX	16	/* TCP_CA_NAME_MAX, with the NUL */
#define PIPE_FALLBACKS		3
#define PIPE_PEERS		4096	/* remote addresses whose rate is remembered */

/* Read-only after loading. */
struct pipe_config {
	__u64	rate;			/* bytes a second */
	__u32	initial_window;		/* bytes */
	/* The index of the rate sample among cong_control's arguments: 1; since
	 * Linux 6.10, 3.
	 */
	__u32	cong_control_rs;
	char	fallback[PIPE_FALLBACKS][PIPE_CA_NAME_MAX];	/* tried in turn; "" is none */
};

/* An IPv6 address, or an IPv4 one mapped into IPv6, in network order. */
struct pipe_peer {
	__u32	addr[4];
};

struct pipe_known {
	__u64	rate;	/* bytes a second known to be delivered */
	__u64	stamp;	/* when it was measured, ktime in nanoseconds */
};

enum pipe_count {
	PIPE_STARTED,			/* connections that began with taut_pipe */
	PIPE_STARTED_KNOWN,		/* of these, at the peer's last known rate */
	PIPE_LOST,			/* segments lost, and retransmitted without backing off */
	PIPE_MARKED,			/* segments that a router marked instead (ECN) */
	PIPE_LOSSY_ROUNDS,		/* rounds with more loss than the threshold */
	PIPE_FELL_BACK,			/* connections handed to the kernel's own control */
	PIPE_FALL_BACK_FAILED,		/* the kernel accepted none of the names; slowed down instead */
	PIPE_CAPPED,			/* rates lowered because of a standing queue */
	PIPE_RAISED,			/* lowered rates raised again */
	PIPE_PEER_NOT_KEPT,		/* a rate that could not be stored */
	NR_PIPE,
};

#endif
