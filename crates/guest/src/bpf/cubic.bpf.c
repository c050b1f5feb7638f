// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_cubic: the kernel's Cubic, which takes back what it gave up for a gap.
 *
 * When a CPU comes back its timers run before the acknowledgements that wait are
 * handled (pvtcp V-A): a retransmission timeout cuts the window although everything
 * has arrived. The kernel takes most of these back by itself (F-RTO, Eifel, DSACK).
 * Where it does not, this does, if what followed shows that nothing was lost:
 *
 *   all that was in flight was acknowledged sooner than anything that was sent anew
 *   could have been; or the receiver reported each retransmission as a
 *   duplicate (DSACK, RFC 2883).
 *
 * And HyStart, which ends slow start when delays grow, is not told of
 * delays that a gap has made.
 */
#include "gap.h"

void cubictcp_init(struct sock *sk) __ksym;
__u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
__u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* Words of Cubic's own state that are kept; it has fewer. */
#define STATE		8

/* What came of a reduction is seen in so many round trips, and */
#define ROUNDS		4
/* so long besides; then it stays. */
#define WAIT_US		(500 * 1000)
/* A gap is followed by what happens within so long and a round trip. */
#define FOLLOWS_US	(10 * 1000)

/* A reduction that followed a gap, and what there was before it. */
struct cut {
	__u64 at_us;		/* 0: there is none */
	__u64 state[STATE];	/* Cubic's */
	__u32 cwnd;
	__u32 ssthresh;
	__u32 nxt;		/* what was sent by then */
	__u32 retrans;
	__u32 dsacks;
	bool is_acked;		/* all of that was acknowledged, */
	bool is_early;		/* before anything sent anew could have been */
	bool is_undone;		/* by the kernel */
};

#define NO_RTT		(~0U)	/* rtt_min, until there is a sample */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cut);
} cuts SEC(".maps");

/* What happens now is of the last gap, as far as can be told. */
static __always_inline bool follows_gap(const struct gaps *g, __u64 now_us,
					__u64 within_us)
{
	return g->end_ns && g->end_ns / NS_PER_US + within_us > now_us;
}

static __always_inline void keep(struct cut *cut)
{
	count(COUNT_REDUCTIONS_KEPT);
	cut->at_us = 0;
}

static __always_inline void watch(struct tcp_sock *tp)
{
	struct cut *cut = bpf_sk_storage_get(&cuts, tp, 0, 0);
	__u64 now_us = bpf_ktime_get_ns() / NS_PER_US;
	struct gaps *g = own_gaps();

	if (!cut || !g)
		return;
	/* One that is not decided goes on: what was before it is what was. But if all of
	 * that has been acknowledged, this one is for what was sent since: both stay.
	 */
	if (cut->at_us) {
		if (cut->is_acked)
			keep(cut);
		return;
	}
	if (!follows_gap(g, now_us, FOLLOWS_US + (tp->srtt_us >> 3)))
		return;
	cut->at_us = now_us;
	cut->cwnd = tp->snd_cwnd;
	cut->ssthresh = tp->snd_ssthresh;
	cut->nxt = tp->snd_nxt;
	cut->retrans = tp->total_retrans;
	cut->dsacks = tp->dsack_dups;
	cut->is_acked = false;
	cut->is_early = false;
	cut->is_undone = false;
#pragma unroll
	for (int i = 0; i < STATE; i++)
		cut->state[i] = tp->inet_conn.icsk_ca_priv[i];
	count(COUNT_REDUCTIONS);
}

