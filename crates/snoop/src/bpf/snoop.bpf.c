// SPDX-License-Identifier: GPL-2.0-only
/*
 * The host acknowledges for a guest that waits for its CPU (vsnoop-paper III
 * and IV). Two programs run at the guest's tap; each tap has its own copy of
 * both programs and of their maps.
 *
 * Towards the guest (egress): delivers a segment into the ring, learns from the
 * result whether it is there, and turns the original skb into the ACK that the
 * guest will send. The ACK enters the tap as if the guest had sent it.
 *
 * From the guest (ingress): learns the guest's state, drops ACKs without news,
 * and raises the acknowledgment number of segments that have to pass.
 *
 * flow.h and the headers that include it decide, and touch no packet.
 * docs/design/snoop.md explains the design.
 */
#include <linux/pkt_cls.h>

#include <bpf/bpf_core_read.h>

#include "ack.h"
#include "guest.h"
#include "handshake.h"
#include "origin.h"
#include "early_ack.h"
#include "retain.h"

#define RING_BYTES		(64 * 1024)
#define TSVAL_AT		(sizeof(struct tcphdr) + 4)
#define OPENING_NS		(10ULL * 1000 * 1000 * 1000)

/* A new flow looks for an idle one among this many of the oldest. */
#define EVICTION_TRIES		16

/* From asm-generic/errno-base.h: a map is full. */
#define E2BIG			7

/* The fields of the kernel's own structures that the programs read. */
struct net_device {
	__u64 features;
	unsigned int gso_max_size;
	unsigned int gso_ipv4_max_size;
	__u16 gso_max_segs;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	unsigned int end;
	__u8 ip_summed:2;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	unsigned int gso_type;
} __attribute__((preserve_access_index));

/* From linux/netdev_features.h and linux/skbuff.h: a device that takes frames
 * of GSO type t whole has the feature GSO_SHIFT + t. GSO_DODGY only requests a
 * check of an untrusted sender's header; such frames are not segmented for it.
 */
#define GSO_SHIFT	16
#define GSO_DODGY	2

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);	/* user space sets the size */
	__type(key, struct snoop_key);
	__type(value, struct snoop_flow);
} flows SEC(".maps");

/*
 * The flows in the order of their start. Anyone can have a listener of the guest
 * start flows, so idle ones make room for new ones.
 */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 4096);	/* likewise */
	__type(value, struct snoop_key);
} started SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} evictions SEC(".maps");

/*
 * Peers' SYNs that the guest has not answered. Anyone can send SYNs, so they
 * evict one another but no flow.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct snoop_key);
	__type(value, struct snoop_pending);
} pending_syns SEC(".maps");

/*
 * A listener of the guest, with its handshakes between the SYN-ACK and the
 * guest's first sign that the connection exists.
 */
struct listener {
	__u8 addr[16];
	__u16 port;
	__u16 version;
};

struct opening {
	__u32 count;
	__u32 pad;
	__u64 last_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct listener);
	__type(value, struct opening);
} handshakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_SNOOP_TG);
	__type(key, __u32);
	__type(value, __u64);
} to_guest_exits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_SNOOP_FG);
	__type(key, __u32);
	__type(value, __u64);
} from_guest_exits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct snoop_config);
} config SEC(".maps");

/* Measure the split of the run time, for benchmarks. */
SEC(".rodata.config")
const volatile bool measured;

