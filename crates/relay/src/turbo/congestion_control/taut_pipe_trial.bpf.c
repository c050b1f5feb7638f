// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs the decisions of taut_pipe on figures that a test chooses.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "taut_pipe_decide.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pipe_trial);
} trials SEC(".maps");

SEC("syscall")
int pipe_decide(void *ctx)
{
	__u32 key = 0;
	struct pipe_trial *trial = bpf_map_lookup_elem(&trials, &key);

	(void)ctx;
	if (!trial)
		return 1;
	decide(&trial->pace, &trial->round, &trial->terms, &trial->decision);
	leg_learn(&trial->leg, &trial->decision, trial->now);
	return 0;
}

SEC("syscall")
int pipe_ack(void *ctx)
{
	__u32 key = 0;
	struct pipe_trial *trial = bpf_map_lookup_elem(&trials, &key);

	(void)ctx;
	if (!trial)
		return 1;
	on_ack(&trial->pace, &trial->ack, &trial->decision);
	leg_learn(&trial->leg, &trial->decision, trial->now);
	return 0;
}

SEC("syscall")
int pipe_leg_rtt(void *ctx)
{
	__u32 key = 0;
	struct pipe_trial *trial = bpf_map_lookup_elem(&trials, &key);

	(void)ctx;
	if (!trial)
		return 1;
	trial->ack.least_rtt_us = leg_rtt(&trial->leg, trial->ack.least_rtt_us, trial->now);
	return 0;
}

SEC("syscall")
int pipe_share(void *ctx)
{
	__u32 key = 0;
	struct pipe_trial *trial = bpf_map_lookup_elem(&trials, &key);
	struct pipe_leg *leg;

	(void)ctx;
	if (!trial)
		return 1;
	leg = &trial->leg;
	leg_delivered(leg, trial->acked, trial->now);
	trial->share = leg_share(leg, leg_rate(leg, trial->terms.start, trial->now), trial->now);
	return 0;
}

char _license[] SEC("license") = "GPL";
