/* SPDX-License-Identifier: GPL-2.0-only */
/* Fields of the kernel's structs that the programs use, relocated at load (CO-RE). */
#ifndef TAUT_KERNEL_H
#define TAUT_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u8 icsk_ca_state:5;
	__u64 icsk_ca_priv[13];
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	__u32 rcv_tsval;
	__u16 tstamp_ok:1;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u64 tcp_mstamp;
	__u64 bytes_sent;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 srtt_us;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 lost;
	__u32 mss_cache;
	__u32 total_retrans;
	__u32 dsack_dups;
	struct minmax rtt_min;
	struct tcp_options_received rx_opt;
};

struct rate_sample {
	__u64 prior_mstamp;
	__u32 prior_delivered;
	__s32 delivered;
	long interval_us;
	long rtt_us;
	bool is_app_limited;
	bool is_ack_delayed;
};

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
	__u32 in_flight;
};

struct timerqueue_node {
	__s64 expires;
};

struct hrtimer {
	struct timerqueue_node node;
	void *function;
};

#pragma clang attribute pop

/* The members of the registered struct that are set; those that the kernel lacks
 * must be NULL.
 */
struct tcp_congestion_ops {
	__u32 flags;
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, __u32 ev);
	void (*cwnd_event_tx_start)(struct sock *sk);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*min_tso_segs)(struct sock *sk);
	void (*cong_control)(struct sock *sk, const struct rate_sample *rs);
	__u32 (*undo_cwnd)(struct sock *sk);
	__u32 (*sndbuf_expand)(struct sock *sk);
	char name[16];
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

enum tcp_ca_event {
	CA_EVENT_TX_START,
};

/* linux/tcp.h */
enum {
	CA_OPEN = 0,
	CA_DISORDER = 1,
	CA_CWR = 2,
	CA_RECOVERY = 3,
	CA_LOSS = 4,
};

/* linux/bpf.h: BPF_F_TIMER_CPU_PIN, since Linux 6.7. */
#define TIMER_CPU_PIN	2
/* linux/time.h */
#define MONOTONIC	1

/* net/tcp.h: unprivileged users may select the control, as they may select BBR.
 */
#define CONG_NON_RESTRICTED	1

static __always_inline struct sock *sk_of(struct tcp_sock *tp)
{
	return (struct sock *)tp;
}

static __always_inline __u8 ca_state(struct tcp_sock *tp)
{
	struct inet_connection_sock *icsk = &tp->inet_conn;

	return BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
}

/* Returns whether @a comes after @b; sequence numbers wrap. */
static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(b - a) < 0;
}

#endif
