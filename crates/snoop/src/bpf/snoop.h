/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the programs share with user space, which has the same structs (src/wire.rs, build.rs).
 */
#ifndef TAUT_SNOOP_H
#define TAUT_SNOOP_H

#include <linux/bpf.h>
#include <linux/types.h>

/* Marks of our own packets on their way through the tap: a segment that is
 * being delivered, our acknowledgement on its way back, and what is left of a
 * segment that has been delivered and not acknowledged.
 */
#define SNOOP_DELIVERY	0x74617574
#define SNOOP_ACK	0x74617575
#define SNOOP_LEFTOVER	0x74617576

/* Our acknowledgement, of a flow in which the guest has data under way. */
#define SNOOP_ACK_DATA	0x74617577

/* FL_MODE (vsnoop-paper III-B), and what comes before it. */
enum snoop_mode {
	SNOOP_SYN,		/* the handshake is under way */
	SNOOP_UNPROVEN,		/* the guest has shown nothing of it yet */
	SNOOP_ACTIVE,
	SNOOP_UNEXPECTED_SEQ,
	SNOOP_NO_BUF,
	SNOOP_BYPASS,
};

/* Why a flow is in SNOOP_BYPASS. */
enum snoop_bypass {
	SNOOP_TOUCHED,	/* the flow is not in SNOOP_BYPASS */
	SNOOP_CLOSING,	/* one end has sent FIN */
	SNOOP_URGENT,	/* urgent data */
	SNOOP_MD5,	/* signed segments (RFC 2385) */
	SNOOP_TCP_AO,	/* signed segments (RFC 5925) */
	SNOOP_MPTCP,	/* multipath (RFC 8684), whose DATA_ACK only the guest can give */
	SNOOP_ACCECN,	/* accurate ECN (RFC 9768), whose counters only the guest has */
	SNOOP_FAST_OPEN,	/* data in the SYN (RFC 7413) */
	SNOOP_ECT,	/* packets that may be marked (RFC 3168): DCTCP counts each mark */
	SNOOP_OPTION,	/* an option that is not known here */
	SNOOP_LOST_AFTER_EARLY_ACK,	/* the guest lacks what was acknowledged for it */
	SNOOP_DOUBT,	/* the guest seems to lack what was acknowledged for it */
	SNOOP_CONTRADICTED,	/* the guest says that it lacks what was acknowledged early */
	SNOOP_FORWARDED,	/* the endpoint is behind the guest: its TTL is not one that systems send with */
	SNOOP_OTHER_MAC,	/* the endpoint may be behind the guest: its Ethernet address is not known to be the guest's */
	SNOOP_OTHER_ADDRESS,	/* the guest's end is in none of the networks that guests are in (--guest-net) */
	SNOOP_DISTRUSTED_PEER,	/* several flows of the peer's network had to be repaired */
};

/* Ways out of the program towards the guest. */
enum snoop_to_guest {
	SNOOP_TG_NOT_TCP,	/* or a fragment, or with IP options */
	SNOOP_TG_MALFORMED,
	SNOOP_TG_OURS,		/* the delivery itself */
	SNOOP_TG_OFF,		/* the tap is being left */
	SNOOP_TG_NO_FLOW,
	SNOOP_TG_FLOWS_FULL,
	SNOOP_TG_SYN,
	SNOOP_TG_RST,
	SNOOP_TG_BYPASS,
	SNOOP_TG_NO_DATA,
	SNOOP_TG_UNLEARNT,	/* of the window or the timestamps too little is known */
	SNOOP_TG_OUT_OF_ORDER,
	SNOOP_TG_MISDIRECTED,	/* not for the guest, or nothing that it would take */
	SNOOP_TG_CE,
	SNOOP_TG_OPTIONS,
	SNOOP_TG_BEYOND_WINDOW,
	SNOOP_TG_BUDGET,
	SNOOP_TG_EXPOSURE,	/* as much as may be is ahead of the guest's own acknowledgement */
	SNOOP_TG_OVERDUE,	/* the guest has acknowledged nothing for too long */
	SNOOP_TG_NOT_KEPT,	/* no room for a copy */
	SNOOP_TG_CHECKSUM,
	SNOOP_TG_IN_PARTS,	/* the tap would get it as many segments */
	SNOOP_TG_NOT_CLONED,	/* passed on as it was */
	SNOOP_TG_RING_FULL,	/* dropped by the ring */
	SNOOP_TG_OVERTAKEN,	/* passed: another CPU was there between two looks */
	SNOOP_TG_NO_ACK,	/* in the ring, and could not be turned into an acknowledgement */
	SNOOP_TG_HELD,		/* in the ring, and acknowledged with a later one */
	SNOOP_TG_ACKED,
	NR_SNOOP_TG,
};