/* Totals over both programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct snoop_spent);
} spending SEC(".maps");

static __always_inline void count(void *map, __u32 exit)
{
	__u64 *counter = bpf_map_lookup_elem(map, &exit);

	if (counter)
		(*counter)++;
}

static __always_inline __u64 clock(void)
{
	return measured ? bpf_ktime_get_ns() : 0;
}

static __always_inline void spend(bool lookup, __u64 from, __u64 to)
{
	__u32 zero = 0;
	struct snoop_spent *s;

	if (!measured)
		return;
	s = bpf_map_lookup_elem(&spending, &zero);
	if (!s)
		return;
	if (lookup) {
		s->lookup += to - from;
		s->lookups++;
		return;
	}
	s->delivery += to - from;
	s->deliveries++;
	from = bpf_ktime_get_ns();
	s->overhead += bpf_ktime_get_ns() - from;
}

static __always_inline struct snoop_flow *find_flow(struct snoop_key *key)
{
	__u64 from = clock();
	struct snoop_flow *f = bpf_map_lookup_elem(&flows, key);

	spend(true, from, clock());
	return f;
}

static __always_inline void listener_of(const struct snoop_key *key,
					struct listener *listener)
{
	__builtin_memcpy(listener->addr, key->guest, sizeof(listener->addr));
	listener->port = key->guest_port;
	listener->version = key->version;
}

/* Returns whether a place in the guest's accept queue belongs to this flow
 * alone. (A client that vanishes during its handshake keeps the place for
 * OPENING_NS.)
 */
static __always_inline bool begins_alone(const struct snoop_key *key, __u64 now)
{
	struct opening first = { .count = 1, .last_ns = now }, *open;
	struct listener listener = {};
	bool alone;

	listener_of(key, &listener);
	open = bpf_map_lookup_elem(&handshakes, &listener);
	if (!open)
		return !bpf_map_update_elem(&handshakes, &listener, &first,
					    BPF_NOEXIST);
	if (now > open->last_ns + OPENING_NS)
		open->count = 0;
	alone = __sync_fetch_and_add(&open->count, 1) == 0;
	open->last_ns = now;
	return alone;
}

static __always_inline void has_begun(const struct snoop_key *key)
{
	struct listener listener = {};
	struct opening *open;

	listener_of(key, &listener);
	open = bpf_map_lookup_elem(&handshakes, &listener);
	if (open && open->count)
		__sync_fetch_and_add(&open->count, -1);
}

/*
 * Removes the flow; with @now, only if it is idle then. Returns whether it did.
 */
static __always_inline bool forget(struct snoop_flow *f, struct snoop_key *key,
				   __u64 now)
{
	bool counted, stays;

	bpf_spin_lock(&f->lock);
	stays = now && !is_idle(f, now);
	counted = f->counted && !stays;
	if (!stays) {
		f->counted = 0;
		/* In case the deletion fails because the map is busy. */
		bypass(f, SNOOP_CLOSING);
		f->vm_seq = f->acked_seq;
	}
	bpf_spin_unlock(&f->lock);
	if (counted)
		has_begun(key);
	if (!stays)
		bpf_map_delete_elem(&flows, key);
	return !stays;
}

/* Removes the flow if it is idle. Returns whether it did. */
__noinline int evict(const struct snoop_key *of, __u64 now)
{
	struct snoop_key key;
	struct snoop_flow *f;

	if (!of)
		return 0;
	/* Linux 6.1 takes no key from a function's argument. */
	key = *of;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f || !forget(f, &key, now))
		return 0;
	count(&evictions, 0);
	return 1;
}

/* Removes one of the oldest flows that is idle. Returns whether there was one. */
static __always_inline bool make_room(__u64 now)
{
	struct snoop_key key = {};
	__u32 i;

	for (i = 0; i < EVICTION_TRIES; i++) {
		if (bpf_map_pop_elem(&started, &key))
			return false;
		if (evict(&key, now))
			return true;
		/* (The key of a flow that is gone goes.) */
		if (bpf_map_lookup_elem(&flows, &key))
			bpf_map_push_elem(&started, &key, BPF_EXIST);
	}
	return false;
}

static __always_inline struct snoop_flow *new_flow(struct snoop_key *key,
						   __u64 now)
{
	/* The structure is too large for the stack. */
	static const struct snoop_flow none;
	/* (Before Linux 6.4, the upper half of the result is undefined.) */
	int rc = bpf_map_update_elem(&flows, key, &none, BPF_NOEXIST);

	if (rc == -E2BIG && make_room(now))
		rc = bpf_map_update_elem(&flows, key, &none, BPF_NOEXIST);
	if (rc)
		return NULL;
	bpf_map_push_elem(&started, key, BPF_EXIST);
	return bpf_map_lookup_elem(&flows, key);
}

