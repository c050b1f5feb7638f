// SPDX-License-Identifier: GPL-2.0-only
/*
 * What of connections only the kernel sees: sock_diag does not tell whether an
 * application has set a buffer, what else bounds a window, nor what happened
 * between two looks.
 *
 * Each connection has a place for what happens to it, which goes with the
 * socket. Places are given by a walk over all connections (taut_connections),
 * which takes long where there are few, as the kernel's table has room for many;
 * and when a connection is opened (taut_opened), so that most looks need only go
 * over the places (taut_places). Two programs count in them, with the socket's
 * lock held, and do nothing at a connection that has none.
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

struct sock {
	struct socket *sk_socket;
	int sk_sndbuf;
	int sk_rcvbuf;
	unsigned long sk_max_pacing_rate;
	__u8 sk_userlocks:4;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u32 icsk_pmtu_cookie;
	__u8 icsk_ca_state:5;
	struct {
		__u32 enabled:1;
	} icsk_mtup;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 window_clamp;
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
} __attribute__((preserve_access_index));

/* The kernel's enum tcp_ca_state, whose numbers tcp_info has too. */
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
	STATE_TIME_WAIT = 6,
	STATE_CLOSE = 7,
	STATE_LISTEN = 10,
};

/* What a connection that rests has: while all of this is the same what
 * sock_diag tells is, too, but for the time that passes, its user and segments
 * that a filter drops.
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
	__u8 has_owner;		/* not so before it is accepted */
	__u8 pad[3];
};

#define STATE_WORDS (sizeof(struct state) / sizeof(__u64))

struct place {
	struct connection_events counts;
	/* As the last look found it, and the first one that found it so. */
	struct state state;
	__u64 changed;
	/* When that was sent whose round trip was counted last: one that is
	 * seen again is not counted again.
	 */
	__u64 rtt_of;
	__u64 signal_at;
	__u32 delivered;	/* at the last signal */
	__u32 version;		/* of counts; odd while they are written */
};

/* Two signals that are further apart, in time (69 s) or in segments, are not of
 * one time, and the squares of what is less can be added up for long.
 */
#define APART (1U << 20)
#define APART_SEGMENTS (1U << 24)

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct place);
} places SEC(".maps");

struct connection_look this_look;

/* Written once a look: every CPU reads it at every segment. */
static __always_inline void stir(void)
{
	if (!this_look.stirred)
		this_look.stirred = 1;
}

static __always_inline struct place *place_of(struct sock_common *common)
{
	return bpf_sk_storage_get(&places, common, NULL, 0);
}

/* One that has none. */
static __always_inline struct place *give_place(struct sock_common *common,
						struct tcp_sock *tp)
{
	struct place *place = NULL;

	if (this_look.room > 0)
		place = bpf_sk_storage_get(&places, common, NULL,
					   BPF_SK_STORAGE_GET_F_CREATE);
	if (!place) {
		__sync_fetch_and_add(&this_look.missed, 1);
		return NULL;
	}
	__sync_fetch_and_add(&this_look.room, -1);
	place->rtt_of = tp->rack.mstamp;
	return place;
}

static __always_inline void name(struct connection *seen,
				 struct sock_common *common)
{
	seen->family = common->skc_family;
	seen->interface = common->skc_bound_dev_if;
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

/* Whether it rests, and has since the look before: then sock_diag has nothing
 * new to tell. One that waits for an acknowledgement does not rest.
 */
static __always_inline void compare(struct place *place, struct tcp_sock *tp,
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
		.rtts = place->counts.rtts,
		.signals = place->counts.signals,
		.sndbuf = sk->sk_sndbuf,
		.rcvbuf = sk->sk_rcvbuf,
		.window_clamp = seen->window_clamp,
		.pmtu = tp->inet_conn.icsk_pmtu_cookie,
		.state = state,
		.locks = seen->locks,
		.mtu_probing = seen->mtu_probing,
		.has_owner = !!sk->sk_socket,
	};
	const __u64 *one = (const __u64 *)&now;
	__u64 *other = (__u64 *)&place->state, differs = 0;

	/* As a number: the verifier compares no pointers. */
	bpf_core_read(&now.congestion_ops, sizeof(now.congestion_ops),
		      &tp->inet_conn.icsk_ca_ops);
#pragma unroll
	for (__u32 i = 0; i < STATE_WORDS; i++) {
		differs |= one[i] ^ other[i];
		other[i] = one[i];
	}
	if (differs || now.write_seq != now.snd_una || state == STATE_SYN_RECV)
		place->changed = this_look.number;
}

/* Whoever counts has the socket's lock, and the reader has not: it sees all of an
 * event or nothing.
 */
static __always_inline void begin_count(struct place *place)
{
	/* Not an addition: without its result that would order nothing. */
	__sync_lock_test_and_set(&place->version, place->version + 1);
}

static __always_inline void end_count(struct place *place)
{
	__sync_lock_test_and_set(&place->version, place->version + 1);
}

/* How often the counts are read again that were written meanwhile. */
#define READS 4

static __always_inline bool read_counts(struct place *place,
					struct connection_events *counts)
{
	__u32 version;

	for (int i = 0; i < READS; i++) {
		version = __sync_fetch_and_add(&place->version, 0);
		*counts = place->counts;
		if (version % 2 == 0 &&
		    version == __sync_fetch_and_add(&place->version, 0))
			return true;
	}
	return false;
}

