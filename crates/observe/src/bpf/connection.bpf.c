// SPDX-License-Identifier: GPL-2.0-only
/*
 * Collects the data that sock_diag does not report: whether an application set a
 * buffer size, what else bounds a window, and the events between two scans.
 *
 * The events of a connection are stored in a slot in socket storage, which
 * disappears with the socket. A connection gets its slot when it is opened
 * (taut_state), or from a walk over all connections (taut_connections). A walk
 * takes long even with few connections, because the kernel's hash table is
 * large; so most scans visit only the slots (taut_slots). Handshakes that a peer
 * has begun have no slot; taut_handshake tells in which namespaces a walk finds
 * some. Where no iterator over slots can be loaded, taut_state tells in which ones a
 * connection was opened. Two programs count events. They run with the socket locked and
 * ignore connections without a slot.
 *
 * The slot also has the life of a connection (life.h): the process that connected or
 * accepted, and the times of the handshake and of losses. When the connection ends,
 * taut_state writes them, with the final figures, to a ring buffer.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "connection.h"

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct in6_addr {
	struct {
		__be32 u6_addr32[4];
	} in6_u;
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	unsigned long skc_flags;
	int skc_bound_dev_if;
	struct {
		struct net *net;
	} skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

struct sock;

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct sock *sk;
	void *value;
} __attribute__((preserve_access_index));

struct socket;
struct tcp_congestion_ops;

struct kernfs_node {
	__u64 id;
} __attribute__((preserve_access_index));

struct cgroup {
	struct kernfs_node *kn;
} __attribute__((preserve_access_index));

struct sock_cgroup_data {
	struct cgroup *cgroup;
} __attribute__((preserve_access_index));

typedef struct {
	int counter;
} __attribute__((preserve_access_index)) atomic_t;

typedef struct refcount_struct {
	atomic_t refs;
} __attribute__((preserve_access_index)) refcount_t;

struct qspinlock {
	atomic_t val;
} __attribute__((preserve_access_index));

struct raw_spinlock {
	struct qspinlock raw_lock;
} __attribute__((preserve_access_index));

typedef struct spinlock {
	struct raw_spinlock rlock;
} __attribute__((preserve_access_index)) spinlock_t;

typedef struct {
	spinlock_t slock;
	int owned;
} __attribute__((preserve_access_index)) socket_lock_t;

struct minmax_sample {
	__u32 v;
} __attribute__((preserve_access_index));

struct minmax {
	struct minmax_sample s[3];
} __attribute__((preserve_access_index));

struct sock {
	socket_lock_t sk_lock;
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
	refcount_t sk_wmem_alloc;
	atomic_t sk_drops;
	int sk_forward_alloc;
	int sk_wmem_queued;
	unsigned long sk_pacing_rate;
	struct socket *sk_socket;
	struct sock_cgroup_data sk_cgrp_data;
	struct {
		__u32 val;
	} sk_uid;
	int sk_sndbuf;
	int sk_rcvbuf;
	unsigned long sk_max_pacing_rate;
	__u8 sk_userlocks:4;
} __attribute__((preserve_access_index));

struct inet_sock {
	__be16 inet_sport;
} __attribute__((preserve_access_index));

/* BBR's state (net/ipv4/tcp_bbr.c), in the memory of the congestion control. */
struct bbr {
	__u32 min_rtt_us;
	struct minmax bw;
	__u32 lt_bw;
	__u32 lt_use_bw:1;
	__u32 pacing_gain:10;
	__u32 cwnd_gain:10;
} __attribute__((preserve_access_index));

#define BBR_WORDS 13

