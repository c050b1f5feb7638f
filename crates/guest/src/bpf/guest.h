/* SPDX-License-Identifier: GPL-2.0-only */
/* Structs that the BPF programs share with user space; build.rs generates the
 * Rust types.
 */
#ifndef TAUT_GUEST_H
#define TAUT_GUEST_H

#include <linux/types.h>

/* Buckets of gap lengths: bucket n counts gaps of 2^n ms and more, the last
 * bucket all longer ones.
 */
#define GAP_BUCKETS	12

/* The off-CPU gaps of one CPU. Times are CLOCK_MONOTONIC. */
struct gaps {
	__u64 begin_ns;		/* of the last gap */
	__u64 end_ns;
	__u64 count;
	__u64 total_ns;		/* sum of all lengths */
	__u64 longest_ns;
	__u64 ticks;		/* observed; with none, it is unknown whether there were gaps */
	/* Sums over consecutive gaps, decayed by an eighth at each gap. */
	__u64 off_cpu_ns;		/* of their lengths */
	__u64 off_cpu_us2;		/* of the squares of their lengths */
	__u64 on_cpu_ns;		/* of the time between them; 0: there is only one gap */
	__u64 length[GAP_BUCKETS];
};

/* The time at which `taut guest up` finished (since.rs). */
struct guest_since {
	__u64 clock_ns;		/* CLOCK_MONOTONIC */
	char stat[248];		/* the first line of /proc/stat, which has the steal time */
};

/* Set by user space (kernel.rs); the only variable in .rodata. */
struct guest_config {
	__u64 shortest_ns;	/* shorter delays are no gaps */
	__u8 has_ack_and_flag;	/* bbr_main() has four arguments: since Linux 6.10 */
	__u8 has_one_cpu;	/* a timer cannot move to another CPU */
	__u8 pad[6];
};

enum guest_count {
	COUNT_RATE_SAMPLES_KEPT_OUT,	/* bandwidth samples across a gap that may not lower BBR's model */
	COUNT_RATE_SAMPLES_CORRECTED,	/* those corrected by the receiver's clock */
	COUNT_RTT_SAMPLES_CORRECTED,	/* RTT samples across a gap, less the time that the ACK waited */
	COUNT_RTT_SAMPLES_KEPT_OUT,	/* RTT samples across a gap that may not renew BBR's minimum */
	COUNT_CATCH_UPS,		/* gaps after which a connection was paced faster */
	COUNT_REDUCTIONS,		/* window reductions of Cubic that followed a gap */
	COUNT_REDUCTIONS_UNDONE,	/* reductions taken back because nothing had been lost */
	COUNT_REDUCTIONS_UNDONE_BY_KERNEL,	/* reductions that the kernel took back by itself */
	COUNT_REDUCTIONS_KEPT,		/* reductions that stayed because something may have been lost */
	COUNT_DELAYS_KEPT_OUT,		/* delays across a gap that HyStart was not told of */
	COUNT_NOT_FOLLOWED,		/* connections without memory for their state */
	NR_COUNTS
};

#endif
