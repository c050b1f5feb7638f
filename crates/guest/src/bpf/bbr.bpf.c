// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_bbr: the kernel's BBR, protected from samples that span an off-CPU gap.
 *
 * While a guest is descheduled, acknowledgements wait. The guest handles
 * them all at once when it resumes, so every bandwidth sample of that round
 * spans the gap. BBR paces at the rate that it measured, but only while it
 * runs. So it measures a lower rate next, and the rate collapses (arXiv
 * 2601.05665). taut_bbr does three things about this, and only while gaps take
 * more than a fifth of the time; otherwise it calls the kernel's functions
 * with the kernel's arguments:
 *
 *   samples	A sample across a gap is replaced by the rate according to the
 *		receiver's clock: its timestamps (RFC 7323) show when it sent each
 *		acknowledgement, however long the acknowledgement waited here. If
 *		that rate is unknown, the sample is marked as application-limited:
 *		it may raise BBR's model, not lower it. RTTs across a gap do not
 *		renew the minimum.
 *   pacing	Data that was due during the gap is sent faster afterwards, as far
 *		as the window allows.
 *   window	is wider by as much as the path drains during a gap, and less
 *		if segments are lost.
 *
 * docs/design/guest.md gives figures and reasons.
 */
#include "gap.h"

/* net/ipv4/tcp_bbr.c: enum bbr_mode, BW_SCALE. */
enum {
	BBR_STARTUP,
	BBR_DRAIN,
	BBR_PROBE_BW,
	BBR_PROBE_RTT,
};

#define BW_SCALE	24
#define CWND_MIN	4

struct bbr {
	__u32 min_rtt_us;
	struct minmax bw;
	__u32 mode:3;
	__u32 lt_use_bw:1;
	__u32 lt_bw;
	__u32 full_bw_reached:1;
} __attribute__((preserve_access_index));

/* The kernel's functions. The arguments of bbr_main() changed in Linux 6.10, and
 * bbr_cwnd_event_tx_start() replaced bbr_cwnd_event() in Linux 7.1.
 */
void bbr_main___2(struct sock *sk, const struct rate_sample *rs) __ksym __weak;
void bbr_main___4(struct sock *sk, __u32 ack, int flag,
		  const struct rate_sample *rs) __ksym __weak;
void bbr_init(struct sock *sk) __ksym;
__u32 bbr_sndbuf_expand(struct sock *sk) __ksym;
__u32 bbr_undo_cwnd(struct sock *sk) __ksym;
void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
void bbr_cwnd_event_tx_start(struct sock *sk) __ksym __weak;
__u32 bbr_ssthresh(struct sock *sk) __ksym;
__u32 bbr_min_tso_segs(struct sock *sk) __ksym;
void bbr_set_state(struct sock *sk, __u8 new_state) __ksym;

/* A receiver's clock is assumed to tick once per millisecond, as those of
 * Linux, FreeBSD and Apple do, if it has done so over this time. The
 * acknowledgements at both ends of that time may each have waited for the
 * length of a gap.
 */
#define CLOCK_US	(400 * 1000)
#define CLOCK_FAST(us)	((us) / 1000 * 5 / 4)
#define CLOCK_SLOW(us)	((us) / 1000 * 3 / 4)
#define TICK_US		1000
/* The clock's offset is the minimum of the last two periods of this length,
 * because clocks drift.
 */
#define LEAST_US	(5 * 1000 * 1000)

/* The length of a train in ticks of the receiver. It is not shorter, because
 * its ends are known to one tick; and not longer, so that it fits between two
 * gaps.
 */
#define TRAIN_TICKS	8
/* A train also has this many segments (an acknowledgement covers two or more),
 * or lasts this long.
 */
#define TRAIN_SEGMENTS	16
#define TRAIN_TICKS_LONG	128
/* If more than half of a train arrived in its first ticks, that half waited at
 * the receiver, which may have been descheduled, too.
 */