/*
 * Returns the state of the checksum. The context is the kernel's own sk_buff,
 * so CO-RE can read fields that __sk_buff lacks. (bpf_cast_to_kern_ctx() needs
 * Linux 6.2.)
 */
static __always_inline __u32 checksum_state(struct __sk_buff *skb)
{
	const struct sk_buff *kernels = (void *)skb;

	return BPF_CORE_READ_BITFIELD_PROBED(kernels, ip_summed);
}

/*
 * Returns whether the frame reaches the ring whole. If the kernel segments it
 * for the tap, the result of the delivery is that of the last part alone.
 */
static __always_inline bool arrives_whole(struct __sk_buff *skb)
{
	const struct sk_buff *kernels = (void *)skb;
	const struct skb_shared_info *shared;
	const struct net_device *dev;
	__u64 needed;

	if (!skb->gso_size)
		return true;
	dev = BPF_CORE_READ(kernels, dev);
	if (skb->len >= BPF_CORE_READ(dev, gso_max_size) ||
	    skb->gso_segs > BPF_CORE_READ(dev, gso_max_segs))
		return false;
	if (bpf_core_field_exists(dev->gso_ipv4_max_size) &&
	    skb->len >= BPF_CORE_READ(dev, gso_ipv4_max_size))
		return false;
	shared = (void *)(BPF_CORE_READ(kernels, head) +
			  BPF_CORE_READ(kernels, end));
	needed = BPF_CORE_READ(shared, gso_type) & ~GSO_DODGY;
	needed <<= GSO_SHIFT;
	return (BPF_CORE_READ(dev, features) & needed) == needed;
}

/* Returns whether TCP's checksum is right; verifies it if necessary. */
static __always_inline bool is_sound(struct __sk_buff *skb, __u32 state,
				     const struct segment *s,
				     const struct snoop_key *key)
{
	return state == CHECKSUM_PARTIAL || state == CHECKSUM_UNNECESSARY ||
	       sums_up(skb, s->l4_at, s->header + s->len,
		       pseudo_sum(key, s->header + s->len));
}

/*
 * Returns whether the peer's segment has news that the guest will believe. The
 * guest drops a segment with a wrong checksum.
 */
static __always_inline bool tells_new(struct __sk_buff *skb,
				      const struct snoop_flow *f,
				      const struct segment *s,
				      const struct snoop_key *key)
{
	return peer_tells(f, s) && is_sound(skb, checksum_state(skb), s, key);
}

/* Learns from a segment of the peer without data and without special flags. */
static __always_inline void learn_from_pure_ack(struct __sk_buff *skb,
						const struct segment *s,
						struct snoop_key *key)
{
	struct snoop_flow *f = find_flow(key);
	bool over;

	if (!f || !tells_new(skb, f, s, key))
		return;
	if (!f->fins) {
		hear_peer(f, s);
		return;
	}
	bpf_spin_lock(&f->lock);
	hear_peer(f, s);
	over = is_over(f);
	bpf_spin_unlock(&f->lock);
	if (over)
		forget(f, key, 0);
}

/*
 * Drops the original, whose clone has delivered the segment, at the tap's other
 * hook. (Dropped here, it would be an error to a sender on this host.)
 */
