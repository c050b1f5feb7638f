// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_pipe: congestion control for the leg between two relays, where congestion is rare.
 *
 * "We essentially want a simple high-rate sending protocol capable of dealing with the very
 * rare loss events, without necessarily backing off" (pied-piper 3.1). So a connection starts
 * at the configured rate of its leg, or at the rate last known to reach that peer; connections
 * that start together share that rate. It is paced, so that a window of megabytes is not a
 * burst. While no queue stands, a lost segment is retransmitted and has no other effect; while
 * one does, the connection shares the link as Cubic would (taut_pipe_compete.h). Idle time does
 * not reduce the window, because the kernel does not touch that of a control with cong_control.
 *
 * The rate is where a connection starts. While all of it is delivered and no queue stands, it
 * grows by half, which must be delivered before it grows again; a raise that makes a queue or
 * losses is taken back. The leg's rate is what all its connections deliver together.
 *
 * Four rules keep this safe where the premise is wrong:
 *
 *  - A loss while a queue stands. Then the link is full, and others may use it: the connection
 *    shares it as CUBIC would (taut_pipe_compete.h), until no queue has stood for some rounds.
 *  - Persistent loss. If more than 2 % is lost in each of three consecutive rounds (a round
 *    is a round trip of 256 segments or more), the connection is handed to the kernel's own
 *    control, with a window of the bytes delivered in a round trip. The peer's known rate is
 *    lowered, so that the next connection does not learn it in the same way.
 *  - A standing queue. If in three consecutive rounds not one segment came back within twice
 *    the least round trip, and the queue is our own, the rate is lowered to the delivered
 *    rate. That costs no throughput, and frees the queue for the flows that share it.
 *  - The window is bounded by the least round trip, not by the smoothed one: a window that
 *    grows with the round trip would follow the queue that it causes.
 *
 * docs/design/turbo.md explains the figures.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "taut_pipe_decide.h"

/* The few fields of the kernel's types that are used; relocated at load
 * (CO-RE).
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	unsigned short skc_family;
	__be32 skc_daddr;
	struct in6_addr skc_v6_daddr;
};

struct sock {
	struct sock_common __sk_common;
	__u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u64 icsk_ca_priv[13];
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd;
	__u32 mss_cache;
	__u32 packets_out;
	__u32 sacked_out;
	__u32 lost_out;
	__u32 retrans_out;
	__u32 srtt_us;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 lost;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	struct minmax rtt_min;
};

struct rate_sample {
	__u32 prior_delivered;
	__s32 delivered;
	long interval_us;
	long rtt_us;
	__s32 losses;
	__u32 acked_sacked;
	__u32 prior_in_flight;
	_Bool is_app_limited;
};

/* libbpf matches members by name. The name comes first, where the loader
 * expects it.
 */
struct tcp_congestion_ops {
	char name[PIPE_CA_NAME_MAX];
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	__u32 (*ssthresh)(struct sock *sk);
	__u32 (*undo_cwnd)(struct sock *sk);
	__u32 (*sndbuf_expand)(struct sock *sk);
	__u32 (*min_tso_segs)(struct sock *sk);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, __u32 ev);
	void (*cong_control)(struct sock *sk);
};

#pragma clang attribute pop

#define AF_INET6		10
#define SOL_TCP			6
#define TCP_CONGESTION		13
#define SK_PACING_NONE		0
#define SK_PACING_NEEDED	1	/* by the kernel's own timer, unless there is fq */

#define CA_EVENT_TX_START	0
#define TCP_CA_LOSS		4
#define MIN_TSO_SEGS		2	/* the kernel's default, net.ipv4.tcp_min_tso_segs */

#define ROUND_MIN		256	/* segments; a shorter round says too little about 2 % */
#define IDLE_MIN		(10 * 1000 * 1000ULL)	/* ns */

