// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_pipe: congestion control for the leg between two relays, where congestion is rare.
 *
 * "We essentially want a simple high-rate sending protocol capable of dealing with the very
 * rare loss events, without necessarily backing off" (pied-piper 3.1). So a connection starts
 * at the configured rate of its leg, or at the rate last known to reach that peer. It is
 * paced, so that a window of megabytes is not a burst. A lost segment is retransmitted and has
 * no other effect. Idle time does not reduce the window, because the kernel does not touch the
 * window of a control with cong_control.
 *
 * Three rules keep this safe where the premise is wrong:
 *
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

#include "taut_pipe.h"

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
	__u32 mss_cache;
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
	void (*cong_control)(struct sock *sk);
};

#pragma clang attribute pop

#define AF_INET6		10
#define SOL_TCP			6
#define TCP_CONGESTION		13
#define SK_PACING_NONE		0
#define SK_PACING_NEEDED	1	/* by the kernel's own timer, unless there is fq */

#define USEC_PER_SEC		1000000ULL
#define NSEC_PER_SEC		1000000000ULL

/* The figures are explained in docs/design/turbo.md, "Thresholds". */
#define ROUND_MIN		256	/* segments; a shorter round says too little about 2 % */
#define LOSS_ONE_IN		50	/* 2 %, as BBRv2 and BBRv3 have it */
#define LOSSY_ROUNDS		3
#define QUEUED_ROUNDS		3
#define QUEUE_SLACK_US		5000	/* CoDel's target (RFC 8289 4.3) */
#define QUEUE_SHARE		8	/* of the initial window */
#define CLEAR_ROUNDS		8
#define WINDOW_MIN		10	/* segments, as any connection begins (RFC 6928) */
#define KNOWN_FOR		(3600 * NSEC_PER_SEC)	/* as the kernel keeps TCP metrics */

/* A connection's state, in the 104 bytes that the kernel gives a congestion control. */
struct pipe {
	__u64	rate;			/* paced at, bytes a second */
	__u64	delivery;		/* highest rate of delivery in this round */
	__u32	round_delivered;	/* tp->delivered when the round began */
	__u32	round_lost;		/* tp->lost then */
	__u32	round_marked;		/* tp->delivered_ce then */
	__u32	round_rtt_us;		/* the least of the round; 0: no sample yet */
	__u8	lossy;			/* rounds in succession, with loss above the threshold */
	__u8	queued;			/* with a standing queue */
	__u8	clear;			/* with neither, and the rate in use */
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
	__type(value, struct pipe_known);
} peers SEC(".maps");

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

/* The highest rate: the leg's, or this socket's own ceiling. */
static __always_inline __u64 ceiling(struct sock *sk)
{
	__u64 asked = sk->sk_max_pacing_rate;	/* ~0: no ceiling */

	return asked && asked < config.rate ? asked : config.rate;
}

/* The default initial window per round trip; no learnt rate is lower. */
static __always_inline __u64 least_rate(const struct tcp_sock *tp)
{
	__u64 rtt = least_rtt(tp);

	return rtt ? WINDOW_MIN * (__u64)tp->mss_cache * USEC_PER_SEC / rtt : 0;
}

static __always_inline void learn(struct sock *sk, __u64 rate)
{
	struct pipe_known known = { .rate = rate, .stamp = bpf_ktime_get_ns() };
	struct pipe_peer peer;

	peer_of(sk, &peer);
	if (bpf_map_update_elem(&peers, &peer, &known, BPF_ANY))
		count_add(PIPE_PEER_NOT_KEPT, 1);
}

/* The window for a rate: twice its bytes in flight, so that a recovery does not
 * exhaust it.
 */
static __always_inline __u32 window(const struct tcp_sock *tp, __u64 rate)
{
	__u32 mss = tp->mss_cache ? tp->mss_cache : 1;
	__u64 bytes = 2 * rate * least_rtt(tp) / USEC_PER_SEC;
	__u64 segments;

	if (bytes < config.initial_window)
		bytes = config.initial_window;
	segments = bytes / mss;
	if (segments < WINDOW_MIN)
		segments = WINDOW_MIN;
	if (segments > tp->snd_cwnd_clamp)
		segments = tp->snd_cwnd_clamp;
	return segments;
}

static __always_inline void apply(struct sock *sk, struct pipe *p)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 limit = ceiling(sk);
	__u64 rate = p->rate < limit ? p->rate : limit;

	sk->sk_pacing_rate = rate;
	tp->snd_cwnd = window(tp, rate);
}

static __always_inline void begin_round(const struct tcp_sock *tp, struct pipe *p)
{
	p->round_delivered = tp->delivered;
	p->round_lost = tp->lost;
	p->round_marked = tp->delivered_ce;
	p->round_rtt_us = 0;
	p->delivery = 0;
}

SEC("struct_ops")
void taut_pipe_init(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct pipe *p = pipe_of(sk);
	struct pipe_known *known;
	struct pipe_peer peer;

	__builtin_memset(p, 0, sizeof(*p));
	begin_round(tcp_sk(sk), p);
	p->rate = ceiling(sk);
	count_add(PIPE_STARTED, 1);

	peer_of(sk, &peer);
	known = bpf_map_lookup_elem(&peers, &peer);
	if (known && known->rate < p->rate && bpf_ktime_get_ns() - known->stamp < KNOWN_FOR) {
		p->rate = known->rate;
		count_add(PIPE_STARTED_KNOWN, 1);
	}

	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	apply(sk, p);
}