static __always_inline int discard(struct __sk_buff *skb)
{
	skb->mark = SNOOP_LEFTOVER;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

static __always_inline void see_peer_syn(struct snoop_flow *f,
					 const struct segment *s,
					 const struct snoop_key *key, __u64 now)
{
	struct snoop_pending pending = {};

	if (s->flags & TH_ACK) {
		if (!f)
			return;
		bpf_spin_lock(&f->lock);
		see_peer_syn_ack(f, s);
		f->seen_ns = now;
		bpf_spin_unlock(&f->lock);
		return;
	}
	/* A repeated SYN belongs to the existing connection. */
	if (f && f->flags & SNOOP_F_PEER_SYN && f->begun == s->seq + 1)
		return;
	note_peer_syn(&pending, s);
	bpf_map_update_elem(&pending_syns, key, &pending, BPF_ANY);
}

/*
 * Tries to deliver the segment into the ring. Returns the progress:
 * SNOOP_TG_ACKED if the segment is in the ring; SNOOP_TG_OVERTAKEN if the flow
 * did not look as if the segment could be acknowledged, which may_acknowledge()
 * decides under the lock. @summed: the state of the checksum, if the segment
 * was verified.
 */
static __always_inline enum snoop_to_guest
put_into_ring(struct __sk_buff *skb, const struct snoop_flow *f,
	      const struct snoop_config *c, const struct segment *s,
	      const struct snoop_key *key, __u64 now, __u32 *summed)
{
	__u32 mark = skb->mark;
	__u64 before;
	long rc;

	if (!c->on || now > c->until_ns)
		return SNOOP_TG_OFF;
	if (!might_acknowledge(f, c, s, now))
		return SNOOP_TG_OVERTAKEN;
	if (!arrives_whole(skb))
		return SNOOP_TG_IN_PARTS;
	*summed = checksum_state(skb);
	if (!is_sound(skb, *summed, s, key))
		return SNOOP_TG_CHECKSUM;
	if (c->full || retain(skb, s, key, now, f->begun))
		return SNOOP_TG_NOT_KEPT;
	skb->mark = SNOOP_DELIVERY;
	before = clock();
	rc = bpf_clone_redirect(skb, skb->ifindex, 0);
	spend(false, before, clock());
	if (rc > 0)
		return SNOOP_TG_RING_FULL;
	if (rc < 0) {
		skb->mark = mark;
		return SNOOP_TG_NOT_CLONED;
	}
	return SNOOP_TG_ACKED;
}

/* Returns whether the guest gets the segment and believes it. */
static __always_inline bool is_heard(struct __sk_buff *skb,
				     const struct snoop_flow *f,
				     const struct segment *s,
				     const struct snoop_key *key,
				     enum snoop_to_guest exit)
{
	switch (exit) {
	case SNOOP_TG_CHECKSUM:
	case SNOOP_TG_RING_FULL:
		return false;
	case SNOOP_TG_ACKED:
	case SNOOP_TG_NOT_KEPT:
	case SNOOP_TG_NOT_CLONED:
		return true;
	default:
		return tells_new(skb, f, s, key);
	}
}

/* Fills in the early ACK, except for the state of the checksum. */
static __always_inline void fill_answer(struct answer *answer,
					const struct snoop_flow *f,
					const struct lift *lift)
{
	answer->seq = f->vm_snd;
	answer->ack = lift->ack;
	answer->window = lift->window;
	answer->tsval = f->ts_vm;
	answer->tsecr = lift->tsecr;
	answer->has_ts = has_timestamps(f);
	answer->has_sack = after(f->sack_start, lift->ack) &&
			   after(f->sack_start, f->vm_seq);
	answer->sack_start = f->sack_start;
	answer->sack_end = f->sack_end;
	answer->tos = f->tos;
	answer->ttl = f->ttl;
	answer->vm_word = f->vm_word;
	__builtin_memcpy(answer->from, f->vm_mac, ETH_ALEN);
	__builtin_memcpy(answer->to, f->peer_mac, ETH_ALEN);
}

/*
 * Handles a segment with data or a FIN of a tracked flow. Returns its exit and
 * sets @action for the frame.
 */
static __always_inline enum snoop_to_guest
data_to_guest(struct __sk_buff *skb, struct snoop_flow *f,
	      const struct snoop_config *c, const struct segment *s,
	      struct snoop_key *key, __u64 now, int *action)
{
	struct answer answer = {};
	struct lift lift = {};
	enum snoop_to_guest exit;
	bool in_ring, heard, over, vm_sends, excess;

	excess = exceeds_scale(f, s) &&
		 is_sound(skb, checksum_state(skb), s, key);
	exit = put_into_ring(skb, f, c, s, key, now, &answer.summed);
	in_ring = exit == SNOOP_TG_ACKED;
	heard = is_heard(skb, f, s, key, exit);
	bpf_spin_lock(&f->lock);
	exit = settle(f, c, s, exit, now, &lift);
	if (excess && exceeds_scale(f, s)) {
		f->excess_end = s->seq + s->len;
		f->has_excess = 1;
	}
	if (heard)
		hear_peer(f, s);
	over = is_over(f);
	vm_sends = f->vm_snd != f->vm_una;
	if (exit == SNOOP_TG_ACKED)
		fill_answer(&answer, f, &lift);
	bpf_spin_unlock(&f->lock);

	/*
	 * It would come in parts anyway. On a tap without offloads most of these follow a
	 * frame that came in parts, and are out of order only for that.
	 */
	if (exit == SNOOP_TG_OUT_OF_ORDER && !arrives_whole(skb))
		exit = SNOOP_TG_IN_PARTS;
	if (exit == SNOOP_TG_ACKED) {
		if (!write_ack(skb, key, &answer)) {
			skb->mark = vm_sends ? SNOOP_ACK_DATA : SNOOP_ACK;
			*action = bpf_redirect(skb->ifindex, BPF_F_INGRESS);
			return exit;
		}
		/* The sender has to wait for the guest's own ACK. */
		exit = SNOOP_TG_NO_ACK;
		bpf_spin_lock(&f->lock);
		if (f->mode == SNOOP_ACTIVE)
			f->mode = SNOOP_UNEXPECTED_SEQ;
		bpf_spin_unlock(&f->lock);
	} else if (over) {
		forget(f, key, 0);
	}
	if (in_ring)
		*action = discard(skb);
	else if (exit == SNOOP_TG_RING_FULL)
		*action = TC_ACT_SHOT;
	return exit;
}

static __always_inline enum snoop_to_guest to_guest(struct __sk_buff *skb,
						    int *action)
{
	struct snoop_config *c;
	struct segment s = {};
	struct snoop_key key = {};
	struct snoop_flow *f;
	__u32 zero = 0;
	__u64 now;

	if (skb->mark == SNOOP_DELIVERY)
		return SNOOP_TG_OURS;
	switch (read_segment(skb, true, &s, &key)) {
	case SEGMENT_FOUND:
		break;
	case SEGMENT_NONE:
		return SNOOP_TG_NOT_TCP;
	default:
		return SNOOP_TG_MALFORMED;
	}
	if (!s.len && !(s.flags & ~(TH_ACK | TH_PSH | TH_ECE | TH_CWR))) {
		learn_from_pure_ack(skb, &s, &key);
		return SNOOP_TG_NO_DATA;
	}
	c = bpf_map_lookup_elem(&config, &zero);
	if (!c)
		return SNOOP_TG_OFF;
	/*
	 * A segment that starts or ends a flow must be one that the guest
	 * believes.
	 */
	if (s.flags & (TH_SYN | TH_FIN | TH_RST) &&
	    !is_sound(skb, checksum_state(skb), &s, &key))
		return SNOOP_TG_CHECKSUM;
	now = bpf_ktime_get_coarse_ns();
	f = find_flow(&key);
	if (s.flags & TH_RST) {
		if (f) {
			bpf_spin_lock(&f->lock);
			see_peer_reset(f, &s);
			bpf_spin_unlock(&f->lock);
		}
		return SNOOP_TG_RST;
	}
	if (s.flags & TH_SYN) {
		see_peer_syn(f, &s, &key, now);
		return SNOOP_TG_SYN;
	}
	if (!f)
		return SNOOP_TG_NO_FLOW;
	f->seen_ns = now;
	return data_to_guest(skb, f, c, &s, &key, now, action);
}

SEC("tc")
int snoop_to_guest(struct __sk_buff *skb)
{
	int action = TC_ACT_UNSPEC;

	count(&to_guest_exits, to_guest(skb, &action));
	return action;
}

/* Rewrites a segment's acknowledgment number and window. */
static __always_inline int write_lift(struct __sk_buff *skb,
				      const struct segment *s,
				      const struct lift *lift)
{
	__u32 at = s->l4_at == L4_AT_V4 ? L4_AT_V4 : L4_AT_V6;
	__be32 ack = bpf_htonl(lift->ack);
	__be16 window = bpf_htons(lift->window);
	__u32 sum_at = at + __builtin_offsetof(struct tcphdr, check);

	if (bpf_l4_csum_replace(skb, sum_at, bpf_htonl(s->ack), ack, 4) ||
	    bpf_l4_csum_replace(skb, sum_at, bpf_htons(s->window), window, 2) ||
	    bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct tcphdr,
							     ack_seq),
				&ack, sizeof(ack), 0) ||
	    bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct tcphdr,
							     window),
				&window, sizeof(window), 0))
		return -1;
	return 0;
}

