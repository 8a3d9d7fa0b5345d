// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Takes the datagrams of exchanges in the driver: checks them, leaves out what came before, adds
 * their values to the receiver's accumulators, and answers with acknowledgements.
 *
 * What packets and tables look like is in retexo_fl/additions/kernel_path/packets/layout.py; what becomes of a
 * packet, and in which order it is checked, is in aggregation.py beside it: this program and that
 * module agree packet by packet, and a test compares them.
 *
 * The verifier walks every path of a function. Loops over a packet's cells therefore stand in
 * global functions of their own: those are verified once, for any argument, and not again for
 * every path that leads to them.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAGIC 0x56585452U
#define VERSION 1
#define CELL_VALUES 16
#define CELL_WORDS 8
#define CELL_BYTES 64
#define CELLS_IN_BYTES 4 /* of a byte a value, in the bytes of one of int32 */
#define BLOCK_PACKETS 512
#define BLOCK_WORDS 8
#define FULL_CELLS 22 /* fit in Ethernet's MTU */

/* Of the checksum; all odd. */
#define C0 0x9E3779B97F4A7C15ULL
#define C1 0xC2B2AE3D27D4EB4FULL
#define C2 0x165667B19E3779F9ULL
#define C3 0x27D4EB2F165667C5ULL
#define K 0xD6E8FEB86659FD93ULL

enum kind { DATA = 1, ACK = 2, PING = 3 };
enum flag { ACK_WANTED = 1, USER_ACK = 2 };

/* Set before loading; the verifier sees constants. */
const volatile __u16 PORT = 0;
const volatile __u32 MAX_CELLS = FULL_CELLS;
/* In network order; 0 for any. What is on its way to other machines is none of ours. */
const volatile __u32 ADDRESS = 0;

struct header {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u8 in_bytes;
	__u8 flags;
	__u64 token;
	__u32 stream;
	__u32 job;
	__u64 checksum;
	__u16 stage;
	__u16 sender;
	__u32 seq;
	__u32 first;
	__u16 offset;
	__u16 cells;
};

_Static_assert(sizeof(struct header) == 48, "a header is 48 bytes");

/* Where things lie in a frame without VLAN tag and IP options. */
#define IP_AT sizeof(struct ethhdr)
#define UDP_AT (IP_AT + sizeof(struct iphdr))
#define HEADER_AT (UDP_AT + sizeof(struct udphdr))
#define PAYLOAD_AT (HEADER_AT + sizeof(struct header))

/*
 * A frame's words lie at even addresses only. They are read whole all the same: processors that
 * the kernel runs XDP on can, and a structure declared as packed would be read byte by byte.
 */
typedef __u64 __attribute__((may_alias)) word;
typedef __u32 __attribute__((may_alias)) half;

struct stream {
	__u64 token;
	__u32 region;
	__u32 slot_base;
	__u32 rows;
	__u32 row_cells;
	__u32 packet_cells;
	__u32 packets;
	__u32 seen_base;
	__u32 job;
	__u16 sender;
	__u16 stage;
	__u8 atomic;
	__u8 in_bytes;
	__u8 pad0[2];
	__u32 done;
	__u32 duplicates;
	__u64 pad1;
};

struct region {
	__u64 expected;
	__u64 done;
	__u32 complete;
	__u32 generation;
	__u64 pad;
};

struct cell {
	__s32 value[CELL_VALUES];
};

struct block {
	__u64 bits[BLOCK_WORDS];
};

/* One per processor, so that no count is shared; padded to whole cache lines. */
struct counters {
	__u64 passed;
	__u64 data_new;
	__u64 data_duplicate;
	__u64 malformed;
	__u64 bad_checksum;
	__u64 foreign;
	__u64 acks_sent;
	__u64 pings;
	__u64 events;
	__u64 user_acks;
	__u64 pad[6];
};

#define TABLE(name, type_of_value)                      \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_ARRAY);       \
		__uint(map_flags, BPF_F_MMAPABLE);      \
		__uint(max_entries, 1);                 \
		__type(key, __u32);                     \
		__type(value, type_of_value);           \
	} name SEC(".maps")

TABLE(acc, struct cell);
TABLE(seen, struct block);
TABLE(slots, __u64);
TABLE(streams, struct stream);
TABLE(regions, struct region);
TABLE(counts, struct counters);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} completions SEC(".maps");

/*
 * Where several processors run the program at a time, what they add to is guarded by locks. A lock
 * and plain additions take a fraction of the time of atomic ones.
 */
