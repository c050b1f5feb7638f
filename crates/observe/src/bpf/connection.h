/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the iterator writes for each connection (src/inside.rs has the same).
 */
#ifndef TAUT_CONNECTION_H
#define TAUT_CONNECTION_H

#include <linux/types.h>

struct connection {
	__u64 cookie;
	__u32 window_clamp;	/* the widest window that may be offered */
	__u8 locks;		/* of enum connection_locks */
	__u8 mtu_probing;	/* it looks for the path's MTU by itself */
	__u8 pad[2];
};

/* Buffers that the application has set (SO_SNDBUF, SO_RCVBUF), so that the
 * kernel leaves them alone. The kernel's SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK.
 */
enum connection_locks {
	CONNECTION_SNDBUF_LOCKED = 1,
	CONNECTION_RCVBUF_LOCKED = 2,
};

#endif
