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
	COUNT_RATE_SAMPLES_KEPT_OUT,	/* bandwidth samples across a gap that may not lower BBR's model */
	COUNT_RATE_SAMPLES_CORRECTED,	/* bandwidth samples across a gap, corrected by the receiver's clock */
	COUNT_RTT_SAMPLES_CORRECTED,	/* RTT samples across a gap, less the time that the ACK waited */
	COUNT_RTT_SAMPLES_KEPT_OUT,	/* RTT samples across a gap that may not renew BBR's minimum */
	COUNT_CATCH_UPS,		/* gaps after which a connection was paced faster */
	COUNT_REDUCTIONS,		/* window reductions of Cubic that followed a gap */
	COUNT_REDUCTIONS_UNDONE,	/* reductions taken back because nothing had been lost */
	COUNT_REDUCTIONS_UNDONE_BY_KERNEL,	/* reductions that the kernel took back by itself */
	COUNT_REDUCTIONS_KEPT,		/* reductions that stayed because something may have been lost */
	COUNT_DELAYS_KEPT_OUT,		/* delays across a gap that HyStart was not told of */
	COUNT_NOT_FOLLOWED,		/* connections without memory for their state: the kernel's own control runs them */
	NR_COUNTS
};

#endif