/*
 * Updates an early ACK on its way back, because data of the guest may have
 * overtaken it: a sender that has the data ignores an older ACK (RFC 9293
 * 3.10.7.4; RFC 7323 5.3).
 */
static __always_inline void renew_ack(struct __sk_buff *skb,
				      const struct segment *s,
				      struct snoop_key *key)
{
	__u32 at, sum_at, seq, tsval;
	struct snoop_flow *f;
	__be32 from, to;

	f = find_flow(key);
	if (!f)
		return;
	seq = f->vm_snd;
	tsval = f->ts_vm;
	at = s->l4_at == L4_AT_V4 ? L4_AT_V4 : L4_AT_V6;
	sum_at = at + __builtin_offsetof(struct tcphdr, check);
	if (after(seq, s->seq)) {
		from = bpf_htonl(s->seq);
		to = bpf_htonl(seq);
		if (bpf_l4_csum_replace(skb, sum_at, from, to, 4))
			return;
		bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct tcphdr, seq),
				    &to, sizeof(to), 0);
	}
	if (s->options.has_ts && after(tsval, s->options.tsval)) {
		from = bpf_htonl(s->options.tsval);
		to = bpf_htonl(tsval);
		if (bpf_l4_csum_replace(skb, sum_at, from, to, 4))
			return;
		bpf_skb_store_bytes(skb, at + TSVAL_AT, &to, sizeof(to), 0);
	}
}

