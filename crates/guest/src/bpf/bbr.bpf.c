// SPDX-License-Identifier: GPL-2.0-only
/*
 * taut_bbr: the kernel's BBR, kept from what it would learn while its CPU was away.
 *
 * While a guest's CPU is away acknowledgements wait. Then they are handled at once,
 * and every bandwidth sample of that round spans the gap. BBR paces at what it
 * has measured, but only while it runs, measures a smaller rate by that, and so on
 * down (arXiv 2601.05665). Three things are done about it, and only while gaps take
 * more than a fifth of the time; otherwise each call is the kernel's, with what the
 * kernel passes it:
 *
 *   samples	One across a gap is replaced by what the receiver's own clock
 *		says (its timestamps, RFC 7323, tell when it sent each
 *		acknowledgement, however long that waited here). Where that is
 *		not known, it is passed as BBR takes one of an application that had
 *		nothing to send: it may raise the model, not lower it.
 *		RTTs across a gap do not renew the minimum.
 *   pacing	What should have been sent during the gap is made up for at once,
 *		as far as the window allows.
 *   window	is as much wider as the path drains while the CPU is away, less
 *		if anything is lost.
 *
 * docs/design/guest.md has figures and reasons.
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

/* The kernel's, or a weak nothing: the arguments are others before and since 6.10. */
void bbr_main___2(struct sock *sk, const struct rate_sample *rs) __ksym __weak;
void bbr_main___4(struct sock *sk, __u32 ack, int flag,
		  const struct rate_sample *rs) __ksym __weak;
void bbr_init(struct sock *sk) __ksym;
__u32 bbr_sndbuf_expand(struct sock *sk) __ksym;
__u32 bbr_undo_cwnd(struct sock *sk) __ksym;
void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
__u32 bbr_ssthresh(struct sock *sk) __ksym;
__u32 bbr_min_tso_segs(struct sock *sk) __ksym;
void bbr_set_state(struct sock *sk, __u8 new_state) __ksym;

/* A receiver's clock is taken to tick once in a millisecond, as Linux's, FreeBSD's
 * and Apple's do, if between two looks at it that are so far apart it has. The
 * first look may have waited for a gap's length, and the second, too.
 */
#define CLOCK_US	(400 * 1000)
#define CLOCK_FAST(us)	((us) / 1000 * 5 / 4)
#define CLOCK_SLOW(us)	((us) / 1000 * 3 / 4)
#define TICK_US		1000
/* How far it is behind is known from the last two times of this length: it may drift. */
#define LEAST_US	(5 * 1000 * 1000)

/* A train is so many of the receiver's ticks long, for its ends are known to one tick,
 * and no longer, to be within what is sent between two gaps;
 */
#define TRAIN_TICKS	8
/* and so many segments, for an acknowledgement is of two or more; or so long. */
#define TRAIN_SEGMENTS	16
#define TRAIN_TICKS_LONG	128
/* Half of it in its first ticks had waited at the receiver, as where that was away, too. */
#define TRAIN_TICKS_EARLY	2
/* One that takes longer had a pause in it. */
#define TRAIN_TICKS_MAX	400

/* Gaps longer than this are not made up for. */
#define AWAY_NS_MAX	(200 * NS_PER_MS)

/* After so long nothing is made up for any more. */
#define CATCH_UP_NS	(NS_PER_SEC / 4)

/* Bytes in a second: so that no product with microseconds is too large. */
#define PACE_MAX	(1ULL << 40)

/* While it catches up: as many times as fast as BBR would, in 1/8. At least BBR's own
 * gain for filling a pipe, 2/ln 2, and no faster than that of three such rounds.
 */
#define CATCH_UP_MIN	23
#define CATCH_UP_MAX	64
#define CATCH_UP_SHIFT	3

/* The window is made less wide when one in so many of it is lost from gap to gap. */
#define LOSS_SHARE	50
/* It is this part of the path wider at least, and by as many bursts of the kernel's
 * (sk_pacing_shift, GSO's largest) as BBR's own window has room for.
 */
#define ROOM_MIN_SHIFT	2
#define ROOM_BURSTS	3
#define BURST_SHIFT	10
#define BURST_MAX	65536

/* Without a receiver's clock one round in so many may lower the model; and with it, when
 * there was no train for so many rounds.
 */
#define ROUNDS_KEPT	4
#define ROUNDS_STALE	8
/* Rounds are gaps apart, and each is another: BBR, which takes three rounds without growth for
 * a pipe that is full, is told of every second.
 */
#define ROUNDS_STARTUP	2