/* Bandwidths of BBR are in segments a microsecond, with this many bits of fraction. */
#define BBR_SCALE 24

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u32 icsk_pmtu_cookie;
	__u32 icsk_rto;		/* in ticks */
	__u8 icsk_ca_state:5;
	__u8 icsk_retransmits;
	__u8 icsk_backoff;
	__u8 icsk_probes_out;
	struct {
		__u32 lrcvtime;
		__u16 rcv_mss;
	} icsk_ack;
	struct {
		__u32 enabled:1;
	} icsk_mtup;
	__u64 icsk_ca_priv[BBR_WORDS];
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 window_clamp;
	__u32 max_window;
	__u32 segs_in;
	__u32 segs_out;
	__u32 write_seq;
	__u32 snd_una;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 delivered;
	__u32 prior_cwnd;
	__u32 undo_marker;
	struct {
		__u64 mstamp;
		__u32 rtt_us;
	} rack;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u32 data_segs_out;
	__u32 total_retrans;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 srtt_us;
	__u32 lsndtime;
	__u32 chrono_start;
	__u32 chrono_stat[3];
	__u8 chrono_type:2;
	__u8 rate_app_limited:1;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 mdev_us;
	struct minmax rtt_min;
	struct {
		__u32 rtt_us;
	} rcv_rtt_est;
	struct {
		int space;
	} rcvq_space;
	__u32 rcv_tstamp;
	__u32 mss_cache;
	__u32 packets_out;
	__u32 sacked_out;
	__u32 lost_out;
	__u32 retrans_out;
	__u32 reordering;
	__u32 reord_seen;
	__u32 dsack_dups;
	__u32 rcv_ooopack;
	__u32 rcv_ssthresh;
	__u32 snd_wnd;
	__u32 rcv_wnd;
	__u32 data_segs_in;
	__u32 delivered_ce;
	__u32 snd_nxt;
	__u32 rto_stamp;
	__u32 total_rto_time;
	__u16 total_rto;
} __attribute__((preserve_access_index));

/* The kernel's enum tcp_ca_state; tcp_info uses the same values. */
enum {
	CA_CWR = 2,
	CA_RECOVERY = 3,
	CA_LOSS = 4,
};

enum {
	FAMILY_INET = 2,
	FAMILY_INET6 = 10,
};

enum {
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
	STATE_SYN_RECV = 3,
	STATE_FIN_WAIT1 = 4,
	STATE_FIN_WAIT2 = 5,
	STATE_TIME_WAIT = 6,
	STATE_CLOSE = 7,
	STATE_LAST_ACK = 9,
	STATE_LISTEN = 10,
	STATE_CLOSING = 11,
};

/* What happened to a connection since it was opened. */
struct life {
	struct connection_owner owner;
	__u64 opened;
	__u64 established;
	__u32 handshake_us;
	__u32 lost_since;	/* in ticks; 0: nothing is lost */
	__u32 lost_ticks;
	__u32 last_data;	/* when a segment with data arrived last, in ticks; 0: none */
	__u32 receiving_ticks;
	__u8 flags;	/* of enum connection_flags */
	__u8 pad[3];
};

/* While these fields are unchanged, sock_diag reports the same data, except for
 * elapsed times, the owner, and segments that a filter drops.
 */
struct state {
	__u64 congestion_ops;
	__u64 max_pacing_rate;
	__u32 segs_in;
	__u32 segs_out;
	__u32 write_seq;
	__u32 snd_una;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 rtts;
	__u32 signals;
	__u32 sndbuf;
	__u32 rcvbuf;
	__u32 window_clamp;
	__u32 pmtu;
	__u16 state;
	__u8 locks;
	__u8 mtu_probing;
	__u8 has_owner;		/* 0 until it is accepted */
	__u8 pad[3];
	__u32 uid;
	__u32 pad_end;
};

#define STATE_WORDS (sizeof(struct state) / sizeof(__u64))

struct slot {
	struct connection_events counts;
	/* The state at the last scan, and the first scan that found this state. */
	struct state state;
	__u64 changed;
	/* The last scan that found a change that is not among the figures. The kernel
	 * shows an element again if its record did not fit into a read.
	 */
	__u64 other_changed;
	/* The scan in whose room the slot is counted; 0: the connection has ended. */
	__u64 counted_in;
	/* Send time of the segment whose round trip was counted last. Prevents
	 * counting a round trip twice.
	 */
	__u64 rtt_of;
	/* The last scan in which a round trip was noted, the longest round trip since
	 * it began, and the longest between the beginnings of the scan before and of it.
	 */
	__u64 longest_scan;
	__u32 longest;
	__u32 longest_before;
	/* The fastest train of each, in the same way. */
	__u32 fastest;
	__u32 fastest_before;
	/* The train of acknowledgements that is measured: when its first segment and its
	 * last arrived, and what was delivered by then.
	 */
	__u64 train_began;
	__u64 train_last;
	__u32 train_first_delivered;
	__u32 train_delivered;
	__u64 arrived;		/* when the last segment arrived */
	__u64 signal_at;
	__u32 delivered;	/* at the last signal */
	__u32 version;		/* of counts; odd during a write */
	struct life life;
};

/* Two signals are unrelated if more than 69 s or this many segments lie between
 * them. The limits also keep the sums of squares from overflowing.
 */