/* Ways out of the program from the guest. */
enum snoop_from_guest {
	SNOOP_FG_NOT_TCP,
	SNOOP_FG_MALFORMED,
	SNOOP_FG_OURS,		/* our acknowledgement */
	SNOOP_FG_LEFTOVER,	/* dropped: what had been delivered */
	SNOOP_FG_FLOWS_FULL,
	SNOOP_FG_NO_FLOW,
	SNOOP_FG_SYN,
	SNOOP_FG_RST,
	SNOOP_FG_FIN,
	SNOOP_FG_BYPASS,
	SNOOP_FG_PASSED,
	SNOOP_FG_SUPPRESSED,	/* dropped: an acknowledgement that says nothing new */
	SNOOP_FG_LIFTED,
	SNOOP_FG_NOT_LIFTED,	/* passed as it was, because it could not be changed */
	SNOOP_FG_DOUBT,		/* passed: the guest seems to lack what was promised */
	SNOOP_FG_CONTRADICTED,	/* passed: the guest says that it lacks it */
	SNOOP_FG_FORWARDED,	/* passed: not the guest's own, by its TTL */
	SNOOP_FG_OTHER_MAC,	/* by its Ethernet address */
	SNOOP_FG_OTHER_ADDRESS,	/* by its IP address */
	NR_SNOOP_FG,
};

/* How a tap is served. Written by user space. */
struct snoop_config {
	__u32 on;		/* acknowledge early */
	__u32 buf_size;		/* no window is wider; 0: none is narrowed */
	__u32 guest_rcvbuf;	/* with grow: what the guest takes; else 0 */
	__u32 start_early;
	__u32 ecn;		/* also flows with ECT */
	__u32 ring;		/* places; 0: windows are not bounded by it */
	__u32 sharing;		/* flows that fill it */
	__u32 awake_ticks;	/* of 2^20 ns, after it was heard; 0: each segment is acknowledged */
	__u32 exposure;		/* bytes acknowledged early and not by the guest, at most */
	__u32 exposure_ticks;	/* of 2^20 ns, without progress of the guest's, at most */
	__u32 distrusted;	/* entries of the map of that name */
	__u8 guest_mac[6];	/* if it is known */
	__u8 mac_known;
	__u8 by_address;	/* only guests in the map `guest_nets` */
	__u8 guest_ttl;		/* also taken for the TTL of a sender; 0: none more */
	__u8 full;		/* as many copies are retained as the tap's share allows */
	__u8 unused[2];
	__u64 until_ns;		/* CLOCK_MONOTONIC; later nobody watches, and it counts as off */
};

/* Of the guest's end and of its peer's; an IPv4 address is in the first four
 * bytes and the rest is zero.
 */
struct snoop_key {
	__u8 guest[16];
	__u8 peer[16];
	__be16 guest_port;
	__be16 peer_port;
	__u16 vlan;		/* with the bit that says that there is a tag */
	__u16 version;		/* 4 or 6 */
};

/* What can be known of a flow (docs/design/snoop.md). Sequence numbers are in
 * host order.
 */
