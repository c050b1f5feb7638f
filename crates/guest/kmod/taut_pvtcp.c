// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_pvtcp: TCP on a machine that shares its processors (PVTCP, Cheng, Wang
 * and Lau, ICNP 2013, Algorithm 1). After an off-CPU gap a virtual processor has late
 * timers, and acknowledgements that wait in its devices. Linux runs the timers first,
 * so a retransmission timer declares segments lost that were acknowledged long ago;
 * and read late, the acknowledgements make round trips look long. For one tick after
 * a gap the module makes timers that would retransmit wait for the next jiffy, once
 * (equation 9), and replaces samples that began before the gap's end with the smoothed
 * round-trip time (equation 11). See docs/design/guest.md.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/hash.h>
#include <linux/hrtimer.h>
#include <linux/kernel_stat.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <net/tcp.h>

/* The socket of a timer, and when it is to fire: up to 6.14 kept apart from the timer. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 0)
#define timer_socket(t) container_of(t, struct sock, tcp_retransmit_timer)
#else
#define timer_socket(t) \
	(&container_of(t, struct inet_connection_sock, icsk_retransmit_timer)->icsk_inet.sk)
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
#define WANTED_IS_APART false
#define wanted_at(sk, t) ((t)->expires)
#else
#define WANTED_IS_APART true
#define wanted_at(sk, t) READ_ONCE(inet_csk(sk)->icsk_timeout)
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
#define timestamp_us(tp) ((tp)->tcp_usec_ts ? 1 : USEC_PER_MSEC) /* RFC 7323's unit */
#else
#define timestamp_us(tp) USEC_PER_MSEC
#endif

#define ACKED_DATA_OR_SYN 0x14 /* net/ipv4/tcp_input.c: FLAG_ACKED, since 3.0 */

static bool postpone = true;
module_param(postpone, bool, 0644);
MODULE_PARM_DESC(postpone, "make retransmission timers wait one tick after a gap");
static bool filter = true;
module_param(filter, bool, 0644);
MODULE_PARM_DESC(filter, "replace samples of the round-trip time taken across a gap");
static unsigned int threshold_us = 2000;
module_param(threshold_us, uint, 0644);
MODULE_PARM_DESC(threshold_us,
		 "a tick that is this late ends a gap (microseconds; at least half a tick)");

enum counter {
	TICKS, GAPS, GAP_NS, STEAL_NS,
	/* Each timer that fires soon after a gap is counted by one of these, */
	RTO_POSTPONED, TLP_POSTPONED, REO_POSTPONED,
	PASSED_OWNED, PASSED_WAITED, PASSED_NOT_DUE, PASSED_OTHER,
	/* and each sample taken across a gap by one of these. */
	RTT_DROPPED, RTT_RAISED, RTT_KEPT_SHORT, RTT_KEPT_FIRST,
	COUNTERS
};

static const char * const counter_names[] = { /* in the order of enum counter */
	"ticks", "gaps", "gap_ns", "steal_ns",
	"timers_postponed_rto", "timers_postponed_tlp", "timers_postponed_reo",
	"timers_passed_owned", "timers_passed_waited", "timers_passed_not_due", "timers_passed_other",
	"rtt_dropped", "rtt_raised", "rtt_kept_short", "rtt_kept_first",
};
static_assert(ARRAY_SIZE(counter_names) == COUNTERS);

/* Gaps by length: below 2 ms, 4 ms, ..., 2048 ms, and the rest. */
#define LENGTHS 12

/* Times are of CLOCK_MONOTONIC (ns). A gap between two reads mixes old and new values: harmless. */
struct processor {
	u64 gap_end;		/* end of the last gap; 0: none yet */
	u64 gap_alive;		/* the last tick before that gap */
	u64 tick;		/* the last tick */
	struct hrtimer *ticking; /* the timer of the tick being handled */
	u64 now;		/* when that tick began */
	s64 late;		/* how late it was */
	u64 steal;		/* the steal time then */
	struct timer_list *passing;	/* on its way to tcp_write_timer() */
	u64 counts[COUNTERS + LENGTHS];
};