#define APART (1U << 20)
#define APART_SEGMENTS (1U << 24)

/* Acknowledgements are of one train if less than a sixteenth of the round trip, or
 * this time, is between them. A train has at least so many segments and is at least
 * so long, so that acknowledgements that a device or a queue bundles do not look
 * like a faster path. One that goes on is cut after an eighth of the round trip, or
 * after the longer time.
 */
#define TRAIN_GAP_NS 2000000
#define TRAIN_SEGMENTS 4
#define TRAIN_SEGMENTS_MOST (1U << 20)
#define TRAIN_LEAST_NS 1000000
#define TRAIN_CUT_NS 4000000

#define CONNECTION_WITHOUT_SIGNALS \
	__builtin_offsetof(struct connection, events.fast_retransmits)

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct connection_page);
} figures SEC(".maps");

/* The namespaces that are to be walked, until user space removes them: those in which a
 * connection that a peer opens has waited for its acknowledgement for long enough to be
 * sent the SYN-ACK again, and if there is no iterator over slots, those in which one was
 * opened. Keys are inodes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u8);
} to_walk SEC(".maps");

struct connection_scan this_scan;
struct connection_counted counted SEC(".data.counted");

/* Writes has_activity only once a scan, because every CPU reads it at every
 * segment.
 */
static __always_inline void note_activity(void)
{
	if (!this_scan.has_activity)
		this_scan.has_activity = 1;
}

static __always_inline struct slot *slot_of(struct sock_common *common)
{
	return bpf_sk_storage_get(&slots, common, NULL, 0);
}

/* Counts a slot only once a scan, because a socket keeps its slot when it connects
 * again.
 */
static __always_inline void take_room(struct slot *slot)
{
	__u64 scan = this_scan.number;

	if (slot->counted_in == scan)
		return;
	slot->counted_in = scan;
	__sync_fetch_and_add(&this_scan.room, -1);
}

static __always_inline void give_room(struct slot *slot)
{
	if (slot->counted_in == this_scan.number)
		__sync_fetch_and_add(&this_scan.room, 1);
	slot->counted_in = 0;
}

/* Gives a slot to a connection that has none. */
static __always_inline struct slot *give_slot(struct sock_common *common,
						struct tcp_sock *tp)
{
	struct slot *slot = NULL;

	if (this_scan.room > 0)
		slot = bpf_sk_storage_get(&slots, common, NULL,
					   BPF_SK_STORAGE_GET_F_CREATE);
	if (!slot) {
		__sync_fetch_and_add(&counted.missed, 1);
		return NULL;
	}
	take_room(slot);
	slot->rtt_of = tp->rack.mstamp;
	return slot;
}

static __always_inline void name(struct connection_name *seen,
				 struct sock_common *common)
{
	seen->family = common->skc_family;
	seen->local_port = bpf_htons(common->skc_num);
	seen->remote_port = common->skc_dport;
	if (seen->family == FAMILY_INET) {
		seen->local[0] = common->skc_rcv_saddr;
		seen->remote[0] = common->skc_daddr;
	} else if (seen->family == FAMILY_INET6 &&
		   bpf_core_field_exists(common->skc_v6_daddr)) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			seen->local[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			seen->remote[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
		}
	}
}

#include "life.h"

/* Records the current scan in slot->changed if the connection has changed. A
 * connection that waits for an acknowledgement counts as changed. Returns whether
 * something has changed that is not among the figures.
 */
static __always_inline bool compare(struct slot *slot, struct tcp_sock *tp,
				    const struct connection *seen, __u16 state)
{
	struct sock *sk = (struct sock *)tp;
	struct state now = {
		.max_pacing_rate = sk->sk_max_pacing_rate,
		.segs_in = tp->segs_in,
		.segs_out = tp->segs_out,
		.write_seq = tp->write_seq,
		.snd_una = tp->snd_una,
		.rcv_nxt = tp->rcv_nxt,
		.copied_seq = tp->copied_seq,
		.rtts = slot->counts.rtts,
		.signals = slot->counts.signals,
		.sndbuf = sk->sk_sndbuf,
		.rcvbuf = sk->sk_rcvbuf,
		.window_clamp = seen->window_clamp,
		.pmtu = tp->inet_conn.icsk_pmtu_cookie,
		.state = state,
		.locks = seen->locks,
		.mtu_probing = seen->mtu_probing,
		.has_owner = !!sk->sk_socket,
		.uid = sk->sk_uid.val,
	};
	const __u64 *one = (const __u64 *)&now;
	__u64 *other = (__u64 *)&slot->state, differs = 0;

	/* Read as a number, because the verifier forbids comparing pointers. */
	bpf_core_read(&now.congestion_ops, sizeof(now.congestion_ops),
		      &tp->inet_conn.icsk_ca_ops);
	if (now.congestion_ops != slot->state.congestion_ops ||
	    now.state != slot->state.state ||
	    now.has_owner != slot->state.has_owner ||
	    now.uid != slot->state.uid)
		slot->other_changed = this_scan.number;
#pragma unroll
	for (__u32 i = 0; i < STATE_WORDS; i++) {
		differs |= one[i] ^ other[i];
		other[i] = one[i];
	}
	if (differs || now.write_seq != now.snd_una || state == STATE_SYN_RECV)
		slot->changed = this_scan.number;
	return slot->other_changed == this_scan.number;
}

