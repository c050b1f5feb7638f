// SPDX-License-Identifier: GPL-2.0-only
/*
 * What of connections only the kernel sees: sock_diag does not tell whether an
 * application has set a buffer, and what else bounds a window.
 */
#include <linux/types.h>
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "connection.h"

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct sock_common;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

struct sock {
	__u8 sk_userlocks:4;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct {
		__u32 enabled:1;
	} icsk_mtup;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 window_clamp;
} __attribute__((preserve_access_index));

SEC("iter/tcp")
int taut_connections(struct bpf_iter__tcp *ctx)
{
	struct connection seen = {};
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp;
	struct sock *sk;

	if (!common)
		return 0;
	/* Neither one that waits (TIME-WAIT) nor one that is being made. */
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	sk = (struct sock *)tp;
	seen.cookie = bpf_get_socket_cookie(tp);
	seen.window_clamp = tp->window_clamp;
	seen.mtu_probing = !!BPF_CORE_READ_BITFIELD(&tp->inet_conn,
						    icsk_mtup.enabled);
	seen.locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks) &
		     (CONNECTION_SNDBUF_LOCKED | CONNECTION_RCVBUF_LOCKED);
	bpf_seq_write(ctx->meta->seq, &seen, sizeof(seen));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