#define GUARDS 64
struct guard {
	struct bpf_spin_lock lock;
	__u32 pad[15];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GUARDS);
	__type(key, __u32);
	__type(value, struct guard);
} guards SEC(".maps");

/* Set after attaching, when it is known whether one context only runs the program. */
__u32 several_contexts = 0;

static __always_inline void *frame_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *payload_of(struct xdp_md *ctx)
{
	return frame_of(ctx) + PAYLOAD_AT;
}

static __always_inline void *end_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end;
}

/*
 * Loops over a packet's payload, 64 bytes at a time. A full packet, which nearly all are, is checked for its end once;
 * of any other, each cell is.
 */
#define FOR_EACH_PAYLOAD_CELL(AT, BODY)                                               \
	{                                                                             \
		void *end = end_of(ctx);                                              \
		void *AT = payload_of(ctx);                                           \
		__u32 most = MAX_CELLS;                                               \
		if (cells == most && AT + most * CELL_BYTES <= end) {                 \
			/* Or the compiler counts to `cells`, an unknown. */          \
			asm volatile("" : "+r"(most));                                \
			for (__u32 i = 0; i < most; i++, AT += CELL_BYTES) {          \
				BODY                                                  \
			}                                                             \
		} else {                                                              \
			__u32 count = cells < most ? cells : most;                    \
			for (__u32 i = 0; i < count; i++, AT += CELL_BYTES) {         \
				if (AT + CELL_BYTES > end)                            \
					break;                                        \
				BODY                                                  \
			}                                                             \
		}                                                                     \
	}

/* The part of the checksum that covers the payload. */
__noinline __u64 payload_sum(struct xdp_md *ctx, __u32 cells)
{
	__u64 even = 0, odd = 0;

	FOR_EACH_PAYLOAD_CELL(at, {
		const word *words = at;
		even += words[0];
		odd += words[1];
		even += words[2];
		odd += words[3];
		even += words[4];
		odd += words[5];
		even += words[6];
		odd += words[7];
	})
	return even + K * odd;
}

static __always_inline __u64 header_sum(const struct header *header)
{
	const word *words = (const word *)header;

	return words[0] * C0 + (__u64)header->job * C1 + words[4] * C2 + words[5] * C3;
}

static __always_inline void add_cell(struct cell *to, const half *values)
{
#pragma unroll
	for (int i = 0; i < CELL_VALUES; i++)
		to->value[i] += values[i];
}

/* Adds numbers of a byte, shifted as the vector's form says, with or without a sign. */
static __always_inline void add_byte_cell(struct cell *to, const __u8 *numbers, __u32 form)
{
	__u32 sign = form & 0x80, shift = form & 31;

#pragma unroll
	for (int i = 0; i < CELL_VALUES; i++) {
		__u32 number = numbers[i];

		number -= (number & sign) << 1;
		to->value[i] += number << shift;
	}
}

/*
 * Where a vector of a stream lies in acc, the lower half of its slot; NOWHERE if it is not for this
 * receiver. So many cells after NOWHERE there is still no number that any table reaches.
 */
#define NOWHERE 0xFFFF0000U
static __always_inline __u64 slot_of(__u32 row)
{
	__u64 *slot = bpf_map_lookup_elem(&slots, &row);

	return slot && (__u32)*slot < NOWHERE ? *slot : NOWHERE;
}

static __always_inline __u32 place_of(__u32 row)
{
	return slot_of(row);
}

/* Looks up the next cell of acc: that of the same vector, or the first of the next. */
#define STEP(PLACE)                                                                   \
	if (left == 0) {                                                              \
		row++;                                                                \
		index = place_of(row);                                                \
		left = row_cells;                                                     \
	}                                                                             \
	PLACE = bpf_map_lookup_elem(&acc, &index);                                    \
	index++;                                                                      \
	left--

/*
 * Reads a word of each cell of acc that a packet's cells belong to. The cells are far apart: what
 * the processor's caches lack of them comes from memory while the next are looked up, and not one
 * after the other while values are added.
 */
__noinline int fetch(__u32 row, __u32 offset, __u32 row_cells, __u32 cells)
{
	__u32 index = place_of(row) + offset;
	__u32 left = row_cells - offset;

	for (__u32 i = 0; i < MAX_CELLS * CELLS_IN_BYTES && i < cells; i++) {
		struct cell *to;
		__u32 word;

		STEP(to);
		if (to)
			asm volatile("%0 = *(u32 *)(%1 + 0)" : "=r"(word) : "r"(to));
	}
	return 0;
}