#define TRAIN_TICKS_EARLY	2
/* A longer train contains a pause. */
#define TRAIN_TICKS_MAX	400

/* The maximum length of a gap for which taut_bbr catches up. */
#define OFF_CPU_NS_MAX	(200 * NS_PER_MS)

/* The time after which catching up ends. */
#define CATCH_UP_NS	(NS_PER_SEC / 4)

/* The maximum rate in bytes per second, low enough that products with
 * microseconds do not overflow.
 */
#define PACE_MAX	(1ULL << 40)

/* Pacing gain while catching up, in eighths: from BBR's own gain for filling a
 * pipe, 2/ln 2, to that of three such rounds.
 */
#define CATCH_UP_MIN	23
#define CATCH_UP_MAX	64
#define CATCH_UP_SHIFT	3

/* The window is reduced if more than one in this many of its segments is lost
 * between gaps.
 */
#define LOSS_SHARE	50
/* The minimum by which the window exceeds the path, as a part of it; plus as
 * many bursts of the kernel (sk_pacing_shift, the largest GSO segment) as BBR's
 * own window allows.
 */
#define ROOM_MIN_SHIFT	2
#define ROOM_BURSTS	3
#define BURST_SHIFT	10
#define BURST_MAX	65536

/* Without a receiver's clock, or with one but no train for ROUNDS_STALE rounds,
 * one round in this many may lower the model.
 */
#define ROUNDS_KEPT	4
#define ROUNDS_STALE	8
/* Rounds are uneven and a gap apart. BBR takes three rounds without growth for
 * a full pipe, so in STARTUP it is shown only every second round.
 */
#define ROUNDS_STARTUP	2

struct path {
	__u64 gap_ns;		/* end of the last gap that is accounted for */
	__u64 begin_ns;		/* its beginning */
	__u64 sent;		/* bytes sent up to then */
	__u64 pace_theirs;	/* BBR's pacing rate, bytes per second */
	__u64 pace_ours;	/* the rate that replaces it; 0: none */
	__u64 first_us;		/* when the receiver's clock was first read */
	__u32 first_tick;	/* what it said then */
	__u32 cwnd_theirs;
	__u32 cwnd_ours;
	__u32 train_tick;	/* the receiver's tick at the beginning of the train */
	__u32 train_delivered;	/* segments delivered up to then */
	__u32 train_early;	/* segments delivered by the end of its first ticks */
	__u32 sample_us;	/* length of the last train; 0: there is none */
	__u32 sample_delivered;	/* its segments */
	__u32 sample_end;	/* segments delivered up to its end */
	__u32 sample_round;	/* the round in which it ended */
	__u32 room;		/* segments by which the window may be wider than the path */
	__u32 lost;		/* segments lost up to the last gap */
	__u32 marked;		/* segments marked (CE) up to then */
	__s64 least_us;		/* least offset of the receiver's clock in this period */
	__s64 least_before_us;	/* and in the period before */
	__u64 least_since_us;
	__u32 next_round;	/* segments delivered when the round ends */
	__u32 rounds;
	bool has_train;
	bool is_catching_up;	/* the pacing rate was raised, and counted */
	bool has_caught_up;
	bool has_room;
	bool is_reduced;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct path);
} paths SEC(".maps");

/* An idle CPU has no tick, and a sender whose window is full idles. So while
 * acknowledgements are awaited, each CPU has a timer of its own, the beat. Code
 * that handles an acknowledgement and finds the beat long overdue has detected
 * a gap.
 */
struct beat {
	struct bpf_timer timer;
	__u64 due_ns;		/* 0: the timer is not set */
	__u64 wanted_ns;
	bool is_made;
	bool is_refused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* user space sets the number of CPUs */
	__type(key, __u32);
	__type(value, struct beat);
} beats SEC(".maps");

#define BEAT_NS		(4 * NS_PER_MS)
/* Timers are handled after packets, which may take 2 ms; the limit allows for
 * that twice.
 */
