// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Counts the bytes of IPv4 packets that pass an interface, by the peer's address, the protocol and
 * both ports. It looks on: every frame goes its way.
 *
 * Bytes are those of IP packets as they are on the wire: a frame that the interface will cut into
 * packets, or has joined from several, counts with the headers of all of them. What an XDP program
 * takes or answers does not come by here.
 *
 * TCP's own counters leave out some of these bytes: data that came before, and options but for the
 * timestamp. So much is counted apart; data that fills a gap is taken for data that came before. */
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
/* Of TCP's timestamp, which every segment has, or none. */
#define TIMESTAMP_BYTES 12

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
	__u64 received_untold;
	__u64 sent_untold;
	/* What follows the last data that came, as TCP numbers it; 0 in `has_data`: none came. */
	__u32 received_to;
	__u32 has_data;
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
	/* Of TCP: number of the first byte of data, how much there is, and options of each packet. */
	__u32 number;
	__u32 data;
	__u32 options;
	__u32 is_first;
};

/* Ports and the length of the header that follows IP's; neither where there is none. */
static __always_inline __u32 read_ports(struct __sk_buff *skb, __u32 at, __u8 protocol,
					__be16 *from, __be16 *to, struct packet *packet)
{
	struct udphdr udp;
	struct tcphdr tcp;

	if (protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp))) {
		*from = tcp.source;
		*to = tcp.dest;
		packet->number = bpf_ntohl(tcp.seq);
		packet->is_first = tcp.syn;
		if (!tcp.syn && tcp.doff * 4 > sizeof(tcp) + TIMESTAMP_BYTES)
			packet->options = tcp.doff * 4 - sizeof(tcp) - TIMESTAMP_BYTES;
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
		headers += read_ports(skb, link_bytes + headers, ip.protocol, &from, &to, packet);

	packet->packets = 1;
	/* Short frames are padded, so the frame's own length is not the packet's. */
	packet->bytes = segment_bytes ? skb->len - link_bytes : bpf_ntohs(ip.tot_len);
	if (ip.protocol == IPPROTO_TCP && packet->bytes > headers)
		packet->data = packet->bytes - headers;
	if (segment_bytes) {
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

/* Of data that arrived, how much may have come before. */
static __always_inline __u32 repeated(struct volume *volume, struct packet *packet)
{
	__u32 again = 0, end = packet->number + packet->data;

	if (packet->is_first)
		volume->has_data = 0;
	if (!packet->data || packet->is_first)
		return 0;
	if (volume->has_data && (__s32)(volume->received_to - packet->number) > 0)
		again = volume->received_to - packet->number;
	if (!volume->has_data || (__s32)(end - volume->received_to) > 0)
		volume->received_to = end;
	volume->has_data = 1;
	return again < packet->data ? again : packet->data;
}

static __always_inline void count(struct packet *packet, int is_leaving)
{
	__u64 untold = packet->packets * packet->options;
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
	if (!is_leaving)
		untold += repeated(volume, packet);
	__sync_fetch_and_add(is_leaving ? &volume->sent_untold : &volume->received_untold, untold);
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