/* A program that counts holds the socket's lock; a reader does not. The version
 * lets a reader see all counts of an event or none.
 */
static __always_inline void begin_count(struct slot *slot)
{
	/* An exchange, because an atomic addition whose result is unused does not
	 * order memory accesses.
	 */
	__sync_lock_test_and_set(&slot->version, slot->version + 1);
}

static __always_inline void end_count(struct slot *slot)
{
	__sync_lock_test_and_set(&slot->version, slot->version + 1);
}

/* Begins the extremes of a scan. */
static __always_inline void begin_extremes(struct slot *slot)
{
	__u64 scan = this_scan.number;
	bool follows = slot->longest_scan + 1 == scan;

	if (slot->longest_scan == scan)
		return;
	slot->longest_before = follows ? slot->longest : 0;
	slot->fastest_before = follows ? slot->fastest : 0;
	slot->longest_scan = scan;
	slot->longest = 0;
	slot->fastest = 0;
}

/* Notes a round trip for the longest of each scan. */
static __always_inline void note_longest(struct slot *slot, __u32 rtt)
{
	begin_extremes(slot);
	if (rtt > slot->longest)
		slot->longest = rtt;
	if (rtt > slot->counts.rtt_most)
		slot->counts.rtt_most = rtt;
}

/* The larger of this scan's extreme and the one of the scan before. */
static __always_inline __u32 recent(const struct slot *slot, __u32 now, __u32 before)
{
	__u64 scan = this_scan.number;

	if (slot->longest_scan == scan && before > now)
		return before;
	return slot->longest_scan + 1 >= scan ? now : 0;
}

/* Notes the rate of the train that has ended. */
static __always_inline void end_train(struct slot *slot)
{
	__u64 time = slot->train_last - slot->train_began, rate;
	__u32 segments = slot->train_delivered - slot->train_first_delivered;

	if (segments < TRAIN_SEGMENTS || segments > TRAIN_SEGMENTS_MOST ||
	    time < TRAIN_LEAST_NS)
		return;
	rate = segments * 1000000000ULL / time;
	begin_count(slot);
	slot->counts.trains++;
	begin_extremes(slot);
	if (rate > slot->fastest)
		slot->fastest = rate;
	end_count(slot);
}

static __always_inline __u64 longer(__u64 one, __u64 other)
{
	return one > other ? one : other;
}

/* Follows the train of acknowledgements. `delivered` is what the segments before
 * this one have delivered, so it belongs to the time at which the last of them
 * arrived.
 */
static __always_inline void note_train(struct slot *slot, struct tcp_sock *tp)
{
	__u64 at = slot->arrived, round_trip;
	__u32 delivered = tp->delivered;
	bool is_gap, is_long;

	slot->arrived = bpf_ktime_get_ns();
	if (!at || delivered == slot->train_delivered)
		return;
	/* srtt_us is eight times the round trip in us. */
	round_trip = tp->srtt_us * 125ULL;
	is_gap = at - slot->train_last > longer(round_trip / 16, TRAIN_GAP_NS);
	if (is_gap)
		end_train(slot);
	slot->train_last = at;
	slot->train_delivered = delivered;
	is_long = at - slot->train_began > longer(round_trip / 8, TRAIN_CUT_NS);
	if (!is_gap && is_long)
		end_train(slot);
	if (is_gap || is_long) {
		slot->train_began = at;
		slot->train_first_delivered = delivered;
	}
}

/* The maximum number of attempts to read counts that are being written. */
#define READS 4