#define BEAT_LATE_NS	(5 * NS_PER_MS)
/* The beat ends this long after the last acknowledgement. */
#define BEATS_NS	(NS_PER_SEC / 2)

static __always_inline void set_beat(struct beat *b, __u64 now)
{
	int refused = bpf_timer_start(&b->timer, BEAT_NS, TIMER_CPU_PIN);

	if (refused && config.has_one_cpu)
		refused = bpf_timer_start(&b->timer, BEAT_NS, 0);
	b->is_refused = refused;
	b->due_ns = refused ? 0 : now + BEAT_NS;
}

static int on_beat(void *map, __u32 *cpu, struct beat *b)
{
	__u64 now = bpf_ktime_get_ns();
	struct gaps *g;

	(void)map;
	if (b->due_ns && now > b->due_ns + BEAT_LATE_NS) {
		g = this_cpu_gaps();
		if (g && *cpu == bpf_get_smp_processor_id())
			record_gap(g, b->due_ns, now);
	}
	if (now - b->wanted_ns < BEATS_NS)
		set_beat(b, now);
	else
		b->due_ns = 0;
	return 0;
}

static __always_inline void keep_beating(struct gaps *g, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct beat *b = bpf_map_lookup_elem(&beats, &cpu);
	__u64 due;

	if (!b || b->is_refused)
		return;
	b->wanted_ns = now;
	due = b->due_ns;
	if (due && now <= due + BEAT_LATE_NS)
		return;
	if (!b->is_made) {
		if (bpf_timer_init(&b->timer, &beats, MONOTONIC))
			return;
		bpf_timer_set_callback(&b->timer, on_beat);
		b->is_made = true;
	}
	set_beat(b, now);
	/* A refused timer ended with the last user of its map, and would appear
	 * late for ever.
	 */
	if (due && !b->is_refused)
		record_gap(g, due, now);
}

/* Restores BBR's own pacing rate and window before BBR reads them. */
static __always_inline void restore_bbr(struct tcp_sock *tp, struct path *p)
{
	struct sock *sk = sk_of(tp);

	if (p->pace_ours) {
		if (sk->sk_pacing_rate == p->pace_ours)
			sk->sk_pacing_rate = p->pace_theirs;
		p->pace_ours = 0;
	}
	if (p->cwnd_ours) {
		if (tp->snd_cwnd == p->cwnd_ours)
			tp->snd_cwnd = p->cwnd_theirs;
		p->cwnd_ours = 0;
	}
}

static __always_inline bool has_clock(struct tcp_sock *tp)
{
	struct tcp_options_received *rx = &tp->rx_opt;

	return BPF_CORE_READ_BITFIELD(rx, tstamp_ok);
}

/* Returns whether the receiver's clock ticks once per millisecond. */
static __always_inline bool trusts_clock(struct tcp_sock *tp, struct path *p)
{
	__u64 us;
	__u32 ticks;

	if (!p->first_us || !has_clock(tp))
		return false;
	us = tp->tcp_mstamp - p->first_us;
	ticks = tp->rx_opt.rcv_tsval - p->first_tick;
	return us >= CLOCK_US && ticks >= CLOCK_SLOW(us) &&
	       ticks <= CLOCK_FAST(us);
}

/* Returns how long an acknowledgement waited, or up to a tick less. Its
 * timestamp shows when the receiver sent it; acknowledgements that did not wait
 * show the offset of the clock.
 */
static __always_inline __u64 waited_us(struct tcp_sock *tp, struct path *p)
{
	__s64 us = tp->tcp_mstamp - p->first_us;
	__s64 ticks = (__u32)(tp->rx_opt.rcv_tsval - p->first_tick);
	__s64 behind = us - ticks * TICK_US, least;

	if (us - (__s64)p->least_since_us > LEAST_US || !p->least_since_us) {
		bool is_recent = p->least_since_us &&
				 us - (__s64)p->least_since_us <= 2 * LEAST_US;

		p->least_before_us = is_recent ? p->least_us : behind;
		p->least_us = behind;
		p->least_since_us = us;
	}
	if (behind < p->least_us)
		p->least_us = behind;
	least = p->least_us;
	if (p->least_before_us < least)
		least = p->least_before_us;
	return behind - least > TICK_US ? behind - least - TICK_US : 0;
}