struct path {
	__u64 gap_ns;		/* the end of the last gap that is accounted for */
	__u64 begin_ns;		/* and when it began, */
	__u64 sent;		/* with so many bytes sent */
	__u64 pace_theirs;	/* bytes in a second: BBR's, */
	__u64 pace_ours;	/* and what was made of it; 0: nothing */
	__u64 first_us;		/* when the receiver's clock was first looked at, */
	__u32 first_tick;	/* and what it said */
	__u32 cwnd_theirs;
	__u32 cwnd_ours;
	__u32 train_tick;	/* of the receiver's, when the train began, */
	__u32 train_delivered;	/* with so many segments delivered, */
	__u32 train_early;	/* and by the end of its first ticks */
	__u32 sample_us;	/* the last train's; 0: there is none, */
	__u32 sample_delivered;
	__u32 sample_end;	/* how many were delivered at its end, */
	__u32 sample_round;	/* and which round that was */
	__u32 room;		/* segments by which the window may be wider than the path */
	__u32 lost;		/* and segments lost, and marked, by the last gap */
	__u32 marked;
	__s64 least_us;		/* by which the receiver's clock was behind, lately, */
	__s64 least_before_us;	/* and before */
	__u64 least_since_us;
	__u32 next_round;	/* the round ends with it, */
	__u32 rounds;		/* and so many there were */
	bool has_train;
	bool is_catching_up;	/* and has been seen to */
	bool has_caught_up;
	bool has_room;
	bool is_cut;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct path);
} paths SEC(".maps");

/* A tick is stopped while a CPU idles, as that of a sender whose window is full does. So
 * while acknowledgements are waited for there is a timer of our own on each CPU:
 * whoever handles one and finds it due long ago knows of a gap.
 */
struct beat {
	struct bpf_timer timer;
	__u64 due_ns;		/* 0: it is not set */
	__u64 wanted_ns;
	bool is_made;
	bool is_refused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* user space says how many CPUs there are */
	__type(key, __u32);
	__type(value, struct beat);
} beats SEC(".maps");

#define BEAT_NS		(4 * NS_PER_MS)
/* It is handled after packets are, which alone may take 2 ms, and again. */
#define BEAT_LATE_NS	(5 * NS_PER_MS)
/* After the last acknowledgement it goes on for so long. */
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
		g = own_gaps();
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
	/* One that is refused has gone with its map's last user: it is late for ever. */
	if (due && !b->is_refused)
		record_gap(g, due, now);
}

/* What was made of BBR's pace and window is taken back, before BBR sees them. */
static __always_inline void give_back(struct tcp_sock *tp, struct path *p)
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

/* The receiver's clock is what it is taken for. */
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

/* For how long an acknowledgement waited, and maybe a tick less: it says when the receiver
 * sent it, and of others that is known, too, which did not wait.
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

/* A train of segments, from one of the receiver's ticks to another: it is as fast as the
 * path was, wherever the acknowledgements waited. That its last tick has
 * begun counts as if it had ended, so that no train is faster than it was. What had
 * waited at the receiver is at a train's beginning: the first acknowledgement after its
 * silence ends the train before.
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
		/* An older one than was seen says nothing. */
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

/* Room for the kernel's own struct rate_sample, which may grow. */
#define RATE_SAMPLE	192

/* It spans a gap: @copy is what BBR is told in its place. */
static __always_inline void correct(struct tcp_sock *tp, struct path *p,
				    const struct gaps *g,
				    const struct rate_sample *rs,
				    struct rate_sample *copy, __u64 wait_us)
{
	struct bbr *bbr = (struct bbr *)tp->inet_conn.icsk_ca_priv;
	__u64 begin_us = g->begin_ns / NS_PER_US;
	__u64 rtt_us = rs->rtt_us;
	bool is_corrected, is_kept = false;

	/* The train is of this sample's round, or a later one. */
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
	/* It may be a smaller one. And what was under way for longer than the minimum when
	 * the gap began is a larger one, gap or not.
	 */
	if (rtt_us > bbr->min_rtt_us &&
	    tp->tcp_mstamp - rtt_us + bbr->min_rtt_us > begin_us) {
		copy->is_ack_delayed = true;
		count(COUNT_RTT_SAMPLES_KEPT_OUT);
	}
}

/* A gap is accounted for, once by each connection. */
static __always_inline void begin_catching_up(struct tcp_sock *tp,
					      struct path *p,
					      const struct gaps *g)
{
	p->gap_ns = g->end_ns;
	p->begin_ns = g->begin_ns;
	if (g->end_ns - g->begin_ns > AWAY_NS_MAX)
		p->begin_ns = g->end_ns - AWAY_NS_MAX;
	p->sent = tp->bytes_sent;
	p->is_catching_up = false;
	p->has_caught_up = false;
	/* As with any window: up slowly, */
	if (!p->is_cut)
		p->room += p->room / 32 + 1;
	p->is_cut = false;
	p->lost = tp->lost;
	p->marked = tp->delivered_ce;
}

/* And down at once, when what was lost is known: before as much is sent again. */
static __always_inline void heed_loss(struct tcp_sock *tp, struct path *p)
{
	__u64 lost = tp->lost - p->lost;

	if (p->is_cut)
		return;
	if (lost * LOSS_SHARE > tp->snd_cwnd || tp->delivered_ce != p->marked) {
		p->room -= p->room / 4;
		p->is_cut = true;
	}
}