static __always_inline bool read_counts(struct slot *slot,
					struct connection_events *counts)
{
	__u32 version;

	for (int i = 0; i < READS; i++) {
		version = __sync_fetch_and_add(&slot->version, 0);
		*counts = slot->counts;
		counts->rtt_most_recent =
			recent(slot, slot->longest, slot->longest_before);
		counts->train_most_recent =
			recent(slot, slot->fastest, slot->fastest_before);
		if (version % 2 == 0 &&
		    version == __sync_fetch_and_add(&slot->version, 0))
			return true;
	}
	return false;
}

/* Sets the fields that compare() needs. */
static __always_inline void describe(struct connection *seen, struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;

	seen->window_clamp = tp->window_clamp;
	seen->mtu_probing = !!BPF_CORE_READ_BITFIELD(&tp->inet_conn,
						     icsk_mtup.enabled);
	seen->locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks) &
		      (CONNECTION_SNDBUF_LOCKED | CONNECTION_RCVBUF_LOCKED);
}

/* Sets the other fields, which cost cache misses. */
static __always_inline void describe_whole(struct connection *seen,
					   struct sock_common *common,
					   struct tcp_sock *tp)
{
	name(&seen->name, common);
	seen->interface = common->skc_bound_dev_if;
	seen->is_whole = 1;
	seen->max_window = tp->max_window;
	seen->sent_base = tp->snd_una - (__u32)tp->bytes_acked;
	seen->received_base = tp->rcv_nxt - (__u32)tp->bytes_received;
}

/* Whether a program of the kernel uses the connection right now. */
static __always_inline bool is_in_use(struct sock *sk)
{
	return sk->sk_lock.slock.rlock.raw_lock.val.counter || sk->sk_lock.owned;
}

/* Sets what BBR would report if it is the congestion control; nothing if the kernel has
 * no BBR, or another version of it.
 */
static __always_inline void read_bbr(struct connection_figures *to, struct tcp_sock *tp)
{
	__u64 words[BBR_WORDS] = {}, bandwidth;
	struct bbr *bbr = (struct bbr *)words;

	to->has_bbr = 0;
	if (!bpf_core_field_exists(bbr->lt_use_bw) ||
	    bpf_core_type_size(struct bbr) > sizeof(words) ||
	    bpf_probe_read_kernel(words, sizeof(words), tp->inet_conn.icsk_ca_priv))
		return;
	bandwidth = BPF_CORE_READ_BITFIELD(bbr, lt_use_bw) ? bbr->lt_bw : bbr->bw.s[0].v;
	to->bbr_bandwidth = bandwidth * tp->mss_cache * 1000000 >> BBR_SCALE;
	to->bbr_min_rtt_us = bbr->min_rtt_us;
	to->bbr_pacing_gain = BPF_CORE_READ_BITFIELD(bbr, pacing_gain);
	to->bbr_cwnd_gain = BPF_CORE_READ_BITFIELD(bbr, cwnd_gain);
	to->has_bbr = 1;
}

/* Sets what sock_diag would report, or returns false. sock_diag locks the connection
 * while it reads, and an iterator over slots cannot. So the figures are valid only if
 * the connection is not in use before and after they are read, and no segment was sent
 * or received and no data written or read between: each use but that of an option does
 * one of them.
 */