/* Walks the cells of a packet beside those of acc that they belong to. */
#define FOR_EACH_CELL(BODY)                                                           \
	__u32 index = place_of(row) + offset;                                         \
	__u32 left = row_cells - offset;                                              \
	FOR_EACH_PAYLOAD_CELL(at, {                                                   \
		const half *values = at;                                              \
		struct cell *to;                                                      \
		STEP(to);                                                             \
		if (to) {                                                             \
			BODY;                                                         \
		}                                                                     \
	})                                                                            \
	return 0

__noinline int add(struct xdp_md *ctx, __u32 row, __u32 offset, __u32 row_cells, __u32 cells)
{
	FOR_EACH_CELL(add_cell(to, values));
}

/*
 * The same where others may do it at the same time. What belongs to one exchange has one lock. No
 * helper may be called while it is held, so the cells of a group are looked up before; of the
 * packet's rest, each cell is a group.
 */
#define GROUP 11

__noinline int add_guarded(struct xdp_md *ctx, __u32 region, __u32 row, __u32 row_cells,
			   __u64 span)
{
	void *end = end_of(ctx);
	void *at = payload_of(ctx);
	__u32 cells = span, offset = span >> 32, done = 0;
	__u32 index = place_of(row) + offset;
	__u32 left = row_cells - offset;
	__u32 which = region % GUARDS;
	struct guard *guard = bpf_map_lookup_elem(&guards, &which);
	struct cell *to[GROUP];

	if (!guard)
		return 0;
	for (; done < MAX_CELLS; done += GROUP) {
		if (done + GROUP > cells || at + GROUP * CELL_BYTES > end)
			break;
#pragma unroll
		for (__u32 j = 0; j < GROUP; j++) {
			STEP(to[j]);
		}
		bpf_spin_lock(&guard->lock);
#pragma unroll
		for (__u32 j = 0; j < GROUP; j++)
			if (to[j])
				add_cell(to[j], at + j * CELL_BYTES);
		bpf_spin_unlock(&guard->lock);
		at += GROUP * CELL_BYTES;
	}
	for (__u32 i = 1; i < GROUP && done < cells; i++, done++) {
		if (at + CELL_BYTES > end)
			break;
		STEP(to[0]);
		if (to[0]) {
			bpf_spin_lock(&guard->lock);
			add_cell(to[0], at);
			bpf_spin_unlock(&guard->lock);
		}
		at += CELL_BYTES;
	}
	return 0;
}

/* The same of a stream of bytes, whose slots have a form above the place. */
#define BYTES_STEP(PLACE, FORM)                                                       \
	if (left == 0) {                                                              \
		row++;                                                                \
		slot = slot_of(row);                                                  \
		index = slot;                                                         \
		left = row_cells;                                                     \
	}                                                                             \
	FORM = slot >> 32;                                                            \
	PLACE = bpf_map_lookup_elem(&acc, &index);                                    \
	index++;                                                                      \
	left--

__noinline int add_bytes(struct xdp_md *ctx, __u32 row, __u32 offset, __u32 row_cells,
			 __u32 cells)
{
	void *end = end_of(ctx);
	void *at = payload_of(ctx);
	__u64 slot = slot_of(row);
	__u32 index = (__u32)slot + offset;
	__u32 left = row_cells - offset;

	for (__u32 i = 0; i < MAX_CELLS * CELLS_IN_BYTES && i < cells; i++) {
		struct cell *to;
		__u32 form;

		if (at + CELL_VALUES > end)
			break;
		BYTES_STEP(to, form);
		if (to)
			add_byte_cell(to, at, form);
		at += CELL_VALUES;
	}
	return 0;
}

__noinline int add_bytes_guarded(struct xdp_md *ctx, __u32 region, __u32 row, __u32 row_cells,
				 __u64 span)
{
	void *end = end_of(ctx);
	void *at = payload_of(ctx);
	__u32 cells = span, offset = span >> 32;
	__u64 slot = slot_of(row);
	__u32 index = (__u32)slot + offset;
	__u32 left = row_cells - offset;
	__u32 which = region % GUARDS;
	struct guard *guard = bpf_map_lookup_elem(&guards, &which);

	if (!guard)
		return 0;
	for (__u32 i = 0; i < MAX_CELLS * CELLS_IN_BYTES && i < cells; i++) {
		struct cell *to;
		__u32 form;

		if (at + CELL_VALUES > end)
			break;
		BYTES_STEP(to, form);
		if (to) {
			bpf_spin_lock(&guard->lock);
			add_byte_cell(to, at, form);
			bpf_spin_unlock(&guard->lock);
		}
		at += CELL_VALUES;
	}
	return 0;
}