/* A connection's state, in the 104 bytes that the kernel gives a congestion control. */
struct pipe {
	struct pipe_pace pace;
	__u64	delivery;		/* highest rate of delivery in this round */
	__u64	leg_born;		/* identifies the leg's entry that counts this connection */
	__u32	measured_us;		/* when the measurement of rates began, ktime */
	__u32	measured_from;		/* tp->delivered then */
	__u32	measured_leg_kb;	/* what the leg had delivered then, in units of 1024 bytes */
	__u32	round_delivered;	/* tp->delivered when the round began */
	__u32	round_lost;		/* tp->lost then */
	__u32	marked;			/* tp->delivered_ce at the last acknowledgement */
	__u32	round_rtt_us;		/* the least of the round; 0: no sample yet */
	__u32	window;			/* the initial window in bytes */
	__u32	left_us;		/* when data was last in flight, ktime */
	__u8	active;			/* counted as active */
	__u8	starting;		/* counted as starting: the rate is a share of the leg's */
	__u8	silent;			/* the peer has not answered since a time-out */
	__u8	handed_over;		/* the window belongs to the next control */
};

_Static_assert(sizeof(struct pipe) <= sizeof(((struct inet_connection_sock *)0)->icsk_ca_priv),
	       "a congestion control has 104 bytes for a connection");

/* Has a section of its own, so that the section contains nothing else. */
const volatile struct pipe_config config SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_PIPE);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PIPE_PEERS);
	__type(key, struct pipe_peer);
	__type(value, struct pipe_leg);
} peers SEC(".maps");

/* How legs start, unless their peer has an element in `settings`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pipe_settings);
} defaults SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PIPE_PEERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pipe_peer);
	__type(value, struct pipe_settings);
} settings SEC(".maps");

/*
 * Argument N of a program. Written in assembler, because the compiler would
 * merge two loads in two branches into one load from a computed address, which
 * the verifier rejects for the context.
 */
#define ARGUMENT(ctx, n) ({							\
	__u64 argument;								\
	asm volatile("%0 = *(u64 *)(%1 + %2)"					\
		     : "=r"(argument) : "r"(ctx), "i"(8 * (n)));		\
	argument;								\
})

static __always_inline void count_add(enum pipe_count which, __u64 n)
{
	__u32 key = which;
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	/* Atomic even on one CPU: a softirq may interrupt the processing of a
	 * backlog.
	 */
	if (value)
		__sync_fetch_and_add(value, n);
}

static __always_inline struct tcp_sock *tcp_sk(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline struct pipe *pipe_of(struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* The least round trip so far, in microseconds; 0 if none was measured. */
static __always_inline __u32 least_rtt(const struct tcp_sock *tp)
{
	__u32 rtt = tp->rtt_min.s[0].v;

	return rtt == ~0U ? tp->srtt_us >> 3 : rtt;
}

/* The least round trip of all connections of the leg. */
static __always_inline __u32 least_rtt_to(const struct tcp_sock *tp, struct pipe_leg *leg, __u64 now)
{
	return leg ? leg_rtt(leg, least_rtt(tp), now) : least_rtt(tp);
}

static __always_inline void peer_of(struct sock *sk, struct pipe_peer *peer)
{
	if (sk->__sk_common.skc_family == AF_INET6) {
		peer->addr[0] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0];
		peer->addr[1] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1];
		peer->addr[2] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2];
		peer->addr[3] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[3];
	} else {
		peer->addr[0] = 0;
		peer->addr[1] = 0;
		peer->addr[2] = __builtin_bswap32(0x0000ffff);
		peer->addr[3] = sk->__sk_common.skc_daddr;
	}
}

/* The highest rate, which is the socket's own ceiling. */
static __always_inline __u64 ceiling(struct sock *sk)
{
	__u64 asked = sk->sk_max_pacing_rate;	/* ~0: no ceiling */

	return asked && asked < RATE_MAX ? asked : RATE_MAX;
}