/* Follows a train of segments from one tick of the receiver to another. A train
 * is as fast as the path, wherever the acknowledgements waited. The last tick
 * counts in full, so that no train appears faster than the path. Segments that
 * waited at the receiver are at the start of a train: the first acknowledgement
 * after a silence ends the train before.
 */
static __always_inline void follow_train(struct tcp_sock *tp, struct path *p)
{
	__u32 tick = tp->rx_opt.rcv_tsval, delivered = tp->delivered;
	__s32 ticks = tick - p->train_tick;
	__u32 segments = delivered - p->train_delivered;
	__u32 early;

	if (p->has_train) {
		if (ticks <= TRAIN_TICKS_EARLY)
			p->train_early = delivered;
		/* The timestamp is older, or the train is too short. */
		if (ticks < TRAIN_TICKS)
			return;
		if (ticks <= TRAIN_TICKS_MAX) {
			if (segments < TRAIN_SEGMENTS &&
			    ticks < TRAIN_TICKS_LONG)
				return;
			early = p->train_early - p->train_delivered;
			if (early <= segments / 2) {
				p->sample_us = (ticks + 1) * TICK_US;
				p->sample_delivered = segments;
				p->sample_end = delivered;
				p->sample_round = p->rounds;
			}
		}
	}
	p->has_train = true;
	p->train_tick = tick;
	p->train_delivered = delivered;
	p->train_early = delivered;
}

/* The size in bytes for the kernel's struct rate_sample, which may grow. */
#define RATE_SAMPLE	192

/* Corrects @copy, which BBR gets in place of a sample @rs that spans a gap. */
static __always_inline void correct(struct tcp_sock *tp, struct path *p,
				    const struct gaps *g,
				    const struct rate_sample *rs,
				    struct rate_sample *copy, __u64 wait_us)
{
	struct bbr *bbr = (struct bbr *)tp->inet_conn.icsk_ca_priv;
	__u64 begin_us = g->begin_ns / NS_PER_US;
	__u64 rtt_us = rs->rtt_us;
	bool is_corrected, is_kept = false;

	/* The train belongs to the round of this sample or to a later one. */
	is_corrected = rs->delivered > 0 && p->sample_us &&
		       !after(rs->prior_delivered, p->sample_end);
	if (is_corrected) {
		copy->delivered = p->sample_delivered;
		copy->interval_us = p->sample_us;
		count(COUNT_RATE_SAMPLES_CORRECTED);
	} else {
		is_kept = (trusts_clock(tp, p) &&
			   p->rounds - p->sample_round < ROUNDS_STALE) ||
			  p->rounds % ROUNDS_KEPT;
	}
	if (!BPF_CORE_READ_BITFIELD(bbr, full_bw_reached))
		is_kept = p->rounds % ROUNDS_STARTUP;
	if (is_kept)
		copy->is_app_limited = true;
	if (is_kept && !is_corrected)
		count(COUNT_RATE_SAMPLES_KEPT_OUT);
	if (rs->rtt_us <= 0)
		return;
	if (wait_us && wait_us < rtt_us) {
		copy->rtt_us = rtt_us - wait_us;
		count(COUNT_RTT_SAMPLES_CORRECTED);
		return;
	}
	/* The RTT is kept out unless it is smaller than the minimum, or
	 * exceeded the minimum before the gap began.
	 */
	if (rtt_us > bbr->min_rtt_us &&
	    tp->tcp_mstamp - rtt_us + bbr->min_rtt_us > begin_us) {
		copy->is_ack_delayed = true;
		count(COUNT_RTT_SAMPLES_KEPT_OUT);
	}
}