static __always_inline int drop(__u64 *reason)
{
	++*reason;
	return XDP_DROP;
}

static __always_inline int pass(__u64 *reason)
{
	++*reason;
	return XDP_PASS;
}

/* Turns the frame around: it goes back to where it came from, with `bytes` of our own in it. */
static __always_inline void turn_around(void *frame, __u32 bytes)
{
	struct ethhdr *ethernet = frame;
	struct iphdr *ip = frame + IP_AT;
	struct udphdr *udp = frame + UDP_AT;
	__u16 *words = frame + IP_AT;
	__u8 host[ETH_ALEN];
	__be32 address = ip->saddr;
	__be16 port = udp->source;
	__u32 sum = 0;

	__builtin_memcpy(host, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, host, ETH_ALEN);
	ip->saddr = ip->daddr;
	ip->daddr = address;
	ip->ttl = 64;
	ip->tot_len = bpf_htons(sizeof(*ip) + sizeof(*udp) + bytes);
	ip->check = 0;
#pragma unroll
	for (int i = 0; i < (int)(sizeof(*ip) / 2); i++)
		sum += words[i];
	sum = (sum & 0xFFFF) + (sum >> 16);
	sum += sum >> 16;
	ip->check = ~sum;
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = bpf_htons(sizeof(*udp) + bytes);
	/* None: ours covers more, and tells the same. */
	udp->check = 0;
}

/* Makes the packet the ACK of the block that `seq` is in. */
static __always_inline int acknowledge(struct xdp_md *ctx, struct counters *count,
				       const struct block *block, __u32 seq)
{
	const __u32 bytes = sizeof(struct header) + CELL_BYTES;
	int longer = (long)ctx->data_end - (long)ctx->data - (int)PAYLOAD_AT - CELL_BYTES;

	if (longer > 0 && bpf_xdp_adjust_tail(ctx, -longer))
		return XDP_DROP;
	void *frame = frame_of(ctx);
	struct header *header = frame + HEADER_AT;
	word *bits = frame + PAYLOAD_AT;
	if ((void *)(bits + BLOCK_WORDS) > end_of(ctx))
		return XDP_DROP;

	__u64 even = 0, odd = 0;
#pragma unroll
	for (int i = 0; i < BLOCK_WORDS; i += 2) {
		__u64 first = *(const volatile __u64 *)&block->bits[i];
		__u64 second = *(const volatile __u64 *)&block->bits[i + 1];
		bits[i] = first;
		bits[i + 1] = second;
		even += first;
		odd += second;
	}
	header->kind = ACK;
	header->flags = 0;
	header->first = seq & ~(BLOCK_PACKETS - 1);
	header->offset = 0;
	header->cells = 1;
	header->checksum = header_sum(header) + even + K * odd;
	turn_around(frame, bytes);
	count->acks_sent++;
	return XDP_TX;
}

/* Adds a checked packet's values, once; its seen bit is set before. */
static __always_inline void take(struct xdp_md *ctx, struct counters *count, struct stream *stream,
				 struct region *region, __u32 first, __u32 offset, __u32 cells)
{
	__u32 row = stream->slot_base + first;
	__u32 row_cells = stream->row_cells;
	__u64 span = (__u64)offset << 32 | cells;
	__u32 which = stream->region;

	fetch(row, offset, row_cells, cells);
	if (several_contexts || stream->atomic) {
		if (stream->in_bytes)
			add_bytes_guarded(ctx, which, row, row_cells, span);
		else
			add_guarded(ctx, which, row, row_cells, span);
		__sync_fetch_and_add(&stream->done, 1);
	} else {
		if (stream->in_bytes)
			add_bytes(ctx, row, offset, row_cells, cells);
		else
			add(ctx, row, offset, row_cells, cells);
		stream->done++;
	}
	count->data_new++;

	/*
	 * Atomic in any case: user space sets `expected` while packets arrive and then looks at
	 * `done`; a full barrier between our two accesses lets one of the sides see both.
	 */
	__u64 done = __sync_fetch_and_add(&region->done, 1) + 1;
	if (done == *(volatile __u64 *)&region->expected) {
		region->complete = 1;
		count->events++;
		bpf_ringbuf_output(&completions, &which, sizeof(which), 0);
	}
}