static __always_inline void catch_up(struct tcp_sock *tp, struct path *p,
				     const struct gaps *g, __u64 now)
{
	struct bbr *bbr = (struct bbr *)tp->inet_conn.icsk_ca_priv;
	struct sock *sk = sk_of(tp);
	__u32 mode = BPF_CORE_READ_BITFIELD(bbr, mode);
	__u64 pace = sk->sk_pacing_rate, due, sent, gain, away;
	__u64 bw = bbr->bw.s[0].v, burst;
	__u32 cwnd = tp->snd_cwnd, bdp, wide, least, most;

	/* (Not an older one of another CPU, if acknowledgements come on both.) */
	if (g->end_ns > p->gap_ns)
		begin_catching_up(tp, p, g);
	heed_loss(tp, p);
	/* In these two less is to be in flight than before. */
	if (mode == BBR_DRAIN || mode == BBR_PROBE_RTT)
		return;

	if (!p->has_caught_up && now > p->begin_ns && pace < PACE_MAX) {
		due = pace * ((now - p->begin_ns) / NS_PER_US) / 1000000;
		sent = tp->bytes_sent - p->sent;
		gain = ((g->away_ns + g->awake_ns) << CATCH_UP_SHIFT) /
		       (g->awake_ns + 1);
		if (gain < CATCH_UP_MIN)
			gain = CATCH_UP_MIN;
		if (gain > CATCH_UP_MAX)
			gain = CATCH_UP_MAX;
		if (sent >= due || now - p->gap_ns > CATCH_UP_NS) {
			p->has_caught_up = true;
		} else {
			p->pace_theirs = pace;
			p->pace_ours = (pace * gain) >> CATCH_UP_SHIFT;
			/* SO_MAX_PACING_RATE, to which BBR keeps, too. */
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
	away = usual_us(g);
	if (away > AWAY_NS_MAX / NS_PER_US)
		away = AWAY_NS_MAX / NS_PER_US;
	/* Behind a policer BBR goes by the rate that it has found. */
	if (BPF_CORE_READ_BITFIELD(bbr, lt_use_bw))
		bw = bbr->lt_bw;
	bdp = (bw * bbr->min_rtt_us) >> BW_SCALE;
	burst = pace >> BURST_SHIFT;
	if (burst > BURST_MAX)
		burst = BURST_MAX;
	least = ROOM_BURSTS * (__u32)burst / (tp->mss_cache + 1);
	if (least < bdp >> ROOM_MIN_SHIFT)
		least = bdp >> ROOM_MIN_SHIFT;
	/* No more than can be used: so that a loss is felt at once. */
	most = bdp + ((bw * away) >> BW_SCALE);
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
	/* In recovery BBR sends as much as arrives, and no more. */
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
	struct gaps *g = own_gaps();
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
	give_back(tp, p);
	if (!is_often_away(g, now)) {
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

/* Two, and user space drops the one that is not the kernel's. */
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

	/* What comes after has what BBR would have left it. */
	if (p)
		give_back(tp, p);
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

SEC("struct_ops/taut_bbr_cwnd_event")
void taut_bbr_cwnd_event(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct path *p = bpf_sk_storage_get(&paths, tp, 0, 0);

	/* One that begins again after a rest has nothing to make up for. */
	if (p && ctx[1] == CA_EVENT_TX_START &&
	    bpf_ktime_get_ns() > p->gap_ns + CATCH_UP_NS)
		give_back(tp, p);
	bbr_cwnd_event(sk_of(tp), ctx[1]);
}

SEC("struct_ops/taut_bbr_ssthresh")
__u32 taut_bbr_ssthresh(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct path *p = bpf_sk_storage_get(&paths, tp, 0, 0);

	/* BBR keeps the window that it has now, for later. */
	if (p)
		give_back(tp, p);
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

SEC(".struct_ops.link")
struct tcp_congestion_ops taut_bbr_2 = {
	.flags = CONG_NON_RESTRICTED,
	.name = "taut_bbr",
	.init = (void *)taut_bbr_init,
	.release = (void *)taut_bbr_release,
	.cong_control = (void *)taut_bbr_main_2,
	.sndbuf_expand = (void *)taut_bbr_sndbuf_expand,
	.undo_cwnd = (void *)taut_bbr_undo_cwnd,
	.cwnd_event = (void *)taut_bbr_cwnd_event,
	.ssthresh = (void *)taut_bbr_ssthresh,
	.min_tso_segs = (void *)taut_bbr_min_tso_segs,
	.set_state = (void *)taut_bbr_set_state,
};

SEC(".struct_ops.link")
struct tcp_congestion_ops taut_bbr_4 = {
	.flags = CONG_NON_RESTRICTED,
	.name = "taut_bbr",
	.init = (void *)taut_bbr_init,
	.release = (void *)taut_bbr_release,
	.cong_control = (void *)taut_bbr_main_4,
	.sndbuf_expand = (void *)taut_bbr_sndbuf_expand,
	.undo_cwnd = (void *)taut_bbr_undo_cwnd,
	.cwnd_event = (void *)taut_bbr_cwnd_event,
	.ssthresh = (void *)taut_bbr_ssthresh,
	.min_tso_segs = (void *)taut_bbr_min_tso_segs,
	.set_state = (void *)taut_bbr_set_state,
};

char LICENSE[] SEC("license") = "GPL";
