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
	__u32 rtts;		/* measured round trips */
	__u32 rtt_most;
	__u32 rtt_most_recent;	/* since the scan before this one began */
	/* The fastest train of acknowledgements since the scan before this one began, in
	 * segments a second.
	 */
	__u32 train_most_recent;
	__u32 trains;
	__u32 signals;
	/* Zero without a signal. The record of a connection without one ends here. */
	__u32 fast_retransmits;
	__u32 between;		/* pairs of signals, less than 69 s apart */
	__u64 signal_rtt_sum;	/* of the round trips before each signal */
	__u64 signal_cwnd_sum;	/* of the windows at each signal */
	__u64 signal_cwnd_squares;
	__u64 between_sum;	/* of segments delivered between two signals */
	__u64 between_squares;
	__u64 between_times;	/* of the times between two signals, in 65.5 us */
	__u64 between_time_squares;
	__u64 between_products;	/* of segments and times */
};

/* Shifts nanoseconds to the unit of the times between signals. */
#define CONNECTION_TIME_SHIFT 16

/* The head of each record. The record of an unchanged connection ends here, and so does
 * that of a connection whose figures are read.
 */
struct connection_head {
	__u64 cookie;
	__u64 changed;		/* the scan that first found it as it is now; 0: unknown */
	__u32 netns;		/* inode of its network namespace */
	__u16 size;		/* size of this record in bytes */
	__u16 place;		/* of its figures, from 1 on; 0: none */
};

/* The addresses and ports of a connection, as sock_diag takes them (struct
 * inet_diag_sockid).
 */
struct connection_name {
	__u32 local[4];
	__u32 remote[4];
	__be16 local_port;
	__be16 remote_port;
	__u16 family;
	__u16 pad;
};

struct connection {
	struct connection_head head;
	__u32 window_clamp;	/* the widest window that may be offered */
	__u8 locks;		/* of enum connection_locks */
	__u8 mtu_probing;	/* packetization-layer path MTU discovery is on */
	__u8 has_events;	/* the events below are valid */
	__u8 is_whole;		/* 0: a handshake, of which only the name below is valid */
	__u32 interface;	/* to which it is bound; 0: none */
	struct connection_name name;
	__u32 max_window;	/* the widest window that the peer ever advertised */
	/* Where its sequence numbers begin: SND.UNA less the bytes acknowledged,
	 * and RCV.NXT less the bytes received.
	 */
	__u32 sent_base;
	__u32 received_base;
	struct connection_events events;
};

/*
 * A changed connection, with what sock_diag would report of it. What stays the same
 * while the TCP state, the owner and the congestion control do is left out. Ticks are
 * those of the kernel's clock (jiffies).
 */
struct connection_figures {
	struct connection seen;
	__u64 pacing_rate;
	__u64 max_pacing_rate;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u64 bbr_bandwidth;	/* bytes a second */
	/* Segments that were delivered in this time, of the last rate sample. */
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 srtt_us;		/* eight times the round trip */
	__u32 mdev_us;		/* four times its deviation */
	__u32 min_rtt_us;
	__u32 rcv_rtt_us;	/* eight times the receiver's round trip */
	__u32 rto_ticks;
	__u32 since_sent_ticks;
	__u32 since_received_ticks;
	__u32 since_acked_ticks;
	__u32 busy_ticks;
	__u32 rwnd_ticks;
	__u32 sndbuf_ticks;
	__u32 cwnd;
	__u32 ssthresh;
	__u32 mss;
	__u32 pmtu;
	__u32 packets_out;
	__u32 sacked_out;
	__u32 lost_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 reordering;
	__u32 reord_seen;
	__u32 dsack_dups;
	__u32 rcv_ooopack;
	__u32 rcv_ssthresh;
	__u32 rcv_space;
	__u32 snd_wnd;
	__u32 rcv_wnd;
	__u32 segs_out;
	__u32 segs_in;
	__u32 data_segs_out;
	__u32 data_segs_in;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 notsent_bytes;
	__u32 total_rto_ms;
	__u32 recv_queue;
	__u32 send_queue;
	/* Of the socket's memory, as in INET_DIAG_SKMEMINFO. */
	__u32 rmem_alloc;
	__u32 rcvbuf;
	__u32 wmem_alloc;
	__u32 sndbuf;
	__u32 fwd_alloc;
	__u32 wmem_queued;
	__u32 drops;
	__u32 bbr_min_rtt_us;
	__u16 bbr_pacing_gain;	/* in 1/256 */
	__u16 bbr_cwnd_gain;
	__u16 rcv_mss;
	__u16 total_rto;
	__u8 ca_state;
	__u8 retransmits;
	__u8 probes;
	__u8 backoff;
	__u8 app_limited;
	__u8 has_bbr;	/* those of BBR are valid if it is the congestion control */
	__u8 pad[2];
};