/* Counts the losses and marks since the round began, which otherwise happens at
 * the end of the round.
 */
SEC("struct_ops")
void taut_pipe_release(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe *p = pipe_of(sk);

	count_add(PIPE_LOST, tp->lost - p->round_lost);
	count_add(PIPE_MARKED, tp->delivered_ce - p->round_marked);
}

/* A loss or a mark does not reduce the window. */
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
static __always_inline _Bool fall_back(struct sock *sk, struct pipe *p)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 mss = tp->mss_cache ? tp->mss_cache : 1;
	__u64 segments = p->delivery * least_rtt(tp) / USEC_PER_SEC / mss;
	__u64 least = least_rate(tp);
	__u64 rate = p->delivery - p->delivery / 8;
	int i, j;

	if (rate < least)
		rate = least;
	if (rate < p->rate)
		p->rate = rate;
	learn(sk, p->rate);

	if (segments < WINDOW_MIN)
		segments = WINDOW_MIN;
	if (segments > tp->snd_cwnd)
		segments = tp->snd_cwnd;
	tp->snd_cwnd = segments;
	tp->snd_ssthresh = segments;

	for (i = 0; i < PIPE_FALLBACKS; i++) {
		char name[PIPE_CA_NAME_MAX];

		if (!config.fallback[i][0])
			continue;
		/* Byte by byte through volatile: a memcpy would copy the zeros of this file. */
		for (j = 0; j < PIPE_CA_NAME_MAX; j++)
			name[j] = config.fallback[i][j];
		if (!bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name))) {
			count_add(PIPE_FELL_BACK, 1);
			return 1;
		}
	}
	count_add(PIPE_FALL_BACK_FAILED, 1);
	return 0;
}

/* Evaluates a round. Returns true if the connection was handed to another
 * control.
 */
static __always_inline _Bool end_round(struct sock *sk, struct pipe *p)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 delivered = tp->delivered - p->round_delivered;
	__u32 lost = tp->lost - p->round_lost;
	__u32 marked = tp->delivered_ce - p->round_marked;
	__u32 rtt = least_rtt(tp);
	__u32 slack = rtt > QUEUE_SLACK_US ? rtt : QUEUE_SLACK_US;
	__u64 waiting = 0;
	_Bool lossy, queued, used;

	/* A mark counts as a loss (RFC 3168 5). */
	lossy = ((__u64)lost + marked) * LOSS_ONE_IN > (__u64)delivered + lost;
	used = p->delivery >= p->rate - p->rate / 4;
	/*
	 * The queue is our own if we send faster than it drains and our share
	 * of it (the delivery rate times the delay) is large. In another flow's
	 * queue, our bytes come out as fast as they go in, or are few; slowing
	 * down would only make room for that flow.
	 */
	if (p->round_rtt_us > rtt + slack)
		waiting = p->delivery * (p->round_rtt_us - rtt) / USEC_PER_SEC;
	queued = waiting > config.initial_window / QUEUE_SHARE &&
		 p->delivery < p->rate - p->rate / 16;

	count_add(PIPE_LOST, lost);
	count_add(PIPE_MARKED, marked);
	p->round_lost = tp->lost;
	p->round_marked = tp->delivered_ce;

	if (lossy) {
		count_add(PIPE_LOSSY_ROUNDS, 1);
		p->clear = 0;
		if (++p->lossy >= LOSSY_ROUNDS) {
			p->lossy = 0;
			if (fall_back(sk, p))
				return 1;
		}
	} else {
		p->lossy = 0;
	}

	if (queued) {
		p->clear = 0;
		if (++p->queued >= QUEUED_ROUNDS) {
			__u64 rate = p->delivery - p->delivery / 8;
			__u64 least = least_rate(tp);

			p->queued = 0;
			p->rate = rate > least ? rate : least;
			learn(sk, p->rate);
			count_add(PIPE_CAPPED, 1);
		}
	} else {
		p->queued = 0;
	}

	if (!lossy && !queued && used && ++p->clear >= CLEAR_ROUNDS) {
		__u64 limit = ceiling(sk);

		p->clear = 0;
		if (p->rate < limit) {
			p->rate += p->rate / 4;
			if (p->rate > limit)
				p->rate = limit;
			learn(sk, p->rate);
			count_add(PIPE_RAISED, 1);
		}
	}

	begin_round(tp, p);
	return 0;
}

SEC("struct_ops")
void taut_pipe_cong_control(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct pipe *p = pipe_of(sk);
	const struct rate_sample *rs;

	/* The verifier drops the dead branch, which reads an argument that this kernel lacks. */
	if (config.cong_control_rs == 3)
		rs = (const struct rate_sample *)ARGUMENT(ctx, 3);
	else
		rs = (const struct rate_sample *)ARGUMENT(ctx, 1);

	if (rs->delivered > 0 && rs->interval_us > 0) {
		__u64 rate = (__u64)rs->delivered * tp->mss_cache * USEC_PER_SEC / rs->interval_us;

		if (rate > p->delivery)
			p->delivery = rate;
		if (rs->rtt_us > 0 && (!p->round_rtt_us || rs->rtt_us < p->round_rtt_us))
			p->round_rtt_us = rs->rtt_us;
		/* Data sent after the round began has been acknowledged: a round trip. */
		if ((__s32)(rs->prior_delivered - p->round_delivered) >= 0 &&
		    tp->delivered - p->round_delivered >= ROUND_MIN && end_round(sk, p))
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
	.cong_control	= (void *)taut_pipe_cong_control,
};

char _license[] SEC("license") = "GPL";
