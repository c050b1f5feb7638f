/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The records that the iterators write for each connection. The Rust bindings
 * are generated from this file.
 */
#ifndef TAUT_CONNECTION_H
#define TAUT_CONNECTION_H

#include <linux/types.h>

/*
 * Events of a connection since the first scan. Round trips in us, windows in
 * segments. A signal reduces the congestion window: a loss, a time-out, an ECN
 * echo (tcpEStatsPerfCongSignals of RFC 4898).
 */
struct connection_events {
	__u64 rtt_sum;
	__u64 signal_rtt_sum;	/* of the round trips before each signal */
	__u64 signal_cwnd_sum;	/* of the windows at each signal */
	__u64 signal_cwnd_squares;
	__u64 between_sum;	/* of segments delivered between two signals */
	__u64 between_squares;
	__u64 between_times;	/* of the times between two signals, in 65.5 us */
	__u64 between_time_squares;
	__u64 between_products;	/* of segments and times */
	__u32 rtts;		/* measured round trips */
	__u32 rtt_most;
	__u32 signals;
	__u32 fast_retransmits;
	__u32 between;		/* pairs of signals, less than 69 s apart */
	__u32 pad;
};

/* Shifts nanoseconds to the unit of the times between signals. */
#define CONNECTION_TIME_SHIFT 16

/* The head of each record. The record of an unchanged connection ends here. */
struct connection_head {
	__u64 cookie;
	__u64 changed;		/* the scan that first found it as it is now; 0: unknown */
	__u32 netns;		/* inode of its network namespace */
	__u32 size;		/* size of this record in bytes */
};

struct connection {
	struct connection_head head;
	__u32 window_clamp;	/* the widest window that may be offered */
	__u8 locks;		/* of enum connection_locks */
	__u8 mtu_probing;	/* packetization-layer path MTU discovery is on */
	__u8 has_events;	/* the events below are valid */
	__u8 is_whole;		/* 0: a handshake, of which only the name below is valid */
	/* The identity that sock_diag takes (struct inet_diag_sockid). */
	__u32 interface;
	__u32 local[4];
	__u32 remote[4];
	__be16 local_port;
	__be16 remote_port;
	__u16 family;
	__u16 pad[3];
	struct connection_events events;
};

/* The programs' only global variable. User space sets it when a scan begins. */
struct connection_scan {
	__u64 number;	/* the first is 1 */
	__s64 room;	/* how many more connections may get a slot */
	__u64 missed;	/* connections without a slot since the scan before */
	__u32 netns;	/* inode of the only namespace that is scanned; 0: all */
	__u32 has_activity;	/* a segment arrived, or a connection was opened, since it began */
};

/* Flags for buffers whose size the application set (SO_SNDBUF, SO_RCVBUF), which
 * disables autotuning. The kernel's SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK.
 */
enum connection_locks {
	CONNECTION_SNDBUF_LOCKED = 1,
	CONNECTION_RCVBUF_LOCKED = 2,
};

#endif
