// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Hands packets that are for a receiver in user space to its AF_XDP socket, before the kernel makes
 * packets of its own of them; everything else goes up as ever. */
#include "udp_frame.h"

/* Set before loading. */
volatile const __u16 receiver_port = 0; /* network order */

#define KIND_DATA 1
#define KIND_PING 3

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int hand_over(struct xdp_md *context)
{
	struct udp_frame frame;
	__u8 kind;

	if (find_our_frame((void *)(long)context->data, (void *)(long)context->data_end, &frame) ||
	    frame.udp->dest != receiver_port)
		return XDP_PASS;
	kind = frame.head->kind;
	/* Answers are for our own sender, who reads them from its UDP socket. */
	if (kind != KIND_DATA && kind != KIND_PING)
		return XDP_PASS;
	/* A queue without a socket passes: the UDP socket takes what comes there. */
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

char LICENSE[] SEC("license") = "GPL";
