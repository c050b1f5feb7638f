/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Off-CPU gaps: times in which the machine was descheduled from a CPU, so that
 * nothing that arrived was handled. Each CPU records its own gaps and keeps the
 * last one.
 */
#ifndef TAUT_GAP_H
#define TAUT_GAP_H

#include "guest.h"
#include "kernel.h"

#define NS_PER_US	1000ULL
#define NS_PER_MS	(1000 * NS_PER_US)
#define NS_PER_SEC	(1000 * NS_PER_MS)

const volatile struct guest_config config = {
	.shortest_ns = 2 * NS_PER_MS,
};

/* Gaps farther apart than this do not count as consecutive. */
#define APART_NS	NS_PER_SEC
#define OFF_CPU_NS_MIN	(20 * NS_PER_MS)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gaps);
} gaps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(enum guest_count what)
{
	__u32 key = what;
	__u64 *sum = bpf_map_lookup_elem(&counts, &key);

	if (sum)
		*sum += 1;
}

/* Returns the gaps of the current CPU. */
static __always_inline struct gaps *this_cpu_gaps(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gaps, &zero);
}

static __always_inline void decay(__u64 *sum, __u64 value)
{
	*sum = *sum - *sum / 8 + value;
}

/* Returns whether gaps take more than a fifth of the time, the share that BBR's
 * own probing (a pacing gain of 5/4) compensates for, and are more than a few
 * short ones.
 */
static __always_inline bool is_often_descheduled(const struct gaps *g, __u64 now)
{
	return g->on_cpu_ns && now < g->end_ns + APART_NS &&
	       g->off_cpu_ns > g->on_cpu_ns / 4 && g->off_cpu_ns > OFF_CPU_NS_MIN;
}

/* Returns the length of the gap that contains a random moment within a gap:
 * long gaps weigh more.
 */
static __always_inline __u64 usual_gap_us(const struct gaps *g)
{
	return g->off_cpu_us2 / (g->off_cpu_ns / NS_PER_US + 1);
}

/* Records a gap: an event that was due at @begin runs only now, at @end. */
static __always_inline void record_gap(struct gaps *g, __u64 begin, __u64 end)
{
	__u64 length, us, ms;
	__u32 bucket = 0;

	/* A gap that both a tick and a timer report counts once. */
	if (begin < g->end_ns)
		begin = g->end_ns;
	if (end < begin + config.shortest_ns)
		return;
	length = end - begin;
	us = length / NS_PER_US;
	/* Longer gaps count as ten seconds, whose square still fits. */
	if (us > 10 * 1000 * 1000)
		us = 10 * 1000 * 1000;
	if (g->end_ns && begin - g->end_ns < APART_NS) {
		decay(&g->off_cpu_ns, us * NS_PER_US);
		decay(&g->off_cpu_us2, us * us);
		decay(&g->on_cpu_ns, begin - g->end_ns);
	} else {
		g->off_cpu_ns = us * NS_PER_US;
		g->off_cpu_us2 = us * us;
		g->on_cpu_ns = 0;
	}
	g->begin_ns = begin;
	g->end_ns = end;
	g->count++;
	g->total_ns += length;
	if (length > g->longest_ns)
		g->longest_ns = length;
	ms = length / NS_PER_MS;
#pragma unroll
	for (__u32 i = 1; i < GAP_BUCKETS; i++)
		if (ms >> i)
			bucket = i;
	g->length[bucket]++;
}

#endif