/* How this connection's leg starts. */
static __always_inline struct pipe_settings settings_of(struct pipe_peer *peer)
{
	struct pipe_settings *found = bpf_map_lookup_elem(&settings, peer);
	struct pipe_settings copy = {};
	__u32 first = 0;

	if (!found)
		found = bpf_map_lookup_elem(&defaults, &first);
	if (found)
		copy = *found;
	return copy;
}

/* The leg to a peer; 0 if there is no room for it. */
static __always_inline struct pipe_leg *leg_to(struct pipe_peer *peer)
{
	struct pipe_leg *leg = bpf_map_lookup_elem(&peers, peer);
	struct pipe_leg fresh = {};

	if (leg)
		return leg;
	fresh.born = bpf_ktime_get_ns();
	fresh.span_began = fresh.born;
	bpf_map_update_elem(&peers, peer, &fresh, BPF_NOEXIST);
	leg = bpf_map_lookup_elem(&peers, peer);
	if (!leg)
		count_add(PIPE_PEER_NOT_KEPT, 1);
	return leg;
}

/* The window for a rate: twice its bytes in flight, so that a recovery does not
 * exhaust it.
 */
static __always_inline __u32 window(const struct tcp_sock *tp, const struct pipe *p, __u64 rate)
{
	__u32 mss = tp->mss_cache ? tp->mss_cache : 1;
	__u64 bytes = 2 * rate * least_rtt(tp) / USEC_PER_SEC;
	__u64 segments;

	if (bytes < p->window)
		bytes = p->window;
	segments = bytes / mss;
	if (segments < WINDOW_MIN)
		segments = WINDOW_MIN;
	if (segments > tp->snd_cwnd_clamp)
		segments = tp->snd_cwnd_clamp;
	return segments;
}

/* Segments in flight (tcp_packets_in_flight() of the kernel). */
static __always_inline __u32 in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
}

/*
 * The window of a connection that shares the link. A reduction may leave it below what is in flight. A
 * segment that was lost is sent again at once all the same, as by PRR (RFC 6937 3).
 */
static __always_inline __u32 shared_window(const struct tcp_sock *tp, const struct pipe *p)
{
	__u32 window = p->pace.window;

	if (p->pace.reducing && window <= in_flight(tp))
		window = in_flight(tp) + 1;
	return window < tp->snd_cwnd_clamp ? window : tp->snd_cwnd_clamp;
}

static __always_inline void apply(struct sock *sk, struct pipe *p)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 limit = ceiling(sk);
	__u64 rate = p->pace.rate;
	__u32 srtt = tp->srtt_us >> 3;

	if (p->pace.competing && srtt) {
		__u64 bytes = (__u64)p->pace.window * tp->mss_cache;

		/* The window limits; pacing only spreads it. A quarter more, as the kernel has it. */
		rate = (bytes + bytes / 4) * USEC_PER_SEC / srtt;
	}
	if (rate > limit)
		rate = limit;
	sk->sk_pacing_rate = rate;
	tp->snd_cwnd = p->pace.competing ? shared_window(tp, p) : window(tp, p, rate);
}

/* Forgets the rates that were measured; the losses of the round stay. */
static __always_inline void begin_measurement(const struct tcp_sock *tp, struct pipe *p,
					      const struct pipe_leg *leg, __u64 now)
{
	p->measured_us = now / 1000;
	p->measured_from = tp->delivered;
	p->measured_leg_kb = leg ? leg->bytes >> 10 : 0;
	p->round_rtt_us = 0;
	p->delivery = 0;
}

static __always_inline void begin_round(const struct tcp_sock *tp, struct pipe *p,
					const struct pipe_leg *leg, __u64 now)
{
	p->round_delivered = tp->delivered;
	p->round_lost = tp->lost;
	begin_measurement(tp, p, leg, now);
}

/* The rate of a connection that starts: at most its ceiling. */
static __always_inline __u64 share_of(struct sock *sk, const struct pipe_leg *leg,
				      const struct pipe_settings *set, __u64 now)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 least = least_rate(tp->mss_cache, least_rtt(tp));
	__u64 rate = leg_rate(leg, set->rate, now);
	__u64 share = leg_share(leg, rate, now);
	__u64 limit = ceiling(sk);

	if (least > rate)
		least = rate;
	if (share < least)
		share = least;
	return share < limit ? share : limit;
}

