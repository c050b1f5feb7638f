// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_cubic: the kernel's Cubic, with window reductions after an off-CPU gap undone
 * when nothing was lost.
 *
 * When a CPU resumes, its timers run before the waiting acknowledgements are
 * handled (pvtcp V-A): a retransmission timeout reduces the window although
 * everything has arrived. The kernel undoes most of these reductions itself
 * (F-RTO, Eifel, DSACK). taut_cubic undoes the others if what follows shows
 * that nothing was lost:
 *
 *   everything in flight was acknowledged sooner than a retransmission could have
 *   been; or the receiver reported each retransmission as a duplicate (DSACK,
 *   RFC 2883).
 *
 * HyStart, which ends slow start when delays grow, does not get delays that
 * span a gap.
 */
#include "gap.h"

void cubictcp_init(struct sock *sk) __ksym;
__u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
/* The second replaced the first in Linux 7.1. */
void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
void cubictcp_cwnd_event_tx_start(struct sock *sk) __ksym __weak;
void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
__u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* Words of Cubic's state that are saved; Cubic uses fewer. */
#define STATE		8

/* The time limit for deciding about a reduction, in round trips plus WAIT_US;
 * then it stays.
 */
#define ROUNDS		4
#define WAIT_US		(500 * 1000)
/* The limit in which a reduction follows a gap: this time plus a round trip. */
#define FOLLOWS_US	(10 * 1000)

/* A reduction that followed a gap, and the state before it. */
struct reduction {
	__u64 at_us;		/* when; 0: there is none */
	__u64 state[STATE];	/* Cubic's */
	__u32 cwnd;
	__u32 ssthresh;
	__u32 nxt;		/* SND.NXT at that time */
	__u32 retrans;
	__u32 dsacks;
	bool is_acked;		/* everything up to nxt was acknowledged */
	bool is_early;		/* before a retransmission could have been */
	bool is_undone;		/* the kernel has undone it */
};

#define NO_RTT		(~0U)	/* rtt_min, until there is a sample */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct reduction);
} reductions SEC(".maps");

/* Returns whether the last gap is the likely cause of an event at @now_us. */
static __always_inline bool follows_gap(const struct gaps *g, __u64 now_us,
					__u64 within_us)
{
	return g->end_ns && g->end_ns / NS_PER_US + within_us > now_us;
}

static __always_inline void keep_reduction(struct reduction *r)
{
	count(COUNT_REDUCTIONS_KEPT);
	r->at_us = 0;
}

static __always_inline void on_reduction(struct tcp_sock *tp)
{
	struct reduction *r = bpf_sk_storage_get(&reductions, tp, 0, 0);
	__u64 now_us = bpf_ktime_get_ns() / NS_PER_US;
	struct gaps *g = this_cpu_gaps();

	if (!r || !g)
		return;
	/* This is a second reduction while the first is undecided: the saved
	 * state stays valid. But if everything before the first was
	 * acknowledged, the second is for later segments, and both stay.
	 */
	if (r->at_us) {
		if (r->is_acked)
			keep_reduction(r);
		return;
	}
	if (!follows_gap(g, now_us, FOLLOWS_US + (tp->srtt_us >> 3)))
		return;
	r->at_us = now_us;
	r->cwnd = tp->snd_cwnd;
	r->ssthresh = tp->snd_ssthresh;
	r->nxt = tp->snd_nxt;
	r->retrans = tp->total_retrans;
	r->dsacks = tp->dsack_dups;
	r->is_acked = false;
	r->is_early = false;
	r->is_undone = false;
#pragma unroll
	for (int i = 0; i < STATE; i++)
		r->state[i] = tp->inet_conn.icsk_ca_priv[i];
	count(COUNT_REDUCTIONS);
}

static __always_inline void decide_reduction(struct tcp_sock *tp, struct reduction *r)
{
	__u64 now_us = tp->tcp_mstamp, since_us;
	__u32 retrans, dsacks, rtt_us = tp->rtt_min.s[0].v;

	since_us = now_us > r->at_us ? now_us - r->at_us : 0;
	if (!r->is_acked && !after(r->nxt, tp->snd_una)) {
		r->is_acked = true;
		r->is_early = rtt_us != NO_RTT && since_us < rtt_us * 3ULL / 4;
	}
	if (ca_state(tp) > CA_DISORDER)
		return;
	if (r->is_undone) {
		count(COUNT_REDUCTIONS_UNDONE_BY_KERNEL);
		r->at_us = 0;
		return;
	}
	/* The window has grown back by itself. */
	if (tp->snd_cwnd >= r->cwnd && tp->snd_ssthresh >= r->ssthresh) {
		keep_reduction(r);
		return;
	}
	retrans = tp->total_retrans - r->retrans;
	dsacks = tp->dsack_dups - r->dsacks;
	if (r->is_acked && (r->is_early || (retrans && dsacks >= retrans))) {
		if (tp->snd_cwnd < r->cwnd)
			tp->snd_cwnd = r->cwnd;
		if (tp->snd_ssthresh < r->ssthresh)
			tp->snd_ssthresh = r->ssthresh;
#pragma unroll
		for (int i = 0; i < STATE; i++)
			tp->inet_conn.icsk_ca_priv[i] = r->state[i];
		count(COUNT_REDUCTIONS_UNDONE);
		r->at_us = 0;
	} else if (since_us > WAIT_US + ROUNDS * (__u64)(tp->srtt_us >> 3)) {
		keep_reduction(r);
	}
}