struct snoop_flow {
	struct bpf_spin_lock lock;
	__u32 next_seq;
	__u32 acked_seq;		/* the sender has an acknowledgement up to here */
	__u32 vm_seq;
	__u32 rcv_edge;
	__u32 advertised_edge;
	__u32 grown_edge;
	__u32 far_edge;		/* the farthest that the guest has offered */
	__u32 ahead;		/* the end of what may be in the ring beyond a hole */
	__u32 begun;		/* the peer's first byte */
	__u32 vm_snd;
	__u32 vm_una;		/* of it, what the peer has acknowledged */
	__u32 ts_vm;
	__u32 ts_peer;		/* the latest TSval of the peer's */
	__u32 vm_widest;	/* the widest window that the guest has offered */
	__u32 extra;		/* that small segments take of the guest's buffer, and */
	__u32 extra_older;	/* of those before this: */
	__u32 extra_mark;
	__u32 frame;		/* bytes of data in a frame, on average */
	__u32 vm_word;		/* IPv6: the first word of the guest's header */
	__u32 held_ts;		/* TSval of the first segment that is held */
	__u32 heard;		/* when the guest's last packet came, of 2^20 ns */
	__u32 fed;		/* when data was last put into the ring, likewise */
	__u32 sack_start;	/* of the block that the guest has beyond a hole; no block: VM_SEQ */
	__u32 owed;		/* when VM_SEQ last moved or was first overtaken, of 2^20 ns */
	__u32 exposed_most;	/* bytes ahead of the guest's own acknowledgement */
	__u32 peer_fin;		/* the number after the peer's FIN */
	__u32 vm_fin;		/* after the guest's */
	__u32 sack_end;
	__u32 awake;		/* when the guest was first heard since `owed`, of 2^20 ns */
	__u8 vm_mac[6];		/* the guest's, and whom it sends to */
	__u8 peer_mac[6];
	__u16 mss;
	__u16 peer_window;	/* the latest that the peer offered, not scaled */
	__u8 scale;		/* of the guest's window; 15: a lower bound is not known either */
	__u8 mode;
	__u8 bypass;
	__u8 flags;
	__u8 tos;		/* of the guest's packets */
	__u8 ttl;
	__u8 counted;		/* among the handshakes of its listener */
	__u8 run;		/* acknowledgements since the start, or since a gap or pause, to RUN_MAX */
	__u8 held;		/* segments of which the sender has not been told */
	__u8 stretch_most;	/* segments of an acknowledgement, as was seen of this sender */
	__u8 fins;
	__u8 heard_since;	/* the guest was heard since `owed` */
	__u8 unused[4];
	__u64 seen_ns;		/* when the last packet came (CLOCK_MONOTONIC, coarse) */
	__u64 acked_segments;
	__u64 acked_bytes;
	__u64 suppressed;
	__u64 lifted;
};

#define SNOOP_F_PEER_SYN	0x01	/* its SYN has been seen */
#define SNOOP_F_VM_SYN		0x02
#define SNOOP_F_PEER_SCALES	0x04
#define SNOOP_F_VM_SCALES	0x08
#define SNOOP_F_PEER_TS		0x10
#define SNOOP_F_VM_TS		0x20
#define SNOOP_F_VM_CLIENT	0x40	/* the guest opened it */
#define SNOOP_F_LEARNT		0x80	/* an acknowledgement of the guest's has been seen */

/* Of snoop_flow.fins. */
#define SNOOP_FIN_PEER		0x01	/* the peer's FIN has been seen */
#define SNOOP_FIN_VM		0x02
#define SNOOP_FIN_PEER_ACKED	0x04	/* the guest has acknowledged it */
#define SNOOP_FIN_VM_ACKED	0x08
#define SNOOP_FIN_ALL		0x0f

/* What a SYN of a peer's says, until the guest answers it. */
struct snoop_pending {
	__u32 first;		/* the peer's first byte */
	__u32 ts;
	__u16 data;		/* bytes in the SYN (RFC 7413) */
	__u8 flags;		/* SNOOP_F_* */
	__u8 bypass;		/* what the guest's answer cannot take back */
};

/* A peer's prefix: 24 bits of an IPv4 address, 48 of an IPv6 address. */
struct snoop_prefix {
	__u8 bytes[6];
	__u16 version;
};

/* Key of the networks that guests are in; an IPv4 address is mapped (RFC 4291 2.5.5.2). */
struct snoop_net {
	__u32 prefix_len;
	__u8 addr[16];
};

/* The Ethernet address that a tap's frames come from. */
struct snoop_source {
	__u8 mac[6];
	__u8 known;
	__u8 several;		/* another one was seen, too */
};

/* To user space: a guest seems not to have, or says that it has not, what was
 * acknowledged early.
 */
struct snoop_event {
	struct snoop_key key;
	__u32 vm_seq;
	__u32 acked_seq;
	__u32 reach;		/* the end of the SACK block, or the guest's right edge, that shows it */
	__u32 contradicted;
};

/* A flow that user space wants left alone, and why. */
struct snoop_order {
	struct snoop_key key;
	__u32 bypass;
};

/* Where a program's time went, in ns; kept if the load measures. */
struct snoop_spent {
	__u64 delivery;		/* into the ring, and all that it brings with it */
	__u64 lookup;
	__u64 nothing;		/* what measuring costs, once for each of the others */
	__u64 deliveries;
	__u64 lookups;
};

/* The copy of a segment, of which a frame of l4_at + header + len bytes follows. */
struct snoop_copy {
	struct snoop_key key;
	__u32 ifindex;
	__u32 seq;
	__u32 len;
	__u16 l4_at;
	__u16 header;
	__u32 gso_size;		/* bytes of data in each of the frame's segments; 0: it is one */
	__u32 begun;		/* of the flow: which connection it is */
	__u64 at_ns;		/* CLOCK_MONOTONIC, coarse */
};

#endif