/*
 * The connection has data in flight from now on. It starts at a share of the leg's rate if it
 * `starts`, or if its own rate, which may be a share of a leg that was busy, is lower.
 */
static __always_inline void join(struct sock *sk, struct pipe *p, _Bool starts)
{
	__u64 now = bpf_ktime_get_ns();
	struct pipe_settings set;
	struct pipe_peer peer;
	struct pipe_leg *leg;
	__u64 share;

	peer_of(sk, &peer);
	leg = leg_to(&peer);
	if (!leg)
		return;
	p->active = 1;
	p->leg_born = leg->born;
	__sync_fetch_and_add(&leg->active, 1);
	__sync_fetch_and_add(&leg->starting, 1);
	set = settings_of(&peer);
	share = share_of(sk, leg, &set, now);
	if (!starts && (p->pace.competing || share <= p->pace.rate)) {
		__sync_fetch_and_add(&leg->starting, -1);
		return;
	}
	p->starting = 1;
	if (leg->active > 1)
		count_add(PIPE_SHARED, 1);
	p->window = set.window;
	__builtin_memset(&p->pace, 0, sizeof(p->pace));
	p->pace.rate = share;
	p->pace.seeking = !leg_full(leg, now);
	begin_measurement(tcp_sk(sk), p, leg, now);
	apply(sk, p);
}

/* The connection does not start any more; its rate is its own. */
static __always_inline void started(struct pipe *p, struct pipe_leg *leg)
{
	if (p->starting && leg->born == p->leg_born)
		__sync_fetch_and_add(&leg->starting, -1);
	p->starting = 0;
}

/*
 * Whether the connection has no data in flight, and none that only waits for its turn: on a short
 * path that is longer than a round trip between two bursts. Data for which the peer's window has no
 * room does not count.
 */
static __always_inline _Bool is_idle(const struct tcp_sock *tp)
{
	__u32 next = tp->write_seq - tp->snd_nxt;

	if (next > tp->mss_cache)
		next = tp->mss_cache;
	return !tp->packets_out && (!next || tp->snd_wnd < next);
}

/* The connection is idle, or has lost its peer. */
static __always_inline void leave(struct pipe *p, struct pipe_leg *leg)
{
	if (leg) {
		started(p, leg);
		if (leg->born == p->leg_born)
			__sync_fetch_and_add(&leg->active, -1);
	}
	p->starting = 0;
	p->active = 0;
	p->left_us = bpf_ktime_get_ns() / 1000;
}

SEC("struct_ops")
void taut_pipe_init(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe *p = pipe_of(sk);
	__u64 now = bpf_ktime_get_ns();
	struct pipe_settings set;
	struct pipe_peer peer;
	struct pipe_leg *leg;

	__builtin_memset(p, 0, sizeof(*p));
	peer_of(sk, &peer);
	set = settings_of(&peer);
	p->window = set.window;
	p->pace.rate = set.rate;
	p->pace.seeking = 1;
	count_add(PIPE_STARTED, 1);

	leg = bpf_map_lookup_elem(&peers, &peer);
	if (leg) {
		p->pace.rate = leg_rate(leg, set.rate, now);
		p->pace.seeking = !leg_full(leg, now);
		if (p->pace.rate != set.rate)
			count_add(PIPE_STARTED_KNOWN, 1);
	}
	begin_round(tp, p, leg, now);
	p->marked = tp->delivered_ce;

	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	apply(sk, p);
}

/* Counts the losses since the round began, which otherwise happens at
 * the end of the round.
 */