static __always_inline void check_reduction(struct tcp_sock *tp)
{
	struct reduction *r = bpf_sk_storage_get(&reductions, tp, 0, 0);

	if (r && r->at_us)
		decide_reduction(tp, r);
}

SEC("struct_ops/taut_cubic_init")
void taut_cubic_init(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct reduction *r;

	r = bpf_sk_storage_get(&reductions, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (r)
		r->at_us = 0;
	else
		count(COUNT_NOT_FOLLOWED);
	cubictcp_init(sk_of(tp));
}

SEC("struct_ops/taut_cubic_release")
void taut_cubic_release(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct reduction *r = bpf_sk_storage_get(&reductions, tp, 0, 0);

	if (r && r->at_us)
		keep_reduction(r);
	bpf_sk_storage_delete(&reductions, tp);
}

SEC("struct_ops/taut_cubic_ssthresh")
__u32 taut_cubic_ssthresh(__u64 *ctx)
{
	on_reduction((struct tcp_sock *)ctx[0]);
	return cubictcp_recalc_ssthresh((struct sock *)ctx[0]);
}

SEC("struct_ops/taut_cubic_cong_avoid")
void taut_cubic_cong_avoid(__u64 *ctx)
{
	check_reduction((struct tcp_sock *)ctx[0]);
	cubictcp_cong_avoid((struct sock *)ctx[0], ctx[1], ctx[2]);
}

SEC("struct_ops/taut_cubic_set_state")
void taut_cubic_set_state(__u64 *ctx)
{
	cubictcp_state((struct sock *)ctx[0], ctx[1]);
}

SEC("struct_ops/taut_cubic_cwnd_event")
void taut_cubic_cwnd_event(__u64 *ctx)
{
	cubictcp_cwnd_event((struct sock *)ctx[0], ctx[1]);
}

SEC("struct_ops/taut_cubic_tx_start")
void taut_cubic_tx_start(__u64 *ctx)
{
	cubictcp_cwnd_event_tx_start((struct sock *)ctx[0]);
}

SEC("struct_ops/taut_cubic_pkts_acked")
void taut_cubic_pkts_acked(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	const struct ack_sample *sample = (struct ack_sample *)ctx[1];
	struct gaps *g = this_cpu_gaps();
	__s32 rtt_us = sample->rtt_us;

	check_reduction(tp);
	/* Not if gaps are frequent: HyStart would never learn of a queue. */
	if (g && rtt_us > 0 && follows_gap(g, tp->tcp_mstamp, rtt_us) &&
	    !is_often_descheduled(g, tp->tcp_mstamp * NS_PER_US)) {
		count(COUNT_DELAYS_KEPT_OUT);
		return;
	}
	cubictcp_acked(sk_of(tp), sample);
}

SEC("struct_ops/taut_cubic_undo_cwnd")
__u32 taut_cubic_undo_cwnd(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct reduction *r = bpf_sk_storage_get(&reductions, tp, 0, 0);

	if (r)
		r->is_undone = true;
	return tcp_reno_undo_cwnd(sk_of(tp));
}

/* Operations for the versions of Linux that brought them; user space loads those
 * that fit the kernel (operations.rs).
 */
#define OPERATIONS(version, event, on_event)				\
	SEC(".struct_ops.link")						\
	struct tcp_congestion_ops taut_cubic_##version = {		\
		.flags = CONG_NON_RESTRICTED,				\
		.name = "taut_cubic",					\
		.init = (void *)taut_cubic_init,			\
		.release = (void *)taut_cubic_release,			\
		.ssthresh = (void *)taut_cubic_ssthresh,		\
		.cong_avoid = (void *)taut_cubic_cong_avoid,		\
		.set_state = (void *)taut_cubic_set_state,		\
		.undo_cwnd = (void *)taut_cubic_undo_cwnd,		\
		.event = (void *)on_event,				\
		.pkts_acked = (void *)taut_cubic_pkts_acked,		\
	}

OPERATIONS(6_1, cwnd_event, taut_cubic_cwnd_event);
OPERATIONS(7_1, cwnd_event_tx_start, taut_cubic_tx_start);

char LICENSE[] SEC("license") = "GPL";