static __always_inline bool read_figures(struct connection_figures *to,
					 struct slot *slot, struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	struct inet_connection_sock *inet = &tp->inet_conn;
	__u32 now = ticks_now(), write_seq, copied_seq;
	int bytes;

	if (!bpf_core_field_exists(sk->sk_lock.slock.rlock.raw_lock.val.counter) ||
	    is_in_use(sk))
		return false;
	/* Orders the reads after the one of the lock, and below before it. */
	__sync_fetch_and_add(&slot->version, 0);
	to->segs_in = tp->segs_in;
	to->segs_out = tp->segs_out;
	write_seq = tp->write_seq;
	copied_seq = tp->copied_seq;

	to->pacing_rate = sk->sk_pacing_rate;
	to->max_pacing_rate = sk->sk_max_pacing_rate;
	to->bytes_acked = tp->bytes_acked;
	to->bytes_received = tp->bytes_received;
	to->bytes_sent = tp->bytes_sent;
	to->bytes_retrans = tp->bytes_retrans;
	to->rate_delivered = tp->rate_delivered;
	to->rate_interval_us = tp->rate_interval_us;
	to->srtt_us = tp->srtt_us;
	to->mdev_us = tp->mdev_us;
	to->min_rtt_us = tp->rtt_min.s[0].v;
	to->rcv_rtt_us = tp->rcv_rtt_est.rtt_us;
	to->rto_ticks = inet->icsk_rto;
	to->since_sent_ticks = now - tp->lsndtime;
	to->since_received_ticks = now - inet->icsk_ack.lrcvtime;
	to->since_acked_ticks = now - tp->rcv_tstamp;
	to->rwnd_ticks = chrono(tp, CHRONO_RWND);
	to->sndbuf_ticks = chrono(tp, CHRONO_SNDBUF);
	to->busy_ticks = chrono(tp, CHRONO_BUSY) + to->rwnd_ticks + to->sndbuf_ticks;
	to->cwnd = tp->snd_cwnd;
	to->ssthresh = tp->snd_ssthresh;
	to->mss = tp->mss_cache;
	to->pmtu = inet->icsk_pmtu_cookie;
	to->packets_out = tp->packets_out;
	to->sacked_out = tp->sacked_out;
	to->lost_out = tp->lost_out;
	to->retrans_out = tp->retrans_out;
	to->total_retrans = tp->total_retrans;
	to->reordering = tp->reordering;
	to->reord_seen = tp->reord_seen;
	to->dsack_dups = tp->dsack_dups;
	to->rcv_ooopack = tp->rcv_ooopack;
	to->rcv_ssthresh = tp->rcv_ssthresh;
	to->rcv_space = tp->rcvq_space.space;
	to->snd_wnd = tp->snd_wnd;
	to->rcv_wnd = tp->rcv_wnd;
	to->data_segs_out = tp->data_segs_out;
	to->data_segs_in = tp->data_segs_in;
	to->delivered = tp->delivered;
	to->delivered_ce = tp->delivered_ce;
	bytes = write_seq - tp->snd_nxt;
	to->notsent_bytes = bytes > 0 ? bytes : 0;
	bytes = tp->rcv_nxt - copied_seq;
	to->recv_queue = bytes > 0 ? bytes : 0;
	to->send_queue = write_seq - tp->snd_una;
	to->rmem_alloc = sk->sk_backlog.rmem_alloc.counter;
	to->rcvbuf = sk->sk_rcvbuf;
	/* The socket itself counts as one. */
	to->wmem_alloc = sk->sk_wmem_alloc.refs.counter - 1;
	to->sndbuf = sk->sk_sndbuf;
	to->fwd_alloc = sk->sk_forward_alloc;
	to->wmem_queued = sk->sk_wmem_queued;
	to->drops = sk->sk_drops.counter;
	to->rcv_mss = inet->icsk_ack.rcv_mss;
	to->ca_state = BPF_CORE_READ_BITFIELD(inet, icsk_ca_state);
	to->retransmits = inet->icsk_retransmits;
	to->probes = inet->icsk_probes_out;
	to->backoff = inet->icsk_backoff;
	to->app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	read_bbr(to, tp);
	/* Since Linux 6.7. */
	if (bpf_core_field_exists(tp->total_rto_time)) {
		to->total_rto = tp->total_rto;
		to->total_rto_ms = tp->total_rto_time;
		if (tp->rto_stamp)
			to->total_rto_ms +=
				(__u32)(bpf_ktime_get_ns() / 1000000) - tp->rto_stamp;
	}

	__sync_fetch_and_add(&slot->version, 0);
	return tp->segs_in == to->segs_in && tp->segs_out == to->segs_out &&
	       tp->write_seq == write_seq && tp->copied_seq == copied_seq &&
	       !is_in_use(sk);
}

/* Returns the place for the figures of the next connection, and its number; NULL if
 * there is none.
 */
static __always_inline struct connection_figures *next_place(__u16 *number)
{
	__u32 left = this_scan.places, page;
	struct connection_page *found;

	if (!left)
		return NULL;
	page = (left - 1) / CONNECTION_PAGE;
	found = bpf_map_lookup_elem(&figures, &page);
	if (!found)
		return NULL;
	this_scan.places = left - 1;
	*number = left;
	return &found->of[(left - 1) % CONNECTION_PAGE];
}

/* Writes a record, without the part that is zero. Each read of an iterator returns
 * 32 KiB and goes over the connections before them again, so that small records save
 * more than their copies.
 */