SEC("struct_ops")
void taut_pipe_release(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe *p = pipe_of(sk);
	struct pipe_peer peer;

	count_add(PIPE_LOST, tp->lost - p->round_lost);
	if (p->active) {
		peer_of(sk, &peer);
		leave(p, bpf_map_lookup_elem(&peers, &peer));
	}
	/* Another control that a socket option chooses begins like any other. */
	if (!p->handed_over && tp->snd_cwnd > WINDOW_MIN)
		tp->snd_cwnd = WINDOW_MIN;
}

/* Sending begins: after idle time, at a share of the leg's rate. */
SEC("struct_ops")
void taut_pipe_cwnd_event(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct pipe *p = pipe_of(sk);
	__u64 idle, rtt;

	if ((__u32)ctx[1] != CA_EVENT_TX_START || p->active || p->silent)
		return;
	idle = (__u32)(bpf_ktime_get_ns() / 1000 - p->left_us) * 1000ULL;
	rtt = least_rtt(tcp_sk(sk)) * 1000ULL;
	join(sk, p, !p->left_us || idle > (rtt > IDLE_MIN ? rtt : IDLE_MIN));
}

/* Called before segments are sent: the share changes when other connections start. */
SEC("struct_ops")
__u32 taut_pipe_min_tso_segs(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct pipe *p = pipe_of(sk);
	struct pipe_settings set;
	struct pipe_peer peer;
	struct pipe_leg *leg;

	if (p->starting) {
		peer_of(sk, &peer);
		leg = bpf_map_lookup_elem(&peers, &peer);
		if (leg) {
			set = settings_of(&peer);
			p->pace.rate = share_of(sk, leg, &set, bpf_ktime_get_ns());
			apply(sk, p);
		}
	}
	return MIN_TSO_SEGS;
}

/* A connection whose peer does not answer uses nothing of the leg. */
SEC("struct_ops")
void taut_pipe_set_state(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct pipe *p = pipe_of(sk);
	struct pipe_peer peer;

	if ((__u8)ctx[1] != TCP_CA_LOSS)
		return;
	p->silent = 1;
	if (!p->active)
		return;
	peer_of(sk, &peer);
	leave(p, bpf_map_lookup_elem(&peers, &peer));
}

/* The kernel reduces no window: cong_control alone decides what a loss or a mark does. */
SEC("struct_ops")
__u32 taut_pipe_ssthresh(unsigned long long *ctx)
{
	return tcp_sk((struct sock *)ctx[0])->snd_cwnd;
}

SEC("struct_ops")
__u32 taut_pipe_undo_cwnd(unsigned long long *ctx)
{
	return tcp_sk((struct sock *)ctx[0])->snd_cwnd;
}

/* A window in flight, one in recovery, and the next one; as in BBR. */
SEC("struct_ops")
__u32 taut_pipe_sndbuf_expand(unsigned long long *ctx)
{
	(void)ctx;
	return 3;
}

/* Hands the connection to the kernel's own control. Returns whether that
 * succeeded.
 */
static __always_inline _Bool fall_back(struct sock *sk, struct pipe *p, _Bool crowded)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 mss = tp->mss_cache ? tp->mss_cache : 1;
	__u64 segments = p->delivery * least_rtt(tp) / USEC_PER_SEC / mss;
	int i, j;

	if (segments < WINDOW_MIN)
		segments = WINDOW_MIN;
	if (segments > tp->snd_cwnd)
		segments = tp->snd_cwnd;
	tp->snd_cwnd = segments;
	tp->snd_ssthresh = segments;

	p->handed_over = 1;
	for (i = 0; i < PIPE_FALLBACKS; i++) {
		char name[PIPE_CA_NAME_MAX];

		/* Byte by byte through volatile: a memcpy would copy the zeros of this file. */
		for (j = 0; j < PIPE_CA_NAME_MAX; j++)
			name[j] = crowded ? config.crowded[i][j] : config.fallback[i][j];
		if (!name[0])
			continue;
		if (!bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name))) {
			count_add(PIPE_FELL_BACK, 1);
			return 1;
		}
	}
	p->handed_over = 0;
	count_add(PIPE_FALL_BACK_FAILED, 1);
	return 0;
}