static __always_inline void describe(struct connection *seen,
				     struct sock_common *common,
				     struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;

	name(seen, common);
	seen->is_whole = 1;
	seen->window_clamp = tp->window_clamp;
	seen->mtu_probing = !!BPF_CORE_READ_BITFIELD(&tp->inet_conn,
						     icsk_mtup.enabled);
	seen->locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks) &
		      (CONNECTION_SNDBUF_LOCKED | CONNECTION_RCVBUF_LOCKED);
}

SEC("iter/tcp")
int taut_connections(struct bpf_iter__tcp *ctx)
{
	struct connection seen = {};
	struct sock_common *common = ctx->sk_common;
	struct place *place;
	struct tcp_sock *tp;
	__u8 state;

	if (!common)
		return 0;
	state = common->skc_state;
	if (state == STATE_LISTEN || state == STATE_TIME_WAIT)
		return 0;
	seen.head.cookie = bpf_get_socket_cookie(common);
	seen.head.netns = common->skc_net.net->ns.inum;
	seen.head.size = sizeof(seen);
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp) {
		/* One that is being made. */
		name(&seen, common);
		goto write;
	}
	describe(&seen, common, tp);
	place = place_of(common);
	if (place)
		__sync_fetch_and_add(&this_look.room, -1);
	else
		place = give_place(common, tp);
	if (place) {
		compare(place, tp, &seen, state);
		seen.head.changed = place->changed;
		seen.has_events = read_counts(place, &seen.events);
	}
write:
	bpf_seq_write(ctx->meta->seq, &seen, sizeof(seen));
	return 0;
}

SEC("iter/bpf_sk_storage_map")
int taut_places(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct connection seen = {};
	struct place *place = ctx->value;
	struct sock *sk = ctx->sk;
	struct sock_common *common = (struct sock_common *)sk;
	struct tcp_sock *tp;
	__u8 state;

	if (!sk || !place)
		return 0;
	state = common->skc_state;
	if (state == STATE_LISTEN || state == STATE_TIME_WAIT ||
	    state == STATE_CLOSE)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	__sync_fetch_and_add(&this_look.room, -1);
	seen.head.cookie = bpf_get_socket_cookie(tp);
	seen.head.netns = common->skc_net.net->ns.inum;
	describe(&seen, common, tp);
	compare(place, tp, &seen, state);
	seen.head.changed = place->changed;
	if (place->changed && place->changed < this_look.number) {
		seen.head.size = sizeof(seen.head);
		bpf_seq_write(ctx->meta->seq, &seen.head, sizeof(seen.head));
		return 0;
	}
	seen.head.size = sizeof(seen);
	seen.has_events = read_counts(place, &seen.events);
	if (!seen.has_events)
		place->changed = this_look.number + 1;
	bpf_seq_write(ctx->meta->seq, &seen, sizeof(seen));
	return 0;
}

/* A connection is opened, by this end or by the peer. */
SEC("tp_btf/inet_sock_set_state")
int taut_opened(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sock_common *common = (struct sock_common *)sk;
	int state = ctx[2];
	struct tcp_sock *tp;

	if (state != STATE_ESTABLISHED && state != STATE_SYN_SENT)
		return 0;
	if (this_look.netns && this_look.netns != common->skc_net.net->ns.inum)
		return 0;
	stir();
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp && !place_of(common))
		give_place(common, tp);
	return 0;
}

/* A segment came, and what was acknowledged before it has been measured. */
SEC("tp_btf/tcp_probe")
int taut_round_trip(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct place *place = bpf_sk_storage_get(&places, sk, NULL, 0);
	struct tcp_sock *tp;
	__u32 rtt;

	if (!place)
		return 0;
	stir();
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || tp->rack.mstamp == place->rtt_of)
		return 0;
	place->rtt_of = tp->rack.mstamp;
	rtt = tp->rack.rtt_us;
	begin_count(place);
	place->counts.rtts++;
	place->counts.rtt_sum += rtt;
	if (rtt > place->counts.rtt_most)
		place->counts.rtt_most = rtt;
	end_count(place);
	return 0;
}

/* The state of congestion control becomes another. */
SEC("tp_btf/tcp_cong_state_set")
int taut_congestion(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	__u8 to = ctx[1];
	struct place *place = bpf_sk_storage_get(&places, sk, NULL, 0);
	__u64 cwnd, between, time, now;
	struct tcp_sock *tp;
	__u8 from;

	if (!place)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	from = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	/* Until all is repaired it is one signal, also where repairs are lost. */
	if (to < CA_CWR || from >= CA_CWR)
		return 0;
	/* A segment that was too large for the path: the window stays. */
	if (to == CA_LOSS && !tp->undo_marker)
		return 0;
	now = bpf_ktime_get_ns() >> CONNECTION_TIME_SHIFT;
	time = now - place->signal_at;
	between = (__u32)(tp->delivered - place->delivered);
	begin_count(place);
	if (place->counts.signals && time < APART && between < APART_SEGMENTS) {
		place->counts.between++;
		place->counts.between_sum += between;
		place->counts.between_squares += between * between;
		place->counts.between_times += time;
		place->counts.between_time_squares += time * time;
		place->counts.between_products += between * time;
	}
	place->signal_at = now;
	place->delivered = tp->delivered;
	cwnd = tp->prior_cwnd;
	place->counts.signals++;
	place->counts.fast_retransmits += to == CA_RECOVERY;
	place->counts.signal_cwnd_sum += cwnd;
	place->counts.signal_cwnd_squares += cwnd * cwnd;
	place->counts.signal_rtt_sum += tp->rack.rtt_us;
	end_count(place);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