static __always_inline void send_event(const struct snoop_key *key,
				       const struct segment *s, __u32 acked_seq,
				       __u32 reach, bool contradicted)
{
	struct snoop_event *event;

	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return;
	event->key = *key;
	event->vm_seq = s->ack;
	event->acked_seq = acked_seq;
	event->reach = reach;
	event->contradicted = contradicted;
	bpf_ringbuf_submit(event, 0);
}

/*
 * Stops early ACKs for a flow of a host behind the guest. Returns whether the
 * flow is over.
 */
static __always_inline bool bypass_foreign(struct snoop_flow *f,
					   const struct segment *s, __u8 why,
					   __u64 now)
{
	bool over;

	bpf_spin_lock(&f->lock);
	if (f->mode != SNOOP_BYPASS)
		bypass(f, why);
	if (!(s->flags & TH_SYN))
		follow_to_the_end(f, s, now);
	f->seen_ns = now;
	over = is_over(f);
	bpf_spin_unlock(&f->lock);
	return over;
}

static __always_inline __u32 exit_of(__u8 why)
{
	switch (why) {
	case SNOOP_OTHER_MAC:
		return SNOOP_FG_OTHER_MAC;
	case SNOOP_OTHER_ADDRESS:
		return SNOOP_FG_OTHER_ADDRESS;
	default:
		return SNOOP_FG_FORWARDED;
	}
}