static __always_inline void decide(struct tcp_sock *tp, struct cut *cut)
{
	__u64 now_us = tp->tcp_mstamp, since_us;
	__u32 retrans, dsacks, rtt_us = tp->rtt_min.s[0].v;

	since_us = now_us > cut->at_us ? now_us - cut->at_us : 0;
	if (!cut->is_acked && !after(cut->nxt, tp->snd_una)) {
		cut->is_acked = true;
		cut->is_early = rtt_us != NO_RTT && since_us < rtt_us * 3ULL / 4;
	}
	if (ca_state(tp) > CA_DISORDER)
		return;
	if (cut->is_undone) {
		count(COUNT_REDUCTIONS_UNDONE_BY_KERNEL);
		cut->at_us = 0;
		return;
	}
	/* It has grown to what it was. */
	if (tp->snd_cwnd >= cut->cwnd && tp->snd_ssthresh >= cut->ssthresh) {
		keep(cut);
		return;
	}
	retrans = tp->total_retrans - cut->retrans;
	dsacks = tp->dsack_dups - cut->dsacks;
	if (cut->is_acked && (cut->is_early || (retrans && dsacks >= retrans))) {
		if (tp->snd_cwnd < cut->cwnd)
			tp->snd_cwnd = cut->cwnd;
		if (tp->snd_ssthresh < cut->ssthresh)
			tp->snd_ssthresh = cut->ssthresh;
#pragma unroll
		for (int i = 0; i < STATE; i++)
			tp->inet_conn.icsk_ca_priv[i] = cut->state[i];
		count(COUNT_REDUCTIONS_UNDONE);
		cut->at_us = 0;
	} else if (since_us > WAIT_US + ROUNDS * (__u64)(tp->srtt_us >> 3)) {
		keep(cut);
	}
}

static __always_inline void look(struct tcp_sock *tp)
{
	struct cut *cut = bpf_sk_storage_get(&cuts, tp, 0, 0);

	if (cut && cut->at_us)
		decide(tp, cut);
}

SEC("struct_ops/taut_cubic_init")
void taut_cubic_init(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cut *cut;

	cut = bpf_sk_storage_get(&cuts, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (cut)
		cut->at_us = 0;
	else
		count(COUNT_NOT_FOLLOWED);
	cubictcp_init(sk_of(tp));
}

SEC("struct_ops/taut_cubic_release")
void taut_cubic_release(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cut *cut = bpf_sk_storage_get(&cuts, tp, 0, 0);

	if (cut && cut->at_us)
		keep(cut);
	bpf_sk_storage_delete(&cuts, tp);
}

SEC("struct_ops/taut_cubic_ssthresh")
__u32 taut_cubic_ssthresh(__u64 *ctx)
{
	watch((struct tcp_sock *)ctx[0]);
	return cubictcp_recalc_ssthresh((struct sock *)ctx[0]);
}

SEC("struct_ops/taut_cubic_cong_avoid")
void taut_cubic_cong_avoid(__u64 *ctx)
{
	look((struct tcp_sock *)ctx[0]);
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

SEC("struct_ops/taut_cubic_pkts_acked")
void taut_cubic_pkts_acked(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	const struct ack_sample *sample = (struct ack_sample *)ctx[1];
	struct gaps *g = own_gaps();
	__s32 rtt_us = sample->rtt_us;

	look(tp);
	/* (Where there are gaps all the time it would never hear of a queue.) */
	if (g && rtt_us > 0 && follows_gap(g, tp->tcp_mstamp, rtt_us) &&
	    !is_often_away(g, tp->tcp_mstamp * NS_PER_US)) {
		count(COUNT_DELAYS_KEPT_OUT);
		return;
	}
	cubictcp_acked(sk_of(tp), sample);
}

SEC("struct_ops/taut_cubic_undo_cwnd")
__u32 taut_cubic_undo_cwnd(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cut *cut = bpf_sk_storage_get(&cuts, tp, 0, 0);

	if (cut)
		cut->is_undone = true;
	return tcp_reno_undo_cwnd(sk_of(tp));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops taut_cubic = {
	.flags = CONG_NON_RESTRICTED,
	.name = "taut_cubic",
	.init = (void *)taut_cubic_init,
	.release = (void *)taut_cubic_release,
	.ssthresh = (void *)taut_cubic_ssthresh,
	.cong_avoid = (void *)taut_cubic_cong_avoid,
	.set_state = (void *)taut_cubic_set_state,
	.undo_cwnd = (void *)taut_cubic_undo_cwnd,
	.cwnd_event = (void *)taut_cubic_cwnd_event,
	.pkts_acked = (void *)taut_cubic_pkts_acked,
};

char LICENSE[] SEC("license") = "GPL";
