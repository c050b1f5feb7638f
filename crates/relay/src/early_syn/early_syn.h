/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types shared by the BPF program and the relay.
 */
#ifndef TAUT_EARLY_SYN_H
#define TAUT_EARLY_SYN_H

#include <linux/types.h>

/* Address and port of a listener. An all-zero address matches every address of
 * its family. An IPv4 address is in the first four bytes; the others are zero.
 */
struct early_syn_watch {
	__u8 addr[16];
	__be16 port;
	__u16 version;		/* of IP: 4 or 6 */
};

/* The number of a transparent forward whose SYNs are not reported. */
#define EARLY_SYN_UNREPORTED	0xffffffff

/* A SYN for a watched listener, or that a transparent forward intercepts. */
struct early_syn_event {
	__u64 seen_ns;		/* CLOCK_MONOTONIC */
	__u8 saddr[16];
	__u8 daddr[16];
	__be16 sport;
	__be16 dport;
	__u32 version;		/* of IP: 4 or 6 */
	__u32 listener;		/* the number under which it is watched */
	__u32 ifindex;
};

/* Exits of a packet; each has a counter. */
enum early_syn_exit {
	EARLY_SYN_EMITTED,
	EARLY_SYN_OTHER_HOST,	/* not sent to this machine's own MAC */
	EARLY_SYN_NOT_TCP,
	EARLY_SYN_FRAGMENT,
	EARLY_SYN_MALFORMED,	/* too short, or with invalid lengths */
	EARLY_SYN_NOT_SYN,
	EARLY_SYN_NOT_WATCHED,	/* no listener and no transparent forward gets it */
	EARLY_SYN_NOT_LOCAL,	/* to a watched port, but forwarded */
	EARLY_SYN_OVER_CEILING,
	EARLY_SYN_RING_FULL,
	NR_EARLY_SYN,
};

#endif
