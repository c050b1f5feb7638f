/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Structures and constants that the programs share with user space. build.rs
 * generates the Rust types from them.
 */
#ifndef TAUT_SNOOP_H
#define TAUT_SNOOP_H

#include <linux/bpf.h>
#include <linux/types.h>

/*
 * Marks of the programs' own packets on their way through the tap: a segment
 * that is being delivered, an early ACK on its way back, and the rest of a
 * segment that was delivered and not acknowledged.
 */
#define SNOOP_DELIVERY	0x74617574
#define SNOOP_ACK	0x74617575
#define SNOOP_LEFTOVER	0x74617576

/* An early ACK of a flow in which the guest has data in flight. */
#define SNOOP_ACK_DATA	0x74617577

/* FL_MODE (vsnoop-paper III-B), and the states before it. */
enum snoop_mode {
	SNOOP_SYN,		/* the handshake is in progress */
	SNOOP_UNPROVEN,		/* the guest has not confirmed the connection yet */
	SNOOP_ACTIVE,
	SNOOP_UNEXPECTED_SEQ,
	SNOOP_NO_BUF,
	SNOOP_BYPASS,
};

/* The reason why a flow is in SNOOP_BYPASS. */
enum snoop_bypass {
	SNOOP_NO_BYPASS,	/* the flow is not in SNOOP_BYPASS */
	SNOOP_CLOSING,	/* one end has sent FIN */
	SNOOP_URGENT,	/* urgent data */
	SNOOP_MD5,	/* signed segments (RFC 2385) */
	SNOOP_TCP_AO,	/* signed segments (RFC 5925) */
	SNOOP_MPTCP,	/* multipath (RFC 8684), whose DATA_ACK only the guest can give */
	SNOOP_ACCECN,	/* accurate ECN (RFC 9768), whose counters only the guest has */
	SNOOP_FAST_OPEN,	/* data in the SYN (RFC 7413) */
	SNOOP_ECT,	/* packets that may be marked (RFC 3168): DCTCP counts each mark */
	SNOOP_OPTION,	/* an unknown option */
	SNOOP_LOST_AFTER_EARLY_ACK,	/* the guest never took what was acknowledged early */
	SNOOP_DOUBT,	/* the guest may lack what was acknowledged early */
	SNOOP_CONTRADICTED,	/* the guest retracts its window over what was acknowledged early */
	SNOOP_FORWARDED,	/* the endpoint is behind the guest: its TTL is not an initial one */
	SNOOP_OTHER_MAC,	/* the endpoint may be behind the guest: its Ethernet address is not known to be the guest's */
	SNOOP_OTHER_ADDRESS,	/* the guest's address is in no network of guests (--guest-net) */
	SNOOP_DISTRUSTED_PEER,	/* the guest contradicted early ACKs in several flows of the peer's network */
	SNOOP_RETRACTED,	/* in mid-flow: the guest retracts its window, so its scale cannot be learnt */
};

/* Exits of the program towards the guest. */
enum snoop_to_guest {
	SNOOP_TG_NOT_TCP,	/* or a fragment, or IP options */
	SNOOP_TG_MALFORMED,
	SNOOP_TG_OURS,		/* the delivered clone */
	SNOOP_TG_OFF,		/* early ACKs are turned off */
	SNOOP_TG_NO_FLOW,
	SNOOP_TG_FLOWS_FULL,
	SNOOP_TG_SYN,
	SNOOP_TG_RST,
	SNOOP_TG_BYPASS,
	SNOOP_TG_NO_DATA,
	SNOOP_TG_UNLEARNT,	/* window, timestamps or connection not known well enough */
	SNOOP_TG_OUT_OF_ORDER,
	SNOOP_TG_MISDIRECTED,	/* not for the guest, or one that the guest would drop */
	SNOOP_TG_CE,
	SNOOP_TG_OPTIONS,
	SNOOP_TG_BEYOND_WINDOW,
	SNOOP_TG_BUDGET,
	SNOOP_TG_EXPOSURE,	/* the limit of exposed bytes is reached */
	SNOOP_TG_OVERDUE,	/* the guest has acknowledged nothing for too long */
	SNOOP_TG_NOT_KEPT,	/* no room for a copy */
	SNOOP_TG_CHECKSUM,
	SNOOP_TG_IN_PARTS,	/* the kernel would cut it up for the tap */
	SNOOP_TG_NOT_CLONED,	/* no clone; passed unchanged */
	SNOOP_TG_RING_FULL,	/* dropped by the full ring */
	SNOOP_TG_OVERTAKEN,	/* passed: another CPU changed the flow meanwhile */
	SNOOP_TG_NO_ACK,	/* in the ring, but the ACK could not be written */
	SNOOP_TG_HELD,		/* in the ring, to be acknowledged with a later segment */
	SNOOP_TG_ACKED,
	NR_SNOOP_TG,
};

