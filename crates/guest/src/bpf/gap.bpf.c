// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sees from the tick that a CPU was taken away: the tick's timer goes off at a time
 * that is known beforehand, and when it goes off late, the CPU did not run (or had
 * its interrupts off, which for whoever waits for it is the same). A tick that
 * is stopped while a CPU idles is set to the next event, and is not late by that.
 *
 * The timer's interrupt is handled before any packet is: whoever handles
 * acknowledgements after a gap finds it recorded.
 */
#include "gap.h"

/* Of user space alone: pinned with the others, it is as old as they are. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guest_since);
} since SEC(".maps");

/* The tick's function, by its names before and since Linux 6.10. */
extern const void tick_sched_timer __ksym __weak;
extern const void tick_nohz_handler __ksym __weak;

SEC("tp_btf/hrtimer_expire_entry")
int taut_tick(__u64 *ctx)
{
	struct hrtimer *timer = (struct hrtimer *)ctx[0];
	const void *function = timer->function;
	struct gaps *g;

	if (function != &tick_sched_timer && function != &tick_nohz_handler)
		return 0;
	g = own_gaps();
	if (!g)
		return 0;
	g->ticks++;
	record_gap(g, timer->node.expires, bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