/* Starts to track a flow in mid-flow. */
static __always_inline void begin_midflow(struct snoop_flow *f,
					  const struct segment *s, bool distrusted)
{
	bpf_spin_lock(&f->lock);
	begin_in_midflow(f);
	f->vm_snd = s->seq + s->len;
	f->vm_una = s->seq;
	see_guest(f, s);
	if (distrusted)
		bypass(f, SNOOP_DISTRUSTED_PEER);
	bpf_spin_unlock(&f->lock);
}

/* Starts to track a flow with the guest's SYN or SYN-ACK. */
static __always_inline void begin_by_guest(struct snoop_flow *f,
					   const struct snoop_config *c,
					   const struct segment *s,
					   const struct snoop_key *key, __u64 now)
{
	bool alone, count_it, distrusted = is_distrusted(c, key);
	struct snoop_pending pending = {}, *noted = NULL;

	if (s->flags & TH_ACK)
		noted = bpf_map_lookup_elem(&pending_syns, key);
	/* The map may reuse the entry at any time. */
	if (noted)
		pending = *noted;
	/* The SYN-ACK of a listener. */
	count_it = s->flags & TH_ACK && c->start_early && !f->counted;
	alone = count_it && begins_alone(key, now);
	bpf_spin_lock(&f->lock);
	see_guest_syn(f, c, s, noted ? &pending : NULL);
	f->seen_ns = now;
	f->heard = now >> TICK_SHIFT;
	if (count_it)
		f->counted = 1;
	if (distrusted && f->mode != SNOOP_BYPASS)
		bypass(f, SNOOP_DISTRUSTED_PEER);
	if (alone && f->mode == SNOOP_UNPROVEN)
		f->mode = SNOOP_ACTIVE;
	bpf_spin_unlock(&f->lock);
	if (noted)
		bpf_map_delete_elem(&pending_syns, key);
}