/* Exits of the program from the guest. */
enum snoop_from_guest {
	SNOOP_FG_NOT_TCP,
	SNOOP_FG_MALFORMED,
	SNOOP_FG_OURS,		/* an early ACK */
	SNOOP_FG_LEFTOVER,	/* dropped: the rest of a delivered segment */
	SNOOP_FG_FLOWS_FULL,
	SNOOP_FG_NO_FLOW,
	SNOOP_FG_SYN,
	SNOOP_FG_RST,
	SNOOP_FG_FIN,
	SNOOP_FG_BYPASS,
	SNOOP_FG_PASSED,
	SNOOP_FG_SUPPRESSED,	/* dropped: an ACK without news for the sender */
	SNOOP_FG_LIFTED,	/* passed with the number of the early ACK */
	SNOOP_FG_NARROWED,	/* passed with a narrower window */
	SNOOP_FG_NOT_LIFTED,	/* passed unchanged: it could not be rewritten */
	SNOOP_FG_DOUBT,		/* passed: the guest may lack what was acknowledged early */
	SNOOP_FG_CONTRADICTED,	/* passed: the guest retracts its window over it */
	SNOOP_FG_FORWARDED,	/* passed: not the guest's own, judged by its TTL */
	SNOOP_FG_OTHER_MAC,	/* by its Ethernet address */
	SNOOP_FG_OTHER_ADDRESS,	/* by its IP address */
	NR_SNOOP_FG,
};

/* Configuration of a tap, written by user space. */
struct snoop_config {
	__u32 on;		/* acknowledge early */
	__u32 buf_size;		/* widest advertised window; 0: unlimited */
	__u32 guest_rcvbuf;	/* with --grow: bytes that the guest buffers; else 0 */
	__u32 start_early;
	__u32 ecn;		/* also serve ECN-capable flows */
	__u32 ring;		/* length of the ring; 0: windows are not limited by it */
	__u32 sharing;		/* number of flows that share the ring */
	__u32 awake_ticks;	/* ticks of 2^20 ns that a heard guest counts as awake; 0: no stretch ACKs */
	__u32 exposure;		/* limit of bytes acknowledged early and not by the guest */
	__u32 exposure_ticks;	/* limit of ticks of 2^20 ns without progress of the guest */
	__u32 distrusted;	/* number of entries in the map `distrusted` */
	__u8 guest_mac[6];	/* valid if mac_known */
	__u8 mac_known;
	__u8 by_address;	/* only guest addresses in the map `guest_nets` */
	__u8 guest_ttl;		/* another initial TTL of the guest; 0: none */
	__u8 full;		/* the tap's share of the memory for copies is used up */
	__u8 unused[2];
	__u64 until_ns;		/* CLOCK_MONOTONIC; later the lease has expired and early ACKs are off */
};

/*
 * Identifies a flow by its two ends. An IPv4 address is in the first four
 * bytes; the rest is zero.
 */
struct snoop_key {
	__u8 guest[16];
	__u8 peer[16];
	__be16 guest_port;
	__be16 peer_port;
	__u16 vlan;		/* 0x8000 and the VLAN's number, or 0 without a tag */
	__u16 version;		/* 4 or 6 */
};

/*
 * The state of a flow (docs/design/snoop.md). Sequence numbers are in host
 * order.
 */
struct snoop_flow {
	struct bpf_spin_lock lock;
	__u32 next_seq;
	__u32 acked_seq;		/* the acknowledged edge: what the sender has an ACK of */
	__u32 vm_seq;
	__u32 rcv_edge;
	__u32 advertised_edge;
	__u32 grown_edge;
	__u32 far_edge;		/* the farthest right edge that the guest has advertised */
	__u32 ahead;		/* the end of what may be in the ring beyond a gap */
	__u32 begun;		/* the peer's first byte */
	__u32 vm_snd;
	__u32 vm_una;		/* the peer's acknowledgment number */
	__u32 ts_vm;
	__u32 ts_peer;		/* the peer's latest TSval */
	__u32 vm_widest;	/* the widest window that the guest has advertised */
	__u32 extra;		/* buffer overhead of small segments since extra_mark */
	__u32 extra_older;	/* and of those before it */
	__u32 extra_mark;
	__u32 frame;		/* average bytes of data in a frame */
	__u32 vm_word;		/* IPv6: the first word of the guest's header */
	__u32 held_ts;		/* TSval of the first held segment */
	__u32 heard;		/* when the guest's last packet came, in ticks of 2^20 ns */
	__u32 fed;		/* when data was last put into the ring, likewise */
	__u32 sack_start;	/* the guest's SACK block; without one: VM_SEQ */
	__u32 owed;		/* when VM_SEQ last moved or fell behind acked_seq, likewise */
	__u32 exposed_most;	/* maximum of acked_seq - vm_seq so far */
	__u32 peer_fin;		/* the sequence number after the peer's FIN */
	__u32 vm_fin;		/* after the guest's FIN */
	__u32 sack_end;
	__u32 awake;		/* when the guest was first heard since `owed`, likewise */
	__u32 offer_ts;		/* in mid-flow: a peer that echoes a later TSval knows an offer that was seen */
	__u32 excess_end;	/* the end of data that such a peer sent beyond the window by `scale` */
	__u8 vm_mac[6];		/* the guest's address, and the one it sends to */
	__u8 peer_mac[6];
	__u16 mss;
	__u16 peer_window;	/* the peer's latest window, not scaled */
	__u8 scale;		/* shift of the guest's window; 15: not even a lower bound is known */
	__u8 mode;
	__u8 bypass;
	__u8 flags;
	__u8 tos;		/* of the guest's packets */
	__u8 ttl;
	__u8 counted;		/* counted in the handshakes of its listener */
	__u8 run;		/* early ACKs since the start, a gap or a pause, up to RUN_MAX */
	__u8 held;		/* segments in the ring that are not acknowledged yet */
	__u8 stretch_most;	/* limit of segments per ACK, learnt from this sender */
	__u8 fins;
	__u8 heard_since;	/* the guest was heard since `owed` */
	__u8 told;		/* used by hear_guest() alone, while it runs */
	__u8 has_offer;		/* offer_ts is valid */
	__u8 has_excess;	/* excess_end is valid */
	__u8 unused[1];
	__u64 seen_ns;		/* when the last packet came (CLOCK_MONOTONIC, coarse) */
	__u64 acked_segments;
	__u64 acked_bytes;
	__u64 suppressed;
	__u64 lifted;
};

