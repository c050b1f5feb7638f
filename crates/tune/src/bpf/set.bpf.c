// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sets buffers of connections whose sockets nobody is known to have: the
 * kernel's own (NFS, iSCSI), one that is on its way from one process to another,
 * one of a process that may not be looked into.
 *
 * bpf_setsockopt() goes no further than twice net.core.{w,r}mem_max, and can
 * lock a buffer, but not unlock it. So only those are set that are locked
 * already, by whoever made them: that can be undone.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "set.h"

struct sock_common {
	unsigned char skc_state;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

struct sock {
	int sk_sndbuf;
	int sk_rcvbuf;
	__u8 sk_userlocks:4;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 window_clamp;
} __attribute__((preserve_access_index));

enum {
	STATE_TIME_WAIT = 6,
	STATE_LISTEN = 10,
};

/* asm-generic/socket.h, which x86-64 and arm64 have, and linux/tcp.h. */
enum {
	LEVEL_SOCKET = 1,
	LEVEL_TCP = 6,
	OPTION_SNDBUF = 7,
	OPTION_RCVBUF = 8,
	OPTION_WINDOW_CLAMP = 10,
};

enum {
	SNDBUF_LOCK = 1,
	RCVBUF_LOCK = 2,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WISHES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct wish_key);
	__type(value, struct wish);
} wishes SEC(".maps");

static __always_inline void grant(struct tcp_sock *tp, struct wish *wish,
				  bool send)
{
	struct sock *sk = (struct sock *)tp;
	__u8 lock = send ? SNDBUF_LOCK : RCVBUF_LOCK;
	/* The kernel doubles what it is told. */
	int half = wish->to / 2, clamp = wish->to;

	wish->from = send ? sk->sk_sndbuf : sk->sk_rcvbuf;
	wish->now = wish->from;
	if (!wish->to) {
		wish->outcome = WISH_SEEN;
		return;
	}
	if (!(BPF_CORE_READ_BITFIELD(sk, sk_userlocks) & lock)) {
		wish->outcome = WISH_NOT_FIXED;
		return;
	}
	if ((wish->expect || wish->expect_too) &&
	    wish->from != wish->expect && wish->from != wish->expect_too) {
		wish->outcome = WISH_OTHERS;
		return;
	}
	wish->error = bpf_setsockopt(tp, LEVEL_SOCKET,
				     send ? OPTION_SNDBUF : OPTION_RCVBUF,
				     &half, sizeof(half));
	wish->now = send ? sk->sk_sndbuf : sk->sk_rcvbuf;
	wish->outcome = wish->error ? WISH_FAILED : WISH_SET;
	/* It was bounded by the buffer that it began with. */
	if (!send && !wish->error && wish->now > wish->from &&
	    tp->window_clamp < wish->to)
		bpf_setsockopt(tp, LEVEL_TCP, OPTION_WINDOW_CLAMP, &clamp,
			       sizeof(clamp));
}

SEC("iter/tcp")
int taut_set(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct wish_key key = {};
	struct tcp_sock *tp;
	struct wish *wish;

	if (!common || common->skc_state == STATE_LISTEN ||
	    common->skc_state == STATE_TIME_WAIT)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	key.cookie = bpf_get_socket_cookie(common);
	wish = bpf_map_lookup_elem(&wishes, &key);
	if (wish)
		grant(tp, wish, true);
	key.receive = 1;
	wish = bpf_map_lookup_elem(&wishes, &key);
	if (wish)
		grant(tp, wish, false);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