/*
 * Bytes a second that the leg has delivered since the measurement began; 0 if that says nothing. A
 * measurement that began again after idle time may end with one segment, which is acknowledged as
 * fast as the round trip is short. An entry that is newer than the measurement has fewer bytes.
 */
static __always_inline __u64 leg_delivery(const struct tcp_sock *tp, const struct pipe *p,
					  const struct pipe_leg *leg, __u64 now)
{
	__u32 us = (__u32)(now / 1000) - p->measured_us;
	__s32 kb = (__u32)(leg->bytes >> 10) - p->measured_leg_kb;
	__u64 bytes = kb > 0 ? (__u64)kb << 10 : 0;

	/* The difference of two rounded figures may be up to 1024 bytes too small. */
	if (!us || bytes + 1024 <= ROUND_MIN * (__u64)tp->mss_cache)
		return 0;
	return bytes * USEC_PER_SEC / us;
}

/* Bytes a second that this connection has delivered in that time; 0 if no time has passed. */
static __always_inline __u64 own_delivery(const struct tcp_sock *tp, const struct pipe *p,
					  __u64 now)
{
	__u32 us = (__u32)(now / 1000) - p->measured_us;
	__u32 segments = tp->delivered - p->measured_from;

	if (!us)
		return 0;
	return (__u64)segments * tp->mss_cache * USEC_PER_SEC / us;
}

/* Evaluates a round. Returns true if the connection was handed to another
 * control.
 */
static __always_inline _Bool end_round(struct sock *sk, struct pipe *p, struct pipe_peer *peer,
				       struct pipe_leg *leg, _Bool app_limited, __u64 now)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe_settings set = settings_of(peer);
	struct pipe_decision decision = {};
	struct pipe_pace pace = p->pace;
	struct pipe_round round = {
		.delivery	= p->delivery,
		.own_delivery	= own_delivery(tp, p, now),
		.delivered	= tp->delivered - p->round_delivered,
		.lost		= tp->lost - p->round_lost,
		.rtt_us		= p->round_rtt_us,
		.least_rtt_us	= least_rtt_to(tp, leg, now),
		.mss		= tp->mss_cache,
		.app_limited	= app_limited,
	};
	struct pipe_terms terms = {
		.start	= set.rate,
		.limit	= ceiling(sk),
		.window	= p->window,
	};

	if (leg) {
		started(p, leg);
		terms.known = leg_rate(leg, 0, now);
		round.leg_delivery = leg_delivery(tp, p, leg, now);
	}
	count_add(PIPE_LOST, round.lost);
	p->round_lost = tp->lost;

	decide(&pace, &round, &terms, &decision);
	p->pace = pace;
	if (leg) {
		leg_learn(leg, &decision, now);
		leg->window = tp->snd_cwnd * tp->mss_cache;
	}
	if (decision.lossy)
		count_add(PIPE_LOSSY_ROUNDS, 1);
	if (decision.capped)
		count_add(PIPE_CAPPED, 1);
	if (decision.raised)
		count_add(PIPE_RAISED, 1);
	if (decision.taken_back)
		count_add(PIPE_TAKEN_BACK, 1);
	if (decision.alone)
		count_add(PIPE_ALONE, 1);
	if (decision.fall_back && fall_back(sk, p, decision.crowded))
		return 1;
	begin_round(tp, p, leg, now);
	return 0;
}