SEC("xdp")
int aggregate(struct xdp_md *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct counters *count = bpf_map_lookup_elem(&counts, &cpu);
	if (!count)
		return XDP_PASS;

	void *end = end_of(ctx);
	void *frame = frame_of(ctx);
	struct ethhdr *ethernet = frame;
	struct iphdr *ip = frame + IP_AT;
	struct udphdr *udp = frame + UDP_AT;
	struct header *header = frame + HEADER_AT;
	if ((void *)&header->version > end)
		return pass(&count->passed);
	if (ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP)
		return pass(&count->passed);
	/* Version 4, five words: no options. Neither fragment offset nor "more fragments". */
	if (*(__u8 *)ip != 0x45 || (ip->frag_off & bpf_htons(0x3FFF)))
		return pass(&count->passed);
	if (udp->dest != bpf_htons(PORT) || (ADDRESS && ip->daddr != ADDRESS))
		return pass(&count->passed);

	__u32 whole = bpf_ntohs(ip->tot_len);
	__u32 bytes = bpf_ntohs(udp->len) - sizeof(*udp);
	if (whole != bytes + sizeof(*ip) + sizeof(*udp) ||
	    whole + sizeof(*ethernet) > (__u64)(end - frame))
		return pass(&count->passed);
	if (bytes < sizeof(__u32) || header->magic != MAGIC)
		return pass(&count->passed);
	if (bytes < sizeof(*header) || (void *)(header + 1) > end)
		return drop(&count->malformed);

	__u32 kind = header->kind;
	if (header->version != VERSION || kind < DATA || kind > PING)
		return drop(&count->malformed);
	if (kind == ACK)
		return pass(&count->passed);
	__u32 cells = header->cells, in_bytes = header->in_bytes;
	/* How many times 64 bytes: cells of a byte a value are padded to these. */
	__u32 units = in_bytes ? (cells + CELLS_IN_BYTES - 1) / CELLS_IN_BYTES : cells;
	if (in_bytes > 1 || units == 0 || units > MAX_CELLS ||
	    bytes != sizeof(struct header) + units * CELL_BYTES)
		return drop(&count->malformed);

	__u32 index = header->stream;
	struct stream *stream = bpf_map_lookup_elem(&streams, &index);
	if (!stream || stream->token == 0 || stream->token != header->token ||
	    stream->job != header->job || stream->stage != header->stage ||
	    stream->sender != header->sender)
		return drop(&count->foreign);
	__u32 which = stream->region;
	struct region *region = bpf_map_lookup_elem(&regions, &which);
	if (!region)
		return drop(&count->foreign);
	if (in_bytes != stream->in_bytes)
		return drop(&count->malformed);

	__u32 seq = header->seq, first = header->first, offset = header->offset;
	__u32 row_cells = stream->row_cells;
	if (seq >= stream->packets)
		return drop(&count->malformed);
	if (kind == PING) {
		if (cells != 1 || first != 0 || offset != 0)
			return drop(&count->malformed);
	} else {
		/* By multiplication: a division takes longer than all other checks. */
		__u64 start = (__u64)seq * stream->packet_cells;
		__u64 left = (__u64)stream->rows * row_cells - start;
		__u64 due = left < stream->packet_cells ? left : stream->packet_cells;
		if (cells != due || offset >= row_cells ||
		    (__u64)first * row_cells + offset != start)
			return drop(&count->malformed);
	}
	if (header->checksum != header_sum(header) + payload_sum(ctx, units))
		return drop(&count->bad_checksum);

	__u8 flags = header->flags;
	__u32 number = stream->seen_base + seq / BLOCK_PACKETS;
	struct block *block = bpf_map_lookup_elem(&seen, &number);
	if (!block)
		return drop(&count->foreign);
	if (kind == PING) {
		if (flags & USER_ACK)
			return pass(&count->user_acks);
		count->pings++;
		return acknowledge(ctx, count, block, seq);
	}

	__u64 bit = 1ULL << (seq & 63);
	__u64 before = __sync_fetch_and_or(&block->bits[(seq >> 6) & (BLOCK_WORDS - 1)], bit);
	if (before & bit) {
		__sync_fetch_and_add(&stream->duplicates, 1);
		count->data_duplicate++;
	} else {
		take(ctx, count, stream, region, first, offset, cells);
	}
	return flags & ACK_WANTED ? acknowledge(ctx, count, block, seq) : XDP_DROP;
}

char _license[] SEC("license") = "GPL";
