/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The life of a connection: the process that connected or accepted, the times of
 * its handshake and of its losses, and the record of its end. Included by
 * connection.bpf.c.
 */
#ifndef TAUT_LIFE_H
#define TAUT_LIFE_H

struct pid_namespace {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct upid {
	int nr;
	struct pid_namespace *ns;
} __attribute__((preserve_access_index));

struct pid {
	unsigned int level;
	struct upid numbers[1];
} __attribute__((preserve_access_index));

struct task_struct {
	struct task_struct *group_leader;
	struct pid *thread_pid;
	__u64 start_boottime;
	char comm[16];
} __attribute__((preserve_access_index));

/* The levels of pid namespaces that are searched, from the outermost. The kernel
 * allows 32.
 */
#define PID_LEVELS 8

/* The kernel's enum sock_flags: set when a FIN has arrived. */
#define FLAG_DONE 1

/* The kernel's enum tcp_chrono; the counters are those of BUSY and after. */
enum {
	CHRONO_BUSY = 1,
	CHRONO_RWND = 2,
	CHRONO_SNDBUF = 3,
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	/* Some 20,000 ends. User space reads them twice a second or more. */
	__uint(max_entries, 4 << 20);
} ends SEC(".maps");

static __always_inline __u32 ticks_now(void)
{
	return bpf_jiffies64();
}

/* Reads both clocks. User space derives the length of a tick from two readings. */
static __always_inline void note_time(void)
{
	counted.at = bpf_ktime_get_ns();
	counted.ticks = bpf_jiffies64();
}

/* Returns the pid of a process in the namespace of user space; 0 if it has none. */
static __always_inline __u32 pid_of(struct task_struct *leader)
{
	struct pid *pid = BPF_CORE_READ(leader, thread_pid);
	__u32 level = BPF_CORE_READ(pid, level);
	__u32 size = bpf_core_type_size(struct upid);
	__u32 first = bpf_core_field_offset(struct pid, numbers);

	for (__u32 i = 0; i < PID_LEVELS && i <= level; i++) {
		struct upid *number = (void *)pid + first + i * size;

		if (BPF_CORE_READ(number, ns, ns.inum) == this_scan.pidns)
			return BPF_CORE_READ(number, nr);
	}
	return 0;
}

/* Notes the current process as the owner, unless one is noted. The caller runs in
 * the context of the process that uses the connection.
 */
static __always_inline void note_owner(struct life *life)
{
	struct task_struct *task, *leader;

	if (life->owner.began)
		return;
	task = (struct task_struct *)bpf_get_current_task();
	leader = BPF_CORE_READ(task, group_leader);
	life->owner.pid = pid_of(leader);
	if (!life->owner.pid)
		return;
	bpf_core_read(&life->owner.name, sizeof(life->owner.name), &leader->comm);
	life->owner.began = BPF_CORE_READ(leader, start_boottime);
}

/* A socket may connect again, so its earlier life is forgotten. */
static __always_inline void note_connect(struct life *life)
{
	*life = (struct life){
		.flags = CONNECTION_FOLLOWED | CONNECTION_OPENED_HERE,
		.opened = bpf_ktime_get_ns(),
	};
	note_owner(life);
}

static __always_inline void note_established(struct life *life,
					     struct tcp_sock *tp, int from)
{
	life->established = bpf_ktime_get_ns();
	if (from == STATE_SYN_RECV) {
		life->flags |= CONNECTION_FOLLOWED;
		life->handshake_us = tp->srtt_us >> 3;
	}
}

/* Adds up the time from each loss to the end of its recovery. A loss that only a
 * time-out detects began when the last segment was sent.
 */
static __always_inline void note_loss(struct life *life, struct tcp_sock *tp,
				      __u8 from, __u8 to)
{
	if (to >= CA_RECOVERY && from < CA_RECOVERY) {
		life->lost_since = to == CA_LOSS ? tp->lsndtime : ticks_now();
	} else if (to < CA_RECOVERY && from >= CA_RECOVERY && life->lost_since) {
		life->lost_ticks += ticks_now() - life->lost_since;
		life->lost_since = 0;
	}
}

/* Adds up the times between segments with data. A silence longer than `longest`
 * (in ticks) does not count: not even a retransmission arrived, so it was an
 * application's turn.
 */
static __always_inline void note_data(struct life *life, struct tcp_sock *tp,
				      __u32 longest)
{
	__u32 at = tp->inet_conn.icsk_ack.lrcvtime, silence = at - life->last_data;

	if (!tp->bytes_received || at == life->last_data)
		return;
	if (life->last_data && silence <= longest)
		life->receiving_ticks += silence;
	life->last_data = at;
}

static __always_inline __u32 chrono(struct tcp_sock *tp, __u32 which)
{
	__u32 ticks = tp->chrono_stat[which - CHRONO_BUSY];

	if (BPF_CORE_READ_BITFIELD(tp, chrono_type) == which)
		ticks += ticks_now() - tp->chrono_start;
	return ticks;
}

static __always_inline __u8 flags_of(const struct life *life, struct tcp_sock *tp,
				     struct sock_common *common)
{
	__u8 flags = life->flags;

