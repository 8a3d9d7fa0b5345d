// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* One send, one copy for each peer: user space sends a packet to a port that nobody has, with the
 * number of a group in the place of the stream, and this program, where frames leave the interface,
 * sends a copy to every member of the group, with that member's addresses, token and stream.
 *
 * The checksum of our header leaves out the receiver part, so copies need none of their own. */
#include "udp_frame.h"

#include <linux/pkt_cls.h>

#define MAX_MEMBERS 64
#define MAX_GROUPS 256

/* Set before loading. */
volatile const __u16 group_port = 0; /* network order */
/* Members' tokens are given to whoever may send to a group, so a group has a token, too: else
 * any program on this machine could send in our name. */
volatile const __u64 group_token = 0;

struct member {
	__u64 token;
	__u32 stream;
	__be32 address;
	__be16 port;
	__u8 to_mac[ETH_ALEN];
	__u8 from_mac[ETH_ALEN];
	__u16 pad;
};

struct group {
	__u32 count;
	__u32 pad;
	struct member members[MAX_MEMBERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* A value that is replaced lives on until no packet uses it; one from a pool would not. */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_GROUPS);
	__type(key, __u32);
	__type(value, struct group);
} groups SEC(".maps");

struct counters {
	__u64 copies;	 /* handed on to the interface, the last of each packet among them */
	__u64 failed;	 /* copies that the kernel could not make or send */
	__u64 no_group;	 /* packets to a number without members */
	__u64 segmented; /* packets that hold several: only the first would be readdressed */
	__u64 refused;	 /* packets with another token, or none of ours */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* IPv4's header checksum after 32 bits of the header have changed (RFC 1624, equation 3). */
static __always_inline __u16 checksum_after(__u16 checksum, __u32 before, __u32 after)
{
	__u32 sum = (__u16)~checksum;

	sum += (__u16)~before + (__u16)~(before >> 16);
	sum += (__u16)after + (__u16)(after >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* Follow a change in UDP's checksum. These helpers know whether it is whole, or will be completed
 * by the interface; one of 0 means none, and stays. */
static __always_inline int mend_udp_checksum(struct __sk_buff *skb, __be32 old_address,
					     __be32 address, __be16 old_port, __be16 port,
					     struct receiver_part *old_part,
					     struct receiver_part *part)
{
	const __u32 at = UDP_AT + __builtin_offsetof(struct udphdr, check);
	__s64 difference;

	if (bpf_l4_csum_replace(skb, at, old_address, address,
				BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | sizeof(address)))
		return -1;
	if (bpf_l4_csum_replace(skb, at, old_port, port, BPF_F_MARK_MANGLED_0 | sizeof(port)))
		return -1;
	difference = bpf_csum_diff((void *)old_part, sizeof(*old_part), (void *)part,
				   sizeof(*part), 0);
	if (difference < 0)
		return -1;
	return bpf_l4_csum_replace(skb, at, 0, difference, BPF_F_MARK_MANGLED_0);
}

/* Make the packet the member's. Every clone takes the kernel's pointers with it, so they are found
 * anew each time; after a clone the kernel has given the packet bytes of its own again. */
static __always_inline int readdress(struct __sk_buff *skb, const struct member *member)
{
	struct receiver_part old_part, part;
	struct udp_frame frame;
	__be32 old_address;
	__be16 old_port;

	if (find_our_frame((void *)(long)skb->data, (void *)(long)skb->data_end, &frame))
		return -1;
	old_address = frame.ip->daddr;
	old_port = frame.udp->dest;
	old_part = frame.head->receiver;
	part.token_low = (__u32)member->token;
	part.token_high = (__u32)(member->token >> 32);
	part.stream = member->stream;

	__builtin_memcpy(frame.ethernet->h_dest, member->to_mac, ETH_ALEN);
	__builtin_memcpy(frame.ethernet->h_source, member->from_mac, ETH_ALEN);
	frame.ip->check = checksum_after(frame.ip->check, old_address, member->address);
	frame.ip->daddr = member->address;
	frame.udp->dest = member->port;
	frame.head->receiver = part;
	if (!frame.udp->check)
		return 0;
	return mend_udp_checksum(skb, old_address, member->address, old_port, member->port,
				 &old_part, &part);
}

static __always_inline void count(__u64 *counter, __u64 more)
{
	__sync_fetch_and_add(counter, more);
}

SEC("tc")
int broadcast(struct __sk_buff *skb)
{
	__u32 zero = 0, failed = 0, copies = 0, number, members, i;
	int verdict = TC_ACT_SHOT;
	struct counters *counted;
	struct udp_frame frame;
	struct group *group;
	__u64 token;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	/* Headers may lie outside of what can be read at once. */
	if (skb->data + HEAD_AT + sizeof(struct our_head) > skb->data_end &&
	    bpf_skb_pull_data(skb, HEAD_AT + sizeof(struct our_head)))
		return TC_ACT_UNSPEC;
	if (find_our_frame((void *)(long)skb->data, (void *)(long)skb->data_end, &frame) ||
	    frame.udp->dest != group_port)
		return TC_ACT_UNSPEC;

	/* From here on nothing is let go as it is: no peer listens at the groups' port. */
	counted = bpf_map_lookup_elem(&counters, &zero);
	if (!counted)
		return TC_ACT_SHOT;
	token = frame.head->receiver.token_low | (__u64)frame.head->receiver.token_high << 32;
	if (token != group_token) {
		count(&counted->refused, 1);
		return TC_ACT_SHOT;
	}
	if (skb->gso_size) {
		count(&counted->segmented, 1);
		return TC_ACT_SHOT;
	}
	number = frame.head->receiver.stream;
	group = bpf_map_lookup_elem(&groups, &number);
	if (!group || !group->count) {
		count(&counted->no_group, 1);
		return TC_ACT_SHOT;
	}

	members = group->count;
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= members)
			break;
		if (readdress(skb, &group->members[i])) {
			/* The kernel had no memory to make the packet writable: it is lost. */
			failed += members - i;
			break;
		}
		if (i + 1 == members) {
			/* The last needs no copy: the packet itself goes on its way. */
			verdict = TC_ACT_UNSPEC;
			copies++;
		} else if (bpf_clone_redirect(skb, skb->ifindex, 0)) {
			failed++;
		} else {
			copies++;
		}
	}
	/* Without a look at how many: the verifier would follow each number of them apart. */
	count(&counted->copies, copies);
	count(&counted->failed, failed);
	return verdict;
}

char LICENSE[] SEC("license") = "GPL";