/* Accounts for a gap, once per connection. */
static __always_inline void begin_catching_up(struct tcp_sock *tp,
					      struct path *p,
					      const struct gaps *g)
{
	p->gap_ns = g->end_ns;
	p->begin_ns = g->begin_ns;
	if (g->end_ns - g->begin_ns > OFF_CPU_NS_MAX)
		p->begin_ns = g->end_ns - OFF_CPU_NS_MAX;
	p->sent = tp->bytes_sent;
	p->is_catching_up = false;
	p->has_caught_up = false;
	/* Like any window, the room grows slowly. */
	if (!p->is_reduced)
		p->room += p->room / 32 + 1;
	p->is_reduced = false;
	p->lost = tp->lost;
	p->marked = tp->delivered_ce;
}

/* Shrinks the room at once when losses become known, before as much is sent
 * again.
 */
static __always_inline void shrink_on_loss(struct tcp_sock *tp, struct path *p)
{
	__u64 lost = tp->lost - p->lost;

	if (p->is_reduced)
		return;
	if (lost * LOSS_SHARE > tp->snd_cwnd || tp->delivered_ce != p->marked) {
		p->room -= p->room / 4;
		p->is_reduced = true;
	}
}

static __always_inline void catch_up(struct tcp_sock *tp, struct path *p,
				     const struct gaps *g, __u64 now)
{
	struct bbr *bbr = (struct bbr *)tp->inet_conn.icsk_ca_priv;
	struct sock *sk = sk_of(tp);
	__u32 mode = BPF_CORE_READ_BITFIELD(bbr, mode);
	__u64 pace = sk->sk_pacing_rate, due, sent, gain, off_cpu_us;
	__u64 bw = bbr->bw.s[0].v, burst;
	__u32 cwnd = tp->snd_cwnd, bdp, wide, least, most;

	/* An older gap of another CPU does not count, if acknowledgements
	 * arrive on both.
	 */
	if (g->end_ns > p->gap_ns)
		begin_catching_up(tp, p, g);
	shrink_on_loss(tp, p);
	/* BBR reduces what is in flight in these two states. */
	if (mode == BBR_DRAIN || mode == BBR_PROBE_RTT)
		return;

	if (!p->has_caught_up && now > p->begin_ns && pace < PACE_MAX) {
		due = pace * ((now - p->begin_ns) / NS_PER_US) / 1000000;
		sent = tp->bytes_sent - p->sent;
		gain = ((g->off_cpu_ns + g->on_cpu_ns) << CATCH_UP_SHIFT) /
		       (g->on_cpu_ns + 1);
		if (gain < CATCH_UP_MIN)
			gain = CATCH_UP_MIN;
		if (gain > CATCH_UP_MAX)
			gain = CATCH_UP_MAX;
		if (sent >= due || now - p->gap_ns > CATCH_UP_NS) {
			p->has_caught_up = true;
		} else {
			p->pace_theirs = pace;
			p->pace_ours = (pace * gain) >> CATCH_UP_SHIFT;
			/* SO_MAX_PACING_RATE, which BBR obeys, too. */
			if (p->pace_ours > sk->sk_max_pacing_rate)
				p->pace_ours = sk->sk_max_pacing_rate;
			if (!p->is_catching_up)
				count(COUNT_CATCH_UPS);
			p->is_catching_up = true;
			sk->sk_pacing_rate = p->pace_ours;
		}
	}

	if (!BPF_CORE_READ_BITFIELD(bbr, full_bw_reached) ||
	    !bbr->min_rtt_us || bbr->min_rtt_us == ~0U)
		return;
	off_cpu_us = usual_gap_us(g);
	if (off_cpu_us > OFF_CPU_NS_MAX / NS_PER_US)
		off_cpu_us = OFF_CPU_NS_MAX / NS_PER_US;
	/* Behind a policer, BBR uses the rate that it has found. */
	if (BPF_CORE_READ_BITFIELD(bbr, lt_use_bw))
		bw = bbr->lt_bw;
	bdp = (bw * bbr->min_rtt_us) >> BW_SCALE;
	burst = pace >> BURST_SHIFT;
	if (burst > BURST_MAX)
		burst = BURST_MAX;
	least = ROOM_BURSTS * (__u32)burst / (tp->mss_cache + 1);
	if (least < bdp >> ROOM_MIN_SHIFT)
		least = bdp >> ROOM_MIN_SHIFT;
	/* No more than can be used, so that a loss takes effect at once. */
	most = bdp + ((bw * off_cpu_us) >> BW_SCALE);
	if (!p->has_room) {
		p->room = bdp;
		p->has_room = true;
	}
	if (p->room > most)
		p->room = most;
	if (p->room < least)
		p->room = least;
	wide = bdp + p->room;
	if (wide < CWND_MIN)
		wide = CWND_MIN;
	if (wide > tp->snd_cwnd_clamp)
		wide = tp->snd_cwnd_clamp;
	/* In recovery, BBR sends only as much as arrives. */
	if (wide == cwnd || (wide > cwnd && ca_state(tp) > CA_DISORDER))
		return;
	p->cwnd_theirs = cwnd;
	p->cwnd_ours = wide;
	tp->snd_cwnd = wide;
}

