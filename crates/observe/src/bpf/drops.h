/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What user space and the program that counts dropped packets share. The Rust
 * bindings are generated from this file.
 */
#ifndef TAUT_DROPS_H
#define TAUT_DROPS_H

#include <linux/types.h>

/* The connections that are followed, each once for each direction. */
#define DROPS_FOLLOWED 32768
/* The kinds of drops of all of them. */
#define DROPS_KINDS 16384
/* The reasons that can be ignored. The kernel has some 130; those of subsystems
 * begin at 65536.
 */
#define DROPS_REASONS 512
#define DROPS_NAME 16

/* The addresses and ports of a packet. IPv4 addresses are mapped into IPv6. */
struct drops_tuple {
	__u8 from[16];
	__u8 to[16];
	__be16 from_port;
	__be16 to_port;
	__u32 netns;	/* inode; 0 unless an address is of the loopback network */
};

enum drops_direction {
	DROPS_SENT,	/* by this end of the connection */
	DROPS_RECEIVED,
};

/* The ends of a connection that may both be on this machine. 0: none. */
struct drops_ends {
	__u64 from;	/* cookie of the socket that sends in this direction */
	__u64 to;
};

/* A kind of drops. */
struct drops_kind {
	__u64 cookie;
	__u64 function;	/* address in the kernel */
	__u32 direction;	/* of enum drops_direction */
	__u32 reason;	/* of the kernel's enum skb_drop_reason */
	__u32 netns;	/* inode; 0: unknown */
	__u32 device;	/* index; 0: none */
	/* 1: the packet belongs to the socket with this cookie. 0: only the addresses and
	 * ports are those of the connection, which others can forge.
	 */
	__u32 is_own;
	__u32 unused;
};

struct drops_count {
	__u64 data;	/* segments with data */
	__u64 other;	/* segments without: acknowledgements, SYN, FIN */
	__u8 device[DROPS_NAME];
};

/* How the program ends. */
enum drops_exit {
	DROPS_COUNTED,
	DROPS_IGNORED,	/* TCP is done with the packet: nothing is lost */
	DROPS_NOT_TCP,
	DROPS_UNREADABLE,	/* the headers are missing or cut off */
	DROPS_NOT_FOLLOWED,
	DROPS_NO_ROOM,	/* too many kinds */
	NR_DROPS_EXIT,
};

/* Set before the program is loaded: a bit for each reason that is ignored. */
struct drops_config {
	__u64 ignored[DROPS_REASONS / 64];
};

#endif