/* The figures of this many connections are read at once. */
#define CONNECTION_PAGE 64

struct connection_page {
	struct connection_figures of[CONNECTION_PAGE];
};

/* The process that connected, accepted or closed a connection. */
struct connection_owner {
	__u64 began;	/* when it started, in ns after boot; 0: unknown */
	__u32 pid;
	__u8 name[16];
	__u32 pad;
};

/* The record that is written when a connection ends. Times are in ns
 * (CLOCK_MONOTONIC), counts of ticks in the kernel's clock (jiffies).
 */
struct connection_end {
	__u64 cookie;
	__u64 at;
	__u64 opened;	/* when its SYN was sent; 0: before it was followed, or by the peer */
	__u64 established;	/* 0: never, or before it was followed */
	__u64 cgroup;	/* ID; 0: unknown */
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;	/* payload, retransmissions included */
	__u64 bytes_retrans;
	struct connection_owner owner;
	struct connection_name name;
	__u32 netns;
	__u32 uid;
	__u32 data_segs_out;
	__u32 retransmitted;	/* segments */
	__u32 signals;	/* of congestion */
	__u32 cwnd;	/* segments */
	__u32 ssthresh;	/* segments */
	__u32 handshake_us;	/* round trip of a handshake that the peer began */
	__u32 busy_ticks;	/* with data in flight, whatever limited it */
	__u32 rwnd_ticks;
	__u32 sndbuf_ticks;
	__u32 lost_ticks;	/* from a loss to the end of its recovery */
	__u32 receiving_ticks;	/* between segments with data, less long silences (note_data) */
	__u8 flags;	/* of enum connection_flags */
	__u8 state;	/* before its end (net/tcp_states.h) */
	__u16 pad;
};

enum connection_flags {
	CONNECTION_FOLLOWED = 1,	/* from its SYN or its handshake on */
	CONNECTION_OPENED_HERE = 2,
	CONNECTION_FIN_RECEIVED = 4,
	CONNECTION_ALL_ACKED = 8,
};

/* User space sets it when a scan begins. */
struct connection_scan {
	__u64 number;	/* the first is 1 */
	__s64 room;	/* how many more connections may get a slot */
	__u32 netns;	/* inode of the only namespace that is scanned; 0: all */
	__u32 has_activity;	/* a segment arrived, or a connection was opened, since it began */
	__u32 writes_ends;	/* user space reads the ring buffer */
	__u32 pidns;	/* inode of the pid namespace to which reported pids belong */
	__u32 places;	/* how many more connections may have their figures written */
	__u32 notes_opened;	/* no iterator lists slots: the namespaces are to be walked */
};

/* Only the programs write it, so that the beginning of a scan loses no count. The
 * counts begin when the programs are loaded.
 */
struct connection_counted {
	__u64 missed;	/* connections without a slot, each time that one was wanted */
	__u64 ends_missed;	/* ends for which the ring buffer had no room */
	__u64 namespaces_missed;	/* to walk, but not noted */
	__u64 at;	/* when an iterator ended last, in ns (CLOCK_MONOTONIC) ... */
	__u64 ticks;	/* ... and in ticks */
};

/* Flags for buffers whose size the application set (SO_SNDBUF, SO_RCVBUF), which
 * disables autotuning. The kernel's SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK.
 */
enum connection_locks {
	CONNECTION_SNDBUF_LOCKED = 1,
	CONNECTION_RCVBUF_LOCKED = 2,
};

#endif