	if (common->skc_flags & (1UL << FLAG_DONE))
		flags |= CONNECTION_FIN_RECEIVED;
	if (tp->snd_una == tp->write_seq)
		flags |= CONNECTION_ALL_ACKED;
	return flags;
}

/* Whether this end has closed before its peer. The kernel does not pass tcp_probe
 * after that, so the silences between later segments are unknown.
 */
static __always_inline bool has_closed_first(int state)
{
	return state == STATE_FIN_WAIT1 || state == STATE_FIN_WAIT2 ||
	       state == STATE_CLOSING;
}

/* Writes the record of a connection that ends, and frees its room for others. */
static __always_inline void write_end(struct slot *slot, struct tcp_sock *tp,
				      struct sock_common *common, int from)
{
	struct sock *sk = (struct sock *)tp;
	struct life *life = &slot->life;
	struct connection_end *end;
	__u32 rwnd, sndbuf;

	give_room(slot);
	if (!this_scan.writes_ends)
		return;
	end = bpf_ringbuf_reserve(&ends, sizeof(*end), 0);
	if (!end) {
		__sync_fetch_and_add(&counted.ends_missed, 1);
		return;
	}
	__builtin_memset(end, 0, sizeof(*end));
	end->cookie = bpf_get_socket_cookie(common);
	end->at = bpf_ktime_get_ns();
	end->opened = life->opened;
	end->established = life->established;
	if (bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		end->cgroup = BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
	end->bytes_acked = tp->bytes_acked;
	end->bytes_received = tp->bytes_received;
	end->bytes_sent = tp->bytes_sent;
	end->bytes_retrans = tp->bytes_retrans;
	end->owner = life->owner;
	name(&end->name, common);
	/* The port may have been given back by now. */
	end->name.local_port = tp->inet_conn.icsk_inet.inet_sport;
	end->netns = common->skc_net.net->ns.inum;
	end->uid = sk->sk_uid.val;
	end->data_segs_out = tp->data_segs_out;
	end->retransmitted = tp->total_retrans;
	end->signals = slot->counts.signals;
	end->cwnd = tp->snd_cwnd;
	end->ssthresh = tp->snd_ssthresh;
	end->handshake_us = life->handshake_us;
	rwnd = chrono(tp, CHRONO_RWND);
	sndbuf = chrono(tp, CHRONO_SNDBUF);
	end->busy_ticks = chrono(tp, CHRONO_BUSY) + rwnd + sndbuf;
	end->rwnd_ticks = rwnd;
	end->sndbuf_ticks = sndbuf;
	end->lost_ticks = life->lost_ticks;
	if (life->lost_since)
		end->lost_ticks += ticks_now() - life->lost_since;
	note_data(life, tp, has_closed_first(from) ? ~0U : tp->inet_conn.icsk_rto);
	end->receiving_ticks = life->receiving_ticks;
	end->flags = flags_of(life, tp, common);
	end->state = from;
	bpf_ringbuf_submit(end, BPF_RB_NO_WAKEUP);
	/* The socket may connect again. */
	*life = (struct life){};
}

#endif
