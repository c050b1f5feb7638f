// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests whether this kernel can bind a timer to a CPU, which the beats of
 * bbr.bpf.c need. Runs once, when the congestion controls are loaded.
 */
#include "kernel.h"

#define TIMER_NS	1000000ULL

struct try {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct try);
} tries SEC(".maps");

static int on_timer(void *map, __u32 *key, struct try *t)
{
	(void)map;
	(void)key;
	(void)t;
	return 0;
}

/* Returns zero if the kernel can. */
SEC("tc")
int taut_timer(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct try *t = bpf_map_lookup_elem(&tries, &zero);

	(void)skb;
	if (!t || bpf_timer_init(&t->timer, &tries, MONOTONIC) ||
	    bpf_timer_set_callback(&t->timer, on_timer))
		return 1;
	return bpf_timer_start(&t->timer, TIMER_NS, TIMER_CPU_PIN) ? 1 : 0;
}

char LICENSE[] SEC("license") = "GPL";
