/* SPDX-License-Identifier: GPL-2.0-only */
/* What set.bpf.c and its caller (actuate/bpf_iter.rs) tell each other. */
#ifndef TAUT_SET_H
#define TAUT_SET_H

#include <linux/types.h>

/* That are asked for at once. */
#define WISHES 4096

struct wish_key {
	__u64 cookie;
	__u32 receive;		/* which buffer; else the send buffer */
	__u32 pad;
};

enum wish_outcome {
	WISH_NOT_SEEN,
	WISH_SET,
	WISH_OTHERS,		/* it is neither of what was expected */
	WISH_NOT_FIXED,		/* and could not be made so again */
	WISH_FAILED,
	WISH_SEEN,		/* nothing was to be set */
};

struct wish {
	__u32 to;		/* bytes with overhead; 0: it is only looked for */
	__u32 expect;		/* only if it has so many, */
	__u32 expect_too;	/* or so many; neither: whatever it has */
	__u32 from;		/* what it had, */
	__u32 now;		/* and has */
	__s32 error;
	__u32 outcome;
	__u32 pad;
};

#endif
