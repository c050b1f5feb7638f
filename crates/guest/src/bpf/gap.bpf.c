// SPDX-License-Identifier: GPL-2.0-only
/*
 * Detects off-CPU gaps by the scheduler tick. Its timer expires at a known
 * time; if it expires late, the CPU did not run (or had its interrupts
 * disabled, which has the same effect). A tick that stops while a CPU idles is
 * set to the next event, and is not late.
 *
 * The timer's interrupt is handled before any packet, so code that handles
 * acknowledgements after a gap finds the gap recorded.
 */
#include "gap.h"

/* Only user space uses this map. It is pinned with the other maps, so it has
 * the same age.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guest_since);
} since SEC(".maps");

/* The function of the tick: its names before Linux 6.10, and since. */
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
	g = this_cpu_gaps();
	if (!g)
		return 0;
	g->ticks++;
	record_gap(g, timer->node.expires, bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
