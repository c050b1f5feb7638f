/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gaps: times in which a CPU of this machine did not run, and nothing that came
 * in was handled. Each CPU has its own, and keeps the last one.
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

/* Gaps that are farther apart do not follow one another. */
#define APART_NS	NS_PER_SEC
#define AWAY_NS_MIN	(20 * NS_PER_MS)

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

/* Of the CPU that this runs on. */
static __always_inline struct gaps *own_gaps(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gaps, &zero);
}

static __always_inline void fade(__u64 *sum, __u64 value)
{
	*sum = *sum - *sum / 8 + value;
}

/* Gaps take more than a fifth of the time, which is what BBR's own probing (a pacing gain
 * of 5/4) makes up for, and more than a few that are short.
 */
static __always_inline bool is_often_away(const struct gaps *g, __u64 now)
{
	return g->awake_ns && now < g->end_ns + APART_NS &&
	       g->away_ns > g->awake_ns / 4 && g->away_ns > AWAY_NS_MIN;
}

/* How long one is, as a moment in one sees it: long ones count for more. */
static __always_inline __u64 usual_us(const struct gaps *g)
{
	return g->away_us2 / (g->away_ns / NS_PER_US + 1);
}

/* It was to run at @begin, and does only now, at @end. */
static __always_inline void record_gap(struct gaps *g, __u64 begin, __u64 end)
{
	__u64 length, us, ms;
	__u32 bucket = 0;

	/* What is known of twice is one gap. */
	if (begin < g->end_ns)
		begin = g->end_ns;
	if (end < begin + config.shortest_ns)
		return;
	length = end - begin;
	us = length / NS_PER_US;
	/* (Ten seconds are enough to tell, and a square that is not too large.) */
	if (us > 10 * 1000 * 1000)
		us = 10 * 1000 * 1000;
	if (g->end_ns && begin - g->end_ns < APART_NS) {
		fade(&g->away_ns, us * NS_PER_US);
		fade(&g->away_us2, us * us);
		fade(&g->awake_ns, begin - g->end_ns);
	} else {
		g->away_ns = us * NS_PER_US;
		g->away_us2 = us * us;
		g->awake_ns = 0;
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
