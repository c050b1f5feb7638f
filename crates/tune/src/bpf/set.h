/* SPDX-License-Identifier: GPL-2.0-only */
/* Definitions that set.bpf.c shares with its loader (actuate/bpf_iter.rs). */
#ifndef TAUT_SET_H
#define TAUT_SET_H

#include <linux/types.h>

/* The maximum number of requests in one run. */
#define REQUESTS 4096

struct request_key {
	__u64 cookie;
	__u32 receive;		/* 1: the receive buffer, 0: the send buffer */
	__u32 pad;
};

enum request_outcome {
	REQUEST_NOT_FOUND,
	REQUEST_SET,
	REQUEST_OTHER_SIZE,	/* neither of the expected sizes */
	REQUEST_NOT_FIXED,	/* it could not be unlocked again */
	REQUEST_FAILED,
	REQUEST_FOUND,		/* the request was to find it only */
	REQUEST_ORPHAN,		/* closed: only the kernel has it, until TCP is done */
};

struct request {
	__u32 to;		/* bytes with overhead; 0: only find it */
	__u32 expect;		/* change it only if it has this size, */
	__u32 expect_too;	/* or this one; if both are 0, any */
	__u32 from;		/* the size before, */
	__u32 now;		/* and after */
	__s32 error;
	__u32 outcome;
	__u32 pad;
};

#endif
