/* SPDX-License-Identifier: GPL-2.0-only */
/* What the BPF programs and those who read their figures (figures.rs) tell each other. */
#ifndef TAUT_GUEST_H
#define TAUT_GUEST_H

#include <linux/types.h>

/* Of lengths of gaps: bucket n has those of 2^n ms and more, the last all that are longer. */
#define GAP_BUCKETS	12

/* Of a CPU. Times are the kernel's CLOCK_MONOTONIC. */
struct gaps {
	__u64 begin_ns;		/* of the last one, */
	__u64 end_ns;
	__u64 count;
	__u64 total_ns;		/* all gaps together */
	__u64 longest_ns;
	__u64 ticks;		/* that were seen; without any, that there is no gap says nothing */
	/* Of those that follow one another, fading sums: each counts for seven eighths
	 * of the next.
	 */
	__u64 away_ns;
	__u64 away_us2;		/* and of their squares, */
	__u64 awake_ns;		/* and of the time between them; 0: there is one gap only */
	__u64 length[GAP_BUCKETS];
};

/* When `taut guest up` was done (since.rs). */
struct guest_since {
	__u64 clock_ns;		/* CLOCK_MONOTONIC */
	char stat[248];		/* the first line of /proc/stat, where steal is */
};

/* What user space says (load.rs); it is all that there is in .rodata. */
struct guest_config {
	__u64 shortest_ns;	/* a gap that is shorter is none */
	__u8 has_ack_and_flag;	/* bbr_main() has four arguments: since Linux 6.10 */
	__u8 has_one_cpu;	/* so that a timer is on no other */
	__u8 pad[6];
};

enum guest_count {
	COUNT_RATE_KEPT_OUT,	/* bandwidth samples across a gap that may not lower the model */
	COUNT_RATE_CORRECTED,	/* those that were put right by the receiver's clock */
	COUNT_RTT_CORRECTED,	/* RTT samples across a gap without the wait */
	COUNT_RTT_KEPT_OUT,	/* RTT samples across a gap that may not renew the model */
	COUNT_CATCH_UP,		/* gaps after which a connection was paced faster */
	COUNT_CUT,		/* reductions that followed a gap */
	COUNT_CUT_UNDONE,	/* those that were taken back: nothing had been lost */
	COUNT_CUT_KERNEL,	/* those that the kernel took back by itself */
	COUNT_CUT_KEPT,		/* those that stayed: something may have been lost */
	COUNT_DELAY_KEPT_OUT,	/* delays across a gap that HyStart was not told of */
	COUNT_NO_STORAGE,	/* connections that could not be followed, and have the kernel's own */
	COUNTS
};

#endif