SEC("tc")
int snoop_from_guest(struct __sk_buff *skb)
{
	enum snoop_from_guest exit;
	struct snoop_config *c;
	struct segment s = {};
	struct snoop_key key = {};
	struct lift lift = {};
	struct snoop_flow *f;
	__u32 acked, zero = 0;
	__u8 why, scale_most;
	bool over;
	__u64 now;

	if (skb->mark == SNOOP_ACK) {
		skb->mark = 0;
		count(&from_guest_exits, SNOOP_FG_OURS);
		return TC_ACT_UNSPEC;
	}
	if (skb->mark == SNOOP_LEFTOVER) {
		count(&from_guest_exits, SNOOP_FG_LEFTOVER);
		return TC_ACT_SHOT;
	}
	c = bpf_map_lookup_elem(&config, &zero);
	if (!c)
		return TC_ACT_UNSPEC;
	switch (read_segment(skb, false, &s, &key)) {
	case SEGMENT_FOUND:
		break;
	case SEGMENT_NONE:
		/*
		 * The first frame of a host behind the guest may be such a
		 * frame.
		 */
		is_other_mac(c, s.from);
		count(&from_guest_exits, SNOOP_FG_NOT_TCP);
		return TC_ACT_UNSPEC;
	default:
		count(&from_guest_exits, SNOOP_FG_MALFORMED);
		return TC_ACT_UNSPEC;
	}
	if (skb->mark == SNOOP_ACK_DATA) {
		renew_ack(skb, &s, &key);
		skb->mark = 0;
		count(&from_guest_exits, SNOOP_FG_OURS);
		return TC_ACT_UNSPEC;
	}
	now = bpf_ktime_get_coarse_ns();
	f = find_flow(&key);
	/* From here on, it is not idle. */
	if (f)
		f->seen_ns = now;
	if (s.flags & TH_RST) {
		if (f)
			forget(f, &key, 0);
		count(&from_guest_exits, SNOOP_FG_RST);
		return TC_ACT_UNSPEC;
	}
	why = foreign_origin(c, s.flags & TH_SYN ? NULL : f, &s, &key);
	if (why) {
		if (f && bypass_foreign(f, &s, why, now))
			forget(f, &key, 0);
		count(&from_guest_exits, exit_of(why));
		return TC_ACT_UNSPEC;
	}
	if (!f) {
		/*
		 * A closing connection, or a segment without an ACK, starts no
		 * flow.
		 */
		if (s.flags & TH_FIN ||
		    !(s.flags & (TH_ACK | TH_SYN))) {
			count(&from_guest_exits, SNOOP_FG_NO_FLOW);
			return TC_ACT_UNSPEC;
		}
		f = new_flow(&key, now);
		if (!f) {
			count(&from_guest_exits, SNOOP_FG_FLOWS_FULL);
			return TC_ACT_UNSPEC;
		}
		if (!(s.flags & TH_SYN))
			begin_midflow(f, &s, is_distrusted(c, &key));
	}
	if (s.flags & TH_SYN) {
		see_scale(&s);
		begin_by_guest(f, c, &s, &key, now);
		lift.ack = s.ack;
		lift.window = syn_window(c, &s);
		if (s.flags & TH_ACK && lift.window < s.window &&
		    write_lift(skb, &s, &lift))
			count(&from_guest_exits, SNOOP_FG_NOT_LIFTED);
		count(&from_guest_exits, SNOOP_FG_SYN);
		return TC_ACT_UNSPEC;
	}
	scale_most = f->flags & SNOOP_F_VM_SYN ? 0 : largest_scale();
	bpf_spin_lock(&f->lock);
	exit = hear_guest(f, c, c->on && now <= c->until_ns, &s, scale_most,
			  now, &lift);
	acked = f->acked_seq;
	hear_of_guest(f, now);
	over = is_over(f);
	bpf_spin_unlock(&f->lock);
	if (lift.begun)
		has_begun(&key);
	if (over)
		forget(f, &key, 0);
	count(&from_guest_exits, exit);
	switch (exit) {
	case SNOOP_FG_SUPPRESSED:
		return TC_ACT_SHOT;
	case SNOOP_FG_LIFTED:
	case SNOOP_FG_NARROWED:
		if (write_lift(skb, &s, &lift))
			count(&from_guest_exits, SNOOP_FG_NOT_LIFTED);
		return TC_ACT_UNSPEC;
	case SNOOP_FG_DOUBT:
	case SNOOP_FG_CONTRADICTED:
		send_event(&key, &s, acked, lift.reach,
			   exit == SNOOP_FG_CONTRADICTED);
		return TC_ACT_UNSPEC;
	default:
		return TC_ACT_UNSPEC;
	}
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct snoop_order);
} order SEC(".maps");

/*
 * Puts the flow in the map `order` into SNOOP_BYPASS. User space runs this
 * program (BPF_PROG_TEST_RUN): if it wrote the flow itself, it would undo
 * changes that happen to the flow meanwhile.
 */
SEC("tc")
int snoop_leave(struct __sk_buff *skb __attribute__((unused)))
{
	struct snoop_order *o;
	struct snoop_flow *f;
	__u32 zero = 0;

	o = bpf_map_lookup_elem(&order, &zero);
	if (!o)
		return 0;
	f = bpf_map_lookup_elem(&flows, &o->key);
	if (!f)
		return 0;
	bpf_spin_lock(&f->lock);
	bypass(f, o->bypass);
	bpf_spin_unlock(&f->lock);
	return 1;
}

/* Removes the flow in the map `order` if it is idle; likewise. */
SEC("tc")
int snoop_evict(struct __sk_buff *skb __attribute__((unused)))
{
	struct snoop_order *o;
	__u32 zero = 0;

	o = bpf_map_lookup_elem(&order, &zero);
	return o ? evict(&o->key, bpf_ktime_get_coarse_ns()) : 0;
}

char LICENSE[] SEC("license") = "GPL";