/* Evaluates losses, and the window of a connection that competes. */
static __always_inline void acknowledged(struct sock *sk, struct pipe *p, struct pipe_leg *leg,
					 const struct rate_sample *rs, _Bool timed_out, __u64 now)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe_decision decision = {};
	struct pipe_pace pace = p->pace;
	struct pipe_ack ack = {
		.now_us		= now / 1000,
		.acked		= rs->acked_sacked,
		.lost		= rs->losses,
		.timed_out	= timed_out,
		.marked		= tp->delivered_ce - p->marked,
		.delivered	= tp->delivered,
		.rtt_us		= tp->srtt_us >> 3,
		.least_rtt_us	= least_rtt_to(tp, leg, now),
	};

	/*
	 * What had not arrived before. The kernel's figure leaves out what it takes for lost, which after a
	 * time-out is nearly everything.
	 */
	ack.flight = tp->packets_out + rs->acked_sacked - tp->sacked_out;
	if ((__s32)(ack.flight - rs->prior_in_flight) < 0)
		ack.flight = rs->prior_in_flight;
	/* Without a sample, no segment was acknowledged that has been sent since. */
	ack.prior_delivered = rs->delivered > 0 ? rs->prior_delivered : pace.reduced_at - 1;
	if (ack.marked)
		count_add(PIPE_MARKED, ack.marked);
	p->marked = tp->delivered_ce;
	on_ack(&pace, &ack, &decision);
	p->pace = pace;
	if (decision.competes) {
		count_add(PIPE_COMPETED, 1);
		if (leg)
			started(p, leg);
	}
	if (decision.decreased)
		count_add(PIPE_DECREASED, 1);
	if (decision.taken_back) {
		count_add(PIPE_TAKEN_BACK, 1);
		if (leg)
			leg_learn(leg, &decision, now);
	}
}

SEC("struct_ops")
void taut_pipe_cong_control(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe *p = pipe_of(sk);
	const struct rate_sample *rs;
	struct pipe_leg *leg;
	struct pipe_peer peer;
	_Bool timed_out;
	__u64 now;

	/* The verifier drops the dead branch, which reads an argument that this kernel lacks. */
	if (config.cong_control_rs == 3)
		rs = (const struct rate_sample *)ARGUMENT(ctx, 3);
	else
		rs = (const struct rate_sample *)ARGUMENT(ctx, 1);

	peer_of(sk, &peer);
	leg = bpf_map_lookup_elem(&peers, &peer);
	now = bpf_ktime_get_ns();
	timed_out = p->silent && rs->acked_sacked;
	if (rs->acked_sacked) {
		p->silent = 0;
		if (leg)
			leg_delivered(leg, (__u64)rs->acked_sacked * tp->mss_cache, now);
	}
	if (p->active && is_idle(tp))
		leave(p, leg);
	else if (!p->active && !p->silent && tp->packets_out)
		join(sk, p, 0);
	acknowledged(sk, p, leg, rs, timed_out, now);

	if (rs->delivered > 0 && rs->interval_us > 0) {
		__u64 rate = (__u64)rs->delivered * tp->mss_cache * USEC_PER_SEC / rs->interval_us;

		if (rate > p->delivery)
			p->delivery = rate;
		if (rs->rtt_us > 0 && (!p->round_rtt_us || rs->rtt_us < p->round_rtt_us))
			p->round_rtt_us = rs->rtt_us;
		/* Data sent after the round began has been acknowledged: a round trip. */
		if ((__s32)(rs->prior_delivered - p->round_delivered) >= 0 &&
		    tp->delivered - p->round_delivered >= ROUND_MIN &&
		    end_round(sk, p, &peer, leg, rs->is_app_limited, now))
			return;	/* p belongs to another control now */
	}
	apply(sk, p);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops taut_pipe = {
	.name		= "taut_pipe",
	.init		= (void *)taut_pipe_init,
	.release	= (void *)taut_pipe_release,
	.ssthresh	= (void *)taut_pipe_ssthresh,
	.undo_cwnd	= (void *)taut_pipe_undo_cwnd,
	.sndbuf_expand	= (void *)taut_pipe_sndbuf_expand,
	.min_tso_segs	= (void *)taut_pipe_min_tso_segs,
	.set_state	= (void *)taut_pipe_set_state,
	.cwnd_event	= (void *)taut_pipe_cwnd_event,
	.cong_control	= (void *)taut_pipe_cong_control,
};

char _license[] SEC("license") = "GPL";
