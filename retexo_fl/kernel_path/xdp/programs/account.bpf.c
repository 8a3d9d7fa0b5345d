// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Counts the bytes of IPv4 packets that pass an interface, by the peer's address, the protocol and
 * both ports. It looks on: every frame goes its way.
 *
 * Bytes are those of IP packets as they are on the wire: a frame that the interface will cut into
 * packets, or has joined from several, counts with the headers of all of them. What an XDP program
 * takes or answers does not come by here. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_FLOWS 16384

/* Set before loading: how many bytes stand before IP's header; none at a tunnel. */
volatile const __u32 link_bytes = ETH_HLEN;

struct flow {
	__be32 peer;
	__be16 local_port;
	__be16 peer_port;
	__u8 protocol;
	__u8 pad[3];
};

struct volume {
	__u64 received_bytes;
	__u64 received_packets;
	__u64 sent_bytes;
	__u64 sent_packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow);
	__type(value, struct volume);
} flows SEC(".maps");

struct packet {
	struct flow flow;
	__u64 bytes;
	__u64 packets;
};

/* Ports and the length of the header that follows IP's; neither where there is none. */
static __always_inline __u32 read_ports(struct __sk_buff *skb, __u32 at, __u8 protocol,
					__be16 *from, __be16 *to)
{
	struct udphdr udp;
	struct tcphdr tcp;

	if (protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp))) {
		*from = tcp.source;
		*to = tcp.dest;
		return tcp.doff * 4;
	}
	if (protocol == IPPROTO_UDP && !bpf_skb_load_bytes(skb, at, &udp, sizeof(udp))) {
		*from = udp.source;
		*to = udp.dest;
		return sizeof(udp);
	}
	return 0;
}

static __always_inline int read_packet(struct __sk_buff *skb, int is_leaving,
				       struct packet *packet)
{
	__be16 from = 0, to = 0;
	struct iphdr ip;
	__u32 headers, segment_bytes = skb->gso_size;

	if (skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, link_bytes, &ip, sizeof(ip)) || ip.version != 4)
		return -1;
	headers = ip.ihl * 4;
	/* Only the first fragment has ports. */
	if (!(ip.frag_off & bpf_htons(0x1fff)))
		headers += read_ports(skb, link_bytes + headers, ip.protocol, &from, &to);

	packet->packets = 1;
	/* Short frames are padded, so the frame's own length is not the packet's. */
	packet->bytes = bpf_ntohs(ip.tot_len);
	if (segment_bytes) {
		packet->bytes = skb->len - link_bytes;
		if (packet->bytes > headers)
			packet->packets = ((__u32)packet->bytes - headers + segment_bytes - 1) /
					  segment_bytes;
		packet->bytes += (packet->packets - 1) * headers;
	}
	packet->flow.peer = is_leaving ? ip.daddr : ip.saddr;
	packet->flow.local_port = is_leaving ? from : to;
	packet->flow.peer_port = is_leaving ? to : from;
	packet->flow.protocol = ip.protocol;
	return 0;
}

static __always_inline void count(struct packet *packet, int is_leaving)
{
	struct volume *volume, nothing = {};

	volume = bpf_map_lookup_elem(&flows, &packet->flow);
	if (!volume) {
		bpf_map_update_elem(&flows, &packet->flow, &nothing, BPF_NOEXIST);
		volume = bpf_map_lookup_elem(&flows, &packet->flow);
		if (!volume)
			return;
	}
	__sync_fetch_and_add(is_leaving ? &volume->sent_bytes : &volume->received_bytes,
			     packet->bytes);
	__sync_fetch_and_add(is_leaving ? &volume->sent_packets : &volume->received_packets,
			     packet->packets);
}

static __always_inline int account(struct __sk_buff *skb, int is_leaving)
{
	struct packet packet = {};

	if (!read_packet(skb, is_leaving, &packet))
		count(&packet, is_leaving);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int arriving(struct __sk_buff *skb)
{
	return account(skb, 0);
}

SEC("tc")
int leaving(struct __sk_buff *skb)
{
	return account(skb, 1);
}

char LICENSE[] SEC("license") = "GPL";