static __always_inline void write_record(struct seq_file *seq, struct connection *seen)
{
	seen->head.size = sizeof(*seen);
	if (seen->events.signals) {
		bpf_seq_write(seq, seen, sizeof(*seen));
		return;
	}
	seen->head.size = CONNECTION_WITHOUT_SIGNALS;
	bpf_seq_write(seq, seen, CONNECTION_WITHOUT_SIGNALS);
}

SEC("iter/tcp")
int taut_connections(struct bpf_iter__tcp *ctx)
{
	struct connection seen = {};
	struct sock_common *common = ctx->sk_common;
	struct slot *slot;
	struct tcp_sock *tp;
	__u8 state;

	if (!common) {
		note_time();
		return 0;
	}
	state = common->skc_state;
	if (state == STATE_LISTEN || state == STATE_TIME_WAIT)
		return 0;
	seen.head.cookie = bpf_get_socket_cookie(common);
	seen.head.netns = common->skc_net.net->ns.inum;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp) {
		/* A handshake has no tcp_sock yet. */
		name(&seen.name, common);
		seen.interface = common->skc_bound_dev_if;
		goto write;
	}
	describe(&seen, tp);
	describe_whole(&seen, common, tp);
	slot = slot_of(common);
	if (slot)
		take_room(slot);
	else
		slot = give_slot(common, tp);
	if (slot) {
		compare(slot, tp, &seen, state);
		seen.head.changed = slot->changed;
		seen.has_events = read_counts(slot, &seen.events);
	}
write:
	write_record(ctx->meta->seq, &seen);
	return 0;
}

SEC("iter/bpf_sk_storage_map")
int taut_slots(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct connection seen = {};
	struct slot *slot = ctx->value;
	struct sock *sk = ctx->sk;
	struct sock_common *common = (struct sock_common *)sk;
	struct connection_figures *place;
	struct tcp_sock *tp;
	bool is_other;
	__u8 state;

	if (!sk || !slot) {
		note_time();
		return 0;
	}
	state = common->skc_state;
	if (state == STATE_LISTEN || state == STATE_TIME_WAIT ||
	    state == STATE_CLOSE)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	take_room(slot);
	seen.head.cookie = bpf_get_socket_cookie(tp);
	seen.head.netns = common->skc_net.net->ns.inum;
	describe(&seen, tp);
	is_other = compare(slot, tp, &seen, state);
	seen.head.changed = slot->changed;
	if (slot->changed && slot->changed < this_scan.number)
		goto head;
	describe_whole(&seen, common, tp);
	seen.has_events = read_counts(slot, &seen.events);
	if (!seen.has_events)
		slot->changed = this_scan.number + 1;
	place = is_other || !seen.has_events ? NULL : next_place(&seen.head.place);
	if (place && read_figures(place, slot, tp)) {
		place->seen = seen;
		goto head;
	}
	seen.head.place = 0;
	write_record(ctx->meta->seq, &seen);
	return 0;
head:
	seen.head.size = sizeof(seen.head);
	bpf_seq_write(ctx->meta->seq, &seen.head, sizeof(seen.head));
	return 0;
}

/* Notes a namespace in which a walk finds connections. */
static __always_inline void note_namespace(__u32 netns)
{
	__u8 seen = 1;

	if (!bpf_map_lookup_elem(&to_walk, &netns) &&
	    bpf_map_update_elem(&to_walk, &netns, &seen, BPF_ANY))
		__sync_fetch_and_add(&counted.namespaces_missed, 1);
}

/* Runs when the state of a connection changes. */
SEC("tp_btf/inet_sock_set_state")
int taut_state(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sock_common *common = (struct sock_common *)sk;
	int from = ctx[1], state = ctx[2];
	struct tcp_sock *tp;
	struct slot *slot;
	__u32 netns;

	switch (state) {
	case STATE_SYN_SENT:
	case STATE_ESTABLISHED:
		break;
	/* Runs in the context of the process that closes the connection. */
	case STATE_FIN_WAIT1:
	case STATE_LAST_ACK:
		slot = slot_of(common);
		tp = bpf_skc_to_tcp_sock(sk);
		if (!slot || !tp)
			return 0;
		note_owner(&slot->life);
		note_data(&slot->life, tp, tp->inet_conn.icsk_rto);
		return 0;
	case STATE_CLOSE:
		slot = slot_of(common);
		tp = bpf_skc_to_tcp_sock(sk);
		if (slot && tp && from != state)
			write_end(slot, tp, common, from);
		return 0;
	default:
		return 0;
	}
	netns = common->skc_net.net->ns.inum;
	if (this_scan.netns && this_scan.netns != netns)
		return 0;
	note_activity();
	if (this_scan.notes_opened)
		note_namespace(netns);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	slot = slot_of(common);
	if (slot)
		take_room(slot);
	else
		slot = give_slot(common, tp);
	if (!slot)
		return 0;
	if (state == STATE_SYN_SENT)
		note_connect(&slot->life);
	else
		note_established(&slot->life, tp, from);
	return 0;
}

