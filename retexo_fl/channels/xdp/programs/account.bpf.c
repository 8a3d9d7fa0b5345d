// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Counts the bytes of IPv4 packets that pass an interface, by the peer's address, the protocol and
 * both ports. It looks on: every frame goes its way.
 *
 * Bytes are those of IP packets as they are on the wire: a frame that the interface will cut into
 * packets, or has joined from several, counts with the headers of all of them.
 *
 * What an XDP program takes or answers does not come by there. Where one is at the interface, two
 * more programs look at each frame before and after it. */
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

/* As much of the kernel's own type as is read; where it lies, the loader finds out. */
struct xdp_buff {
	void *data;
	void *data_end;
} __attribute__((preserve_access_index));

/* The frame that an XDP program is looking at, as it was before. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet);
} before SEC(".maps");

/* Headers without options; other frames pass all XDP programs that we know of, and are counted
 * where they go. */
struct headers {
	struct iphdr ip;
	__be16 from;
	__be16 to;
};

static __always_inline void read_frame(struct xdp_buff *frame, int is_leaving,
				       struct packet *packet)
{
	struct headers headers;
	__be16 kind;

	packet->packets = 0;
	if (bpf_probe_read_kernel(&kind, sizeof(kind), frame->data + ETH_HLEN - sizeof(kind)) ||
	    kind != bpf_htons(ETH_P_IP) ||
	    bpf_probe_read_kernel(&headers, sizeof(headers), frame->data + ETH_HLEN) ||
	    headers.ip.ihl != 5)
		return;
	packet->packets = 1;
	packet->bytes = bpf_ntohs(headers.ip.tot_len);
	packet->flow.peer = is_leaving ? headers.ip.daddr : headers.ip.saddr;
	packet->flow.local_port = is_leaving ? headers.from : headers.to;
	packet->flow.peer_port = is_leaving ? headers.to : headers.from;
	packet->flow.protocol = headers.ip.protocol;
}

SEC("fentry")
int before_xdp(__u64 *arguments)
{
	struct packet *packet;
	__u32 zero = 0;

	packet = bpf_map_lookup_elem(&before, &zero);
	if (packet)
		read_frame((struct xdp_buff *)arguments[0], 0, packet);
	return 0;
}

SEC("fexit")
int after_xdp(__u64 *arguments)
{
	int verdict = (int)arguments[1];
	struct packet answer = {};
	struct packet *packet;
	__u32 zero = 0;

	if (verdict == XDP_PASS)
		return 0;
	packet = bpf_map_lookup_elem(&before, &zero);
	if (packet && packet->packets)
		count(packet, 0);
	if (verdict == XDP_TX) {
		read_frame((struct xdp_buff *)arguments[0], 1, &answer);
		if (answer.packets)
			count(&answer, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