static __always_inline void call_main(struct tcp_sock *tp, __u32 ack, int flag,
				      const struct rate_sample *rs)
{
	if (config.has_ack_and_flag)
		bbr_main___4(sk_of(tp), ack, flag, rs);
	else
		bbr_main___2(sk_of(tp), rs);
}

static __always_inline void control(struct tcp_sock *tp, __u32 ack, int flag,
				    const struct rate_sample *rs)
{
	__u64 now = bpf_ktime_get_ns(), wait_us = 0;
	struct path *p = bpf_sk_storage_get(&paths, tp, 0, 0);
	struct gaps *g = this_cpu_gaps();
	char room[RATE_SAMPLE];
	struct rate_sample *copy = (struct rate_sample *)room;
	__u32 size = bpf_core_type_size(struct rate_sample);

	if (!p || !g) {
		call_main(tp, ack, flag, rs);
		return;
	}
	if (!p->first_us && has_clock(tp)) {
		p->first_us = tp->tcp_mstamp;
		p->first_tick = tp->rx_opt.rcv_tsval;
	}
	keep_beating(g, now);
	restore_bbr(tp, p);
	if (!is_often_descheduled(g, now)) {
		p->has_train = false;
		p->sample_us = 0;
		call_main(tp, ack, flag, rs);
		return;
	}

	if (trusts_clock(tp, p)) {
		wait_us = waited_us(tp, p);
		follow_train(tp, p);
	}
	if (rs->delivered >= 0 && !after(p->next_round, rs->prior_delivered)) {
		p->next_round = tp->delivered;
		p->rounds++;
	}
	if (rs->interval_us > 0 && size <= sizeof(room) &&
	    g->end_ns / NS_PER_US + rs->interval_us > tp->tcp_mstamp) {
		__builtin_memset(room, 0, sizeof(room));
		if (bpf_probe_read_kernel(room, size, rs)) {
			call_main(tp, ack, flag, rs);
		} else {
			correct(tp, p, g, rs, copy, wait_us);
			call_main(tp, ack, flag, copy);
		}
	} else {
		call_main(tp, ack, flag, rs);
	}
	catch_up(tp, p, g, now);
}

SEC("struct_ops/taut_bbr_main_2")
void taut_bbr_main_2(__u64 *ctx)
{
	control((struct tcp_sock *)ctx[0], 0, 0, (struct rate_sample *)ctx[1]);
}

SEC("struct_ops/taut_bbr_main_4")
void taut_bbr_main_4(__u64 *ctx)
{
	control((struct tcp_sock *)ctx[0], ctx[1], ctx[2],
		(struct rate_sample *)ctx[3]);
}