/* Runs when a SYN-ACK is sent again. */
SEC("tp_btf/tcp_retransmit_synack")
int taut_handshake(__u64 *ctx)
{
	struct sock_common *listener = (struct sock_common *)ctx[0];
	__u32 netns = listener->skc_net.net->ns.inum;

	if (!this_scan.netns || this_scan.netns == netns)
		note_namespace(netns);
	return 0;
}

/* Notes the process that accepts a connection. `sk` is NULL if there is none. */
static __always_inline int accepted(struct sock *sk)
{
	struct slot *slot;

	if (!sk)
		return 0;
	slot = bpf_sk_storage_get(&slots, sk, NULL, 0);
	if (slot)
		note_owner(&slot->life);
	return 0;
}

/* inet_csk_accept() has two arguments since Linux 6.10, and had four before. */
SEC("fexit/inet_csk_accept")
int taut_accept_of_two(__u64 *ctx)
{
	return accepted((struct sock *)ctx[2]);
}

SEC("fexit/inet_csk_accept")
int taut_accept_of_four(__u64 *ctx)
{
	return accepted((struct sock *)ctx[4]);
}

/* Runs when a process reads. Used on kernels that cannot trace the end of a
 * function.
 */
SEC("tp_btf/tcp_rcv_space_adjust")
int taut_accept_by_read(__u64 *ctx)
{
	return accepted((struct sock *)ctx[0]);
}

/* Runs when a segment arrives. Earlier round trips have been measured by then. */
SEC("tp_btf/tcp_probe")
int taut_round_trip(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct slot *slot = bpf_sk_storage_get(&slots, sk, NULL, 0);
	struct tcp_sock *tp;
	__u32 rtt;

	if (!slot)
		return 0;
	note_activity();
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	note_data(&slot->life, tp, tp->inet_conn.icsk_rto);
	note_train(slot, tp);
	if (tp->rack.mstamp == slot->rtt_of)
		return 0;
	slot->rtt_of = tp->rack.mstamp;
	rtt = tp->rack.rtt_us;
	begin_count(slot);
	slot->counts.rtts++;
	slot->counts.rtt_sum += rtt;
	note_longest(slot, rtt);
	end_count(slot);
	return 0;
}

/* Runs when the congestion-avoidance state changes. */
SEC("tp_btf/tcp_cong_state_set")
int taut_congestion(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	__u8 to = ctx[1];
	struct slot *slot = bpf_sk_storage_get(&slots, sk, NULL, 0);
	__u64 cwnd, between, time, now;
	struct tcp_sock *tp;
	__u8 from;

	if (!slot)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	from = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	note_loss(&slot->life, tp, from, to);
	/* All losses until the end of recovery are one signal, even if
	 * retransmissions are lost.
	 */
	if (to < CA_CWR || from >= CA_CWR)
		return 0;
	/* A segment was too large for the path: the window is not reduced. */
	if (to == CA_LOSS && !tp->undo_marker)
		return 0;
	now = bpf_ktime_get_ns() >> CONNECTION_TIME_SHIFT;
	time = now - slot->signal_at;
	between = (__u32)(tp->delivered - slot->delivered);
	begin_count(slot);
	if (slot->counts.signals && time < APART && between < APART_SEGMENTS) {
		slot->counts.between++;
		slot->counts.between_sum += between;
		slot->counts.between_squares += between * between;
		slot->counts.between_times += time;
		slot->counts.between_time_squares += time * time;
		slot->counts.between_products += between * time;
	}
	slot->signal_at = now;
	slot->delivered = tp->delivered;
	cwnd = tp->prior_cwnd;
	slot->counts.signals++;
	slot->counts.fast_retransmits += to == CA_RECOVERY;
	slot->counts.signal_cwnd_sum += cwnd;
	slot->counts.signal_cwnd_squares += cwnd * cwnd;
	slot->counts.signal_rtt_sum += tp->rack.rtt_us;
	end_count(slot);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
