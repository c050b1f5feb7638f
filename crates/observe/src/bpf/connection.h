/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the iterators write for each connection (src/bpf_iter.rs has the same).
 */
#ifndef TAUT_CONNECTION_H
#define TAUT_CONNECTION_H

#include <linux/types.h>

/*
 * What happened between looks, since the first of them. Round trips in us,
 * windows in segments. A signal is what makes the congestion window smaller: a
 * loss, a time-out, ECN's echo (tcpEStatsPerfCongSignals of RFC 4898).
 */
struct connection_events {
	__u64 rtt_sum;
	__u64 signal_rtt_sum;	/* of the round trip before each signal */
	__u64 signal_cwnd_sum;	/* of the window that each found */
	__u64 signal_cwnd_squares;
	__u64 between_sum;	/* of segments delivered from one to the next */
	__u64 between_squares;
	__u64 between_times;	/* of the times from one to the next, of 65.5 us */
	__u64 between_time_squares;
	__u64 between_products;	/* of either and the other */
	__u32 rtts;		/* round trips that were measured */
	__u32 rtt_most;
	__u32 signals;
	__u32 fast_retransmits;
	__u32 between;		/* pairs of signals, less than 69 s apart */
	__u32 pad;
};

/* Of nanoseconds, for the times between signals. */
#define CONNECTION_TIME_SHIFT 16

/* Of each record; one of a connection that rests has no more than this. */
struct connection_head {
	__u64 cookie;
	__u64 changed;		/* the look that first found it as it is; 0: unknown */
	__u32 netns;		/* inode of its network namespace */
	__u32 size;		/* bytes of this record */
};

struct connection {
	struct connection_head head;
	__u32 window_clamp;	/* the widest window that may be offered */
	__u8 locks;		/* of enum connection_locks */
	__u8 mtu_probing;	/* it looks for the path's MTU by itself */
	__u8 has_events;	/* what follows the name is of this connection */
	__u8 is_whole;		/* not one that is being made, which has a name only */
	/* Its name, as sock_diag is asked for it (struct inet_diag_sockid). */
	__u32 interface;
	__u32 local[4];
	__u32 remote[4];
	__be16 local_port;
	__be16 remote_port;
	__u16 family;
	__u16 pad[3];
	struct connection_events events;
};

/* Set by user space when a look begins; the programs' only global variable. */
struct connection_look {
	__u64 number;	/* the first is 1 */
	__s64 room;	/* how many connections may have a place; none: nobody counts */
	__u64 missed;	/* those that have none since the look before */
	__u32 netns;	/* inode of the only namespace of which they may be; 0: all */
	__u32 stirred;	/* something came, or was opened, since it began */
};

/* Buffers that the application has set (SO_SNDBUF, SO_RCVBUF), so that the
 * kernel leaves them alone. The kernel's SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK.
 */
enum connection_locks {
	CONNECTION_SNDBUF_LOCKED = 1,
	CONNECTION_RCVBUF_LOCKED = 2,
};

#endif