static DEFINE_PER_CPU(struct processor, processors);

#define add(counter, number) this_cpu_add(processors.counts[counter], number)
#define count(counter) add(counter, 1)

/* === Gaps === */

static const void *tick_function;

/* A tick that idling stopped is restarted into the future, so it is not late. */
static bool is_tick(const struct hrtimer *timer)
{
	const void *function = ACCESS_PRIVATE(timer, function);
	char name[24];

	if (likely(READ_ONCE(tick_function)))
		return function == READ_ONCE(tick_function);
	/* Until the first tick: the function's symbol is not exported to modules. */
	snprintf(name, sizeof(name), "%ps", function);
	if (strcmp(name, "tick_sched_timer") && strcmp(name, "tick_nohz_handler"))
		return false;
	WRITE_ONCE(tick_function, function);
	return true;
}

static void tick_begins(void *data, struct hrtimer *timer, ktime_t *now)
{
	struct processor *me = this_cpu_ptr(&processors);

	if (!is_tick(timer))
		return;
	me->ticking = timer;
	me->now = ktime_to_ns(*now);
	me->late = ktime_to_ns(ktime_sub(*now, hrtimer_get_expires(timer)));
}

/* This tick's steal time is accounted for by now, and softirqs have not run yet. */
static void tick_ends(void *data, struct hrtimer *timer)
{
	struct processor *me = this_cpu_ptr(&processors);
	u64 steal, length, least, before;

	/* Another timer may have been freed: only its address is compared. */
	if (timer != me->ticking)
		return;
	me->ticking = NULL;
	before = me->tick;
	me->tick = me->now;
	steal = kcpustat_this_cpu->cpustat[CPUTIME_STEAL] - me->steal;
	me->steal += steal;
	count(TICKS);
	if (!before)
		return;
	add(STEAL_NS, steal);
	least = max_t(u64, READ_ONCE(threshold_us) * (u64)NSEC_PER_USEC, TICK_NSEC / 2);
	length = max_t(s64, me->late, 0);
	/* After idling, steal is the sum of what each wake-up had to wait. */
	if (length < least && me->now - before < 2 * TICK_NSEC)
		length = steal;
	if (length < least)
		return;
	WRITE_ONCE(me->gap_alive, before);
	WRITE_ONCE(me->gap_end, me->now);
	count(GAPS);
	add(GAP_NS, length);
	count(COUNTERS + min_t(u64, ilog2(length / NSEC_PER_MSEC | 1), LENGTHS - 1));
}

/* The paper's is_spiked_jiffies, for a full tick: the next tick may follow at once. */
static bool is_after_gap(const struct processor *me, u64 now)
{
	return (s64)(now - READ_ONCE(me->gap_end)) < (s64)TICK_NSEC;
}

/* === Retransmission timers: equation 9 === */

/* Which timers wait, and until when. Of two that share a slot, the first may wait again. */
static unsigned long waiting[256];

#define waiting_of(t) (&waiting[hash_ptr(t, 8)])
#define waiting_for(t, jiffy) ((unsigned long)(t) ^ (jiffy))

/* All timers but the zero-window probe send data that a waiting acknowledgement may cover. */
static enum counter judge(struct sock *sk, struct timer_list *t)
{
	u8 pending = READ_ONCE(inet_csk(sk)->icsk_pending);
	enum counter waits;

