/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A frame of ours as the smaller programs see it: Ethernet, IPv4 without options, UDP, and the
 * first bytes of our own header, up to the receiver part. */
#ifndef RETEXO_UDP_FRAME_H
#define RETEXO_UDP_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define OUR_MAGIC 0x56585452u /* "RTXV" */
#define OUR_VERSION 1

/* Whom a packet is for: what a broadcast writes anew for each receiver. Four bytes each, so that no
 * compiler puts a gap after it and every access is as aligned as a frame lets it be. */
struct receiver_part {
	__u32 token_low;
	__u32 token_high;
	__u32 stream;
};

struct our_head {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u8 op;
	__u8 flags;
	struct receiver_part receiver;
};

#define IP_AT sizeof(struct ethhdr)
#define UDP_AT (IP_AT + sizeof(struct iphdr))
#define HEAD_AT (UDP_AT + sizeof(struct udphdr))

/* Pointers into a frame; valid until a helper moves it. */
struct udp_frame {
	struct ethhdr *ethernet;
	struct iphdr *ip;
	struct udphdr *udp;
	struct our_head *head;
};

/* Returns 0 if the frame is one of ours, by its form alone: ports are the caller's to judge. */
static __always_inline int find_our_frame(void *data, void *data_end, struct udp_frame *frame)
{
	if (data + HEAD_AT + sizeof(struct our_head) > data_end)
		return -1;
	frame->ethernet = data;
	frame->ip = data + IP_AT;
	frame->udp = data + UDP_AT;
	frame->head = data + HEAD_AT;
	if (frame->ethernet->h_proto != bpf_htons(ETH_P_IP))
		return -1;
	/* Options would move UDP; of a fragment, only the first has it. */
	if (frame->ip->version != 4 || frame->ip->ihl != 5 || frame->ip->protocol != IPPROTO_UDP)
		return -1;
	if (frame->ip->frag_off & bpf_htons(0x3fff))
		return -1;
	return frame->head->magic == OUR_MAGIC && frame->head->version == OUR_VERSION ? 0 : -1;
}

#endif
