// SPDX-License-Identifier: GPL-2.0-only
/*
 * Resizes buffers of sockets that no process is known to have: the kernel's own
 * (NFS, iSCSI), a socket in transit from one process to another, or a socket of
 * a process that may not be inspected.
 *
 * bpf_setsockopt() is limited to twice net.core.{w,r}mem_max. It can lock a
 * buffer, but not unlock it. So the program resizes only buffers that are locked
 * already, because only that change can be undone.
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

struct socket;

struct sock {
	struct socket *sk_socket;
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

/* From asm-generic/socket.h, which x86-64 and arm64 use, and linux/tcp.h. */
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
	__uint(max_entries, REQUESTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct request_key);
	__type(value, struct request);
} requests SEC(".maps");

static __always_inline void resize(struct tcp_sock *tp, struct request *request,
				   bool send)
{
	struct sock *sk = (struct sock *)tp;
	__u8 lock = send ? SNDBUF_LOCK : RCVBUF_LOCK;
	/* The kernel doubles the value of the option. */
	int half = request->to / 2, clamp = request->to;

	request->from = send ? sk->sk_sndbuf : sk->sk_rcvbuf;
	request->now = request->from;
	if (!sk->sk_socket) {
		request->outcome = REQUEST_ORPHAN;
		return;
	}
	if (!request->to) {
		request->outcome = REQUEST_FOUND;
		return;
	}
	if (!(BPF_CORE_READ_BITFIELD(sk, sk_userlocks) & lock)) {
		request->outcome = REQUEST_NOT_FIXED;
		return;
	}
	if ((request->expect || request->expect_too) &&
	    request->from != request->expect && request->from != request->expect_too) {
		request->outcome = REQUEST_OTHER_SIZE;
		return;
	}
	request->error = bpf_setsockopt(tp, LEVEL_SOCKET,
				     send ? OPTION_SNDBUF : OPTION_RCVBUF,
				     &half, sizeof(half));
	request->now = send ? sk->sk_sndbuf : sk->sk_rcvbuf;
	request->outcome = request->error ? REQUEST_FAILED : REQUEST_SET;
	/* Raise the window clamp, too: the initial buffer has bounded it. */
	if (!send && !request->error && request->now > request->from &&
	    tp->window_clamp < request->to)
		bpf_setsockopt(tp, LEVEL_TCP, OPTION_WINDOW_CLAMP, &clamp,
			       sizeof(clamp));
}

SEC("iter/tcp")
int taut_set(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct request_key key = {};
	struct tcp_sock *tp;
	struct request *request;

	if (!common || common->skc_state == STATE_LISTEN ||
	    common->skc_state == STATE_TIME_WAIT)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	key.cookie = bpf_get_socket_cookie(common);
	request = bpf_map_lookup_elem(&requests, &key);
	if (request)
		resize(tp, request, true);
	key.receive = 1;
	request = bpf_map_lookup_elem(&requests, &key);
	if (request)
		resize(tp, request, false);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
