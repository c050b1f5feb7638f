/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types shared by the BPF program and the relay.
 */
#ifndef TAUT_INTERCEPT_H
#define TAUT_INTERCEPT_H

#include <linux/types.h>

/* Read-only after loading. */
struct intercept_config {
	__u32 mark;		/* a policy rule of the relay leads it to local delivery */
	__u32 borrows;		/* upstream connections have clients' addresses: look for their
				 * sockets too, which no rule can name
				 */
};

/* Selects connections by device (0: any), port and prefix. The address is last
 * because only its bits form a prefix; all fields before it must be equal.
 */
struct intercept_rule {
	__u32 prefix_bits;	/* INTERCEPT_EXACT_BITS and the prefix's own */
	__u32 ifindex;
	__be16 port;
	__u16 version;		/* of IP: 4 or 6 */
	__u8 addr[16];		/* an IPv4 address is in the first four */
};

#define INTERCEPT_EXACT_BITS	64

/* The listener that gets the connections. An all-zero address is every address.
 */
struct intercept_listener {
	__u8 addr[16];
	__be16 port;
	__u16 unused;
};

/* Exits of a packet; each has a counter. */
enum intercept_exit {
	INTERCEPT_NEW,		/* first segment, given to the listener */
	INTERCEPT_COOKIE,	/* answer to a SYN cookie, likewise */
	INTERCEPT_KNOWN,	/* given to the socket of its connection */
	INTERCEPT_OTHER_HOST,	/* not sent to this machine's own MAC */
	INTERCEPT_NOT_TCP,
	INTERCEPT_FRAGMENT,
	INTERCEPT_MALFORMED,	/* too short, or with invalid lengths */
	INTERCEPT_NO_RULE,
	INTERCEPT_LOCAL,	/* to this machine itself, or without a route */
	INTERCEPT_NOT_ROUTING,	/* the device does not forward at all */
	INTERCEPT_FOREIGN,	/* of a connection that began without the relay */
	INTERCEPT_NO_LISTENER,	/* the relay accepts no more */
	INTERCEPT_NOT_GIVEN,	/* the kernel would not assign the socket */
	NR_INTERCEPT,
};

#endif