#define SNOOP_F_PEER_SYN	0x01	/* its SYN was seen */
#define SNOOP_F_VM_SYN		0x02
#define SNOOP_F_PEER_SCALES	0x04
#define SNOOP_F_VM_SCALES	0x08
#define SNOOP_F_PEER_TS		0x10
#define SNOOP_F_VM_TS		0x20
#define SNOOP_F_VM_CLIENT	0x40	/* the guest opened the connection */
#define SNOOP_F_LEARNT		0x80	/* an ACK of the guest was seen */

/* Flags in snoop_flow.fins. */
#define SNOOP_FIN_PEER		0x01	/* the peer's FIN was seen */
#define SNOOP_FIN_VM		0x02
#define SNOOP_FIN_PEER_ACKED	0x04	/* the guest has acknowledged it */
#define SNOOP_FIN_VM_ACKED	0x08
#define SNOOP_FIN_ALL		0x0f

/* The contents of a peer's SYN, kept until the guest answers it. */
struct snoop_pending {
	__u32 first;		/* the peer's first byte */
	__u32 ts;
	__u16 data;		/* bytes in the SYN (RFC 7413) */
	__u8 flags;		/* SNOOP_F_* */
	__u8 bypass;		/* a reason that the guest's answer cannot revoke */
};

/* A peer's prefix: 24 bits of an IPv4 address, 48 of an IPv6 address. */
struct snoop_prefix {
	__u8 bytes[6];
	__u16 version;
};

/*
 * Key of the map of guest networks; an IPv4 address is mapped (RFC 4291
 * 2.5.5.2).
 */
struct snoop_net {
	__u32 prefix_len;
	__u8 addr[16];
};

/* What a tap's frames have shown of the guest. */
struct snoop_source {
	__u8 mac[6];		/* the source Ethernet address */
	__u8 known;
	__u8 several;		/* others were seen as well */
	__u8 scale;		/* the largest window scale in its SYNs, valid if scaled */
	__u8 scaled;
};

/*
 * Reports to user space that a guest may lack, or says that it lacks, data that
 * was acknowledged early.
 */
struct snoop_event {
	struct snoop_key key;
	__u32 vm_seq;
	__u32 acked_seq;
	__u32 reach;		/* the evidence: the end of a SACK block, or the guest's right edge */
	__u32 contradicted;
};

/* A flow that user space wants in SNOOP_BYPASS, and the reason. */
struct snoop_order {
	struct snoop_key key;
	__u32 bypass;
};

/* The split of a program's run time in ns; filled if `measured` is set. */
struct snoop_spent {
	__u64 delivery;		/* delivery into the ring, with all its consequences */
	__u64 lookup;
	__u64 overhead;		/* cost of one measurement, taken once per delivery */
	__u64 deliveries;
	__u64 lookups;
};

/* The copy of a segment. A frame of l4_at + header + len bytes follows. */
struct snoop_copy {
	struct snoop_key key;
	__u32 ifindex;
	__u32 seq;
	__u32 len;
	__u16 l4_at;
	__u16 header;
	__u32 gso_size;		/* data bytes per segment of the frame; 0: one segment */
	__u32 begun;		/* snoop_flow.begun: tells connections of the same key apart */
	__u64 at_ns;		/* CLOCK_MONOTONIC, coarse */
};

#endif