SEC("struct_ops/taut_bbr_init")
void taut_bbr_init(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct path *p;

	p = bpf_sk_storage_get(&paths, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (p)
		__builtin_memset(p, 0, sizeof(*p));
	else
		count(COUNT_NOT_FOLLOWED);
	bbr_init(sk_of(tp));
}

SEC("struct_ops/taut_bbr_release")
void taut_bbr_release(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct path *p = bpf_sk_storage_get(&paths, tp, 0, 0);

	/* The next congestion control gets the values that BBR would have left. */
	if (p)
		restore_bbr(tp, p);
	bpf_sk_storage_delete(&paths, tp);
}

SEC("struct_ops/taut_bbr_sndbuf_expand")
__u32 taut_bbr_sndbuf_expand(__u64 *ctx)
{
	return bbr_sndbuf_expand((struct sock *)ctx[0]);
}

SEC("struct_ops/taut_bbr_undo_cwnd")
__u32 taut_bbr_undo_cwnd(__u64 *ctx)
{
	return bbr_undo_cwnd((struct sock *)ctx[0]);
}

/* A connection that was idle has nothing to catch up on. */
static __always_inline void on_tx_start(struct tcp_sock *tp)
{
	struct path *p = bpf_sk_storage_get(&paths, tp, 0, 0);

	if (p && bpf_ktime_get_ns() > p->gap_ns + CATCH_UP_NS)
		restore_bbr(tp, p);
}

SEC("struct_ops/taut_bbr_cwnd_event")
void taut_bbr_cwnd_event(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];

	if (ctx[1] == CA_EVENT_TX_START)
		on_tx_start(tp);
	bbr_cwnd_event(sk_of(tp), ctx[1]);
}

SEC("struct_ops/taut_bbr_tx_start")
void taut_bbr_tx_start(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];

	on_tx_start(tp);
	bbr_cwnd_event_tx_start(sk_of(tp));
}

SEC("struct_ops/taut_bbr_ssthresh")
__u32 taut_bbr_ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct path *p = bpf_sk_storage_get(&paths, tp, 0, 0);

	/* BBR saves the present window for later. */
	if (p)
		restore_bbr(tp, p);
	return bbr_ssthresh(sk_of(tp));
}

SEC("struct_ops/taut_bbr_min_tso_segs")
__u32 taut_bbr_min_tso_segs(__u64 *ctx)
{
	return bbr_min_tso_segs((struct sock *)ctx[0]);
}

SEC("struct_ops/taut_bbr_set_state")
void taut_bbr_set_state(__u64 *ctx)
{
	bbr_set_state((struct sock *)ctx[0], ctx[1]);
}

/* Operations for the versions of Linux that brought them; user space loads those
 * that fit the kernel (operations.rs).
 */
#define OPERATIONS(version, main, event, on_event)			\
	SEC(".struct_ops.link")						\
	struct tcp_congestion_ops taut_bbr_##version = {		\
		.flags = CONG_NON_RESTRICTED,				\
		.name = "taut_bbr",					\
		.init = (void *)taut_bbr_init,				\
		.release = (void *)taut_bbr_release,			\
		.cong_control = (void *)main,				\
		.sndbuf_expand = (void *)taut_bbr_sndbuf_expand,	\
		.undo_cwnd = (void *)taut_bbr_undo_cwnd,		\
		.event = (void *)on_event,				\
		.ssthresh = (void *)taut_bbr_ssthresh,			\
		.min_tso_segs = (void *)taut_bbr_min_tso_segs,		\
		.set_state = (void *)taut_bbr_set_state,		\
	}

OPERATIONS(6_1, taut_bbr_main_2, cwnd_event, taut_bbr_cwnd_event);
OPERATIONS(6_10, taut_bbr_main_4, cwnd_event, taut_bbr_cwnd_event);
OPERATIONS(7_1, taut_bbr_main_4, cwnd_event_tx_start, taut_bbr_tx_start);

char LICENSE[] SEC("license") = "GPL";