	/*
	 * The kernel would run the timer after the backlog, but an interrupt that
	 * is still to come may bring the acknowledgement. If the process sets the
	 * timer meanwhile, it fires early once, notices, and is set again.
	 */
	if (sock_owned_by_user(sk) && !WANTED_IS_APART)
		return PASSED_OWNED;
	waits = pending == ICSK_TIME_RETRANS ? RTO_POSTPONED :
		pending == ICSK_TIME_LOSS_PROBE ? TLP_POSTPONED :
		pending == ICSK_TIME_REO_TIMEOUT ? REO_POSTPONED : PASSED_OTHER;
	if (waits == PASSED_OTHER || (1 << sk->sk_state) & (TCPF_CLOSE | TCPF_LISTEN))
		return PASSED_OTHER;
	/* Set again since it fired, by another processor, or for later. */
	if (timer_pending(t) || time_after(wanted_at(sk, t), jiffies))
		return PASSED_NOT_DUE;
	return READ_ONCE(*waiting_of(t)) == waiting_for(t, t->expires) ? PASSED_WAITED : waits;
}

/* Runs in place of tcp_write_timer(), in the timer softirq. */
static void write_timer_after_gap(struct timer_list *t)
{
	struct sock *sk = timer_socket(t);
	unsigned long next = jiffies + 1;
	enum counter result;

	bh_lock_sock(sk);
	result = judge(sk, t);
	if (result <= REO_POSTPONED) {
		WRITE_ONCE(*waiting_of(t), waiting_for(t, next));
		sk_reset_timer(sk, t, next); /* holds the socket for the timer */
	}
	bh_unlock_sock(sk);
	count(result);
	if (result <= REO_POSTPONED) {
		sock_put(sk); /* the reference of the timer that fired */
		return;
	}
	this_cpu_write(processors.passing, t);
	t->function(t);
	this_cpu_write(processors.passing, NULL);
}

static void notrace at_write_timer(unsigned long ip, unsigned long parent_ip,
				   struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct processor *me = this_cpu_ptr(&processors);
	struct pt_regs *regs = ftrace_get_regs(fregs);

	if (READ_ONCE(postpone) && regs && READ_ONCE(me->gap_end) &&
	    is_after_gap(me, ktime_get_ns()) && (void *)regs->di != me->passing)
		instruction_pointer_set(regs, (unsigned long)write_timer_after_gap);
}

static struct ftrace_ops write_timer_ops = {
	.func = at_write_timer,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY |
		 FTRACE_OPS_FL_RECURSION | FTRACE_OPS_FL_PERMANENT,
};

/* === Samples of the round-trip time: equation 11 === */

/*
 * At tcp_ack_update_rtt(sk, flag, seq_rtt_us, sack_rtt_us, ca_rtt_us, rs). The
 * sample is the first of the two times that is not negative, else the time by the
 * timestamps; changing seq_rtt_us suffices. It becomes the smoothed value, clamped to
 * the range of the true time: the acknowledgement had not arrived at the last tick
 * before the gap, and had arrived when it was read.
 */
static void notrace at_update_rtt(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct processor *me = this_cpu_ptr(&processors);
	struct pt_regs *regs = ftrace_get_regs(fregs);
	s64 sample, sent, smoothed, least;
	const struct tcp_sock *tp;

	if (!READ_ONCE(filter) || !regs || !READ_ONCE(me->gap_end))
		return;
	tp = (const struct tcp_sock *)regs->di;
	if (!is_after_gap(me, tp->tcp_mstamp * NSEC_PER_USEC))
		return;
	sample = (long)regs->dx >= 0 ? (long)regs->dx : (long)regs->cx;
	if (sample < 0) {
		u32 delta = (u32)div_u64(tp->tcp_mstamp, timestamp_us(tp)) - tp->rx_opt.rcv_tsecr;

		if (!(regs->si & ACKED_DATA_OR_SYN) || !tp->rx_opt.saw_tstamp ||
		    !tp->rx_opt.rcv_tsecr || delta >= INT_MAX / timestamp_us(tp))
			return;
		sample = (s64)delta * timestamp_us(tp);
		/* The kernel sets this too, except where it has a seq_rtt_us. */
		regs->r8 = sample;
	}
	sent = tp->tcp_mstamp - sample;
	if (sent >= (s64)div_u64(READ_ONCE(me->gap_end), NSEC_PER_USEC))
		return;
	smoothed = tp->srtt_us >> 3;
	if (!tp->srtt_us || sample <= smoothed) {
		count(tp->srtt_us ? RTT_KEPT_SHORT : RTT_KEPT_FIRST);
		return;
	}
	least = (s64)div_u64(READ_ONCE(me->gap_alive), NSEC_PER_USEC) - sent;
	count(least > smoothed ? RTT_RAISED : RTT_DROPPED);
	regs->dx = clamp(least, smoothed, sample);
}

