// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* A bad cable for tests: loses and doubles frames of one UDP port where they enter the far end of a
 * host's cable. Which ones follows from a seed and from the order in which they come. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Set before loading. */
volatile const __u16 udp_port = 0;     /* of either end; network order */
volatile const __u32 lost_share = 0;   /* of 2^32 */
volatile const __u32 double_share = 0; /* of 2^32 */
volatile const __u64 seed = 0;

/* A frame that came of doubling enters once more, and is left alone. */
#define IS_DOUBLE 0x52544c44

struct counters {
	__u64 seen;
	__u64 lost;
	__u64 doubled;
	__u64 failed; /* could not be doubled */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* A number for the n-th frame: Steele, Lea, Flood: "Fast splittable pseudorandom number generators"
 * (2014), figure 16. */
static __always_inline __u64 drawn(__u64 n)
{
	__u64 z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static __always_inline int is_of_port(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = data + sizeof(*ethernet);
	struct udphdr *udp = data + sizeof(*ethernet) + sizeof(*ip);

	if (data + sizeof(*ethernet) + sizeof(*ip) + sizeof(*udp) > data_end)
		return 0;
	if (ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return 0;
	return udp->source == udp_port || udp->dest == udp_port;
}

SEC("tc")
int bad_cable(struct __sk_buff *skb)
{
	struct counters *counted;
	__u32 zero = 0;
	__u64 number;

	if (skb->mark == IS_DOUBLE) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (bpf_skb_pull_data(skb, sizeof(struct ethhdr) + sizeof(struct iphdr) +
					   sizeof(struct udphdr)))
		return TC_ACT_UNSPEC;
	if (!is_of_port(skb))
		return TC_ACT_UNSPEC;
	counted = bpf_map_lookup_elem(&counters, &zero);
	if (!counted)
		return TC_ACT_UNSPEC;
	number = drawn(__sync_fetch_and_add(&counted->seen, 1));
	if ((__u32)number < lost_share) {
		__sync_fetch_and_add(&counted->lost, 1);
		return TC_ACT_SHOT;
	}
	if ((__u32)(number >> 32) < double_share) {
		skb->mark = IS_DOUBLE;
		if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
			__sync_fetch_and_add(&counted->failed, 1);
		else
			__sync_fetch_and_add(&counted->doubled, 1);
		skb->mark = 0;
	}
	return TC_ACT_UNSPEC;
}

/* A veth sends what its other end answers from XDP only if it has an XDP program itself. */
SEC("xdp")
int let_pass(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