static struct ftrace_ops update_rtt_ops = {
	.func = at_update_rtt,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_RECURSION | FTRACE_OPS_FL_PERMANENT,
};

static int show(struct seq_file *file, void *unused)
{
	u64 total;
	int cpu, i;

	for (i = 0; i < COUNTERS + LENGTHS; i++) {
		total = 0;
		for_each_possible_cpu(cpu)
			total += READ_ONCE(per_cpu(processors, cpu).counts[i]);
		if (i < COUNTERS)
			seq_printf(file, "%s %llu\n", counter_names[i], total);
		else if (i < COUNTERS + LENGTHS - 1)
			seq_printf(file, "gaps_below_%u_ms %llu\n", 2U << (i - COUNTERS), total);
		else
			seq_printf(file, "gaps_longer %llu\n", total);
	}
	return 0;
}

/* === Loading and unloading === */

static struct {
	const char *name;
	void *probe;
	struct tracepoint *at;
} probes[] = {
	{ "hrtimer_expire_entry", tick_begins },
	{ "hrtimer_expire_exit", tick_ends },
};

static struct proc_dir_entry *proc;

static void find_tracepoint(struct tracepoint *tp, void *unused)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (!strcmp(tp->name, probes[i].name))
			probes[i].at = tp;
}

static int hook(struct ftrace_ops *ops, char *name)
{
	int error = ftrace_set_filter(ops, name, strlen(name), 1);

	if (!error)
		error = register_ftrace_function(ops);
	if (error)
		pr_err("%s cannot be hooked (%d): %s\n", name, error,
		       error == -EBUSY ? "a livepatch has it, or kernel.ftrace_enabled is 0" :
		       "this kernel has no such function, or ftrace cannot hook it");
	return error;
}

static void unhook(struct ftrace_ops *ops)
{
	if (ops->flags & FTRACE_OPS_FL_ENABLED)
		unregister_ftrace_function(ops); /* waits until no CPU is in the handler */
	ftrace_free_filter(ops);
}

static void taut_pvtcp_exit(void)
{
	int i;

	proc_remove(proc);
	unhook(&write_timer_ops);
	unhook(&update_rtt_ops);
	synchronize_rcu(); /* write_timer_after_gap() runs in softirqs: readers */
	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (probes[i].at)
			tracepoint_probe_unregister(probes[i].at, probes[i].probe, NULL);
	tracepoint_synchronize_unregister();
}

static int __init taut_pvtcp_init(void)
{
	int i, error = 0;

	for_each_kernel_tracepoint(find_tracepoint, NULL);
	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		if (!error)
			error = probes[i].at ? tracepoint_probe_register(probes[i].at, probes[i].probe,
									 NULL) : -ENOENT;
		if (error)
			probes[i].at = NULL;
	}
	if (error)
		pr_err("the tracepoints of timers (hrtimer_expire_*) are not available (%d)\n", error);
	if (!error)
		error = hook(&update_rtt_ops, "tcp_ack_update_rtt");
	if (!error)
		error = hook(&write_timer_ops, "tcp_write_timer");
	if (!error) {
		proc = proc_create_single("taut_pvtcp", 0444, NULL, show);
		error = proc ? 0 : -ENOMEM;
	}
	if (error)
		taut_pvtcp_exit();
	return error;
}

module_init(taut_pvtcp_init);
module_exit(taut_pvtcp_exit);
MODULE_AUTHOR("The Taut authors");
MODULE_DESCRIPTION("TCP on a machine that shares its processors (PVTCP)");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
