// What attention kernels have in common: how a context is cut into parts, and where their results wait.
#pragma once
#include "common/order.cuh"
#include "common/pages.cuh"
#include "common/step.cuh"

static constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// Threads that put parts together (attention.cu): they say in which order these are added up.
static constexpr u32 MERGE_THREADS = 256;

struct Attention {
    const float* q;    // [rows][heads * key_dim]
    const float* gate; // [rows][heads * value_dim], before its sigmoid
    float* out;        // [rows][heads * value_dim]
    u32 heads;
    u32 ordinal; // of the page store
    float scale;
    u32 asks; // the queries are to be remembered
};

static_assert(sizeof(Attention) == 40, "as in src/ops/attention.rs");

// The first rows of a span, in whole chunks, are a prompt's; the few that are left are looked at in parts. So it does not
// matter where a prompt is cut, as long as that is at a multiple of a chunk. Where tokens were evicted and summed up, all
// rows are looked at in parts, of which the sums are one more.
static constexpr u32 CHUNK = 16;
DEVICE u32 prompt_rows(const Span& span) { return span.has_sums() ? 0 : span.rows & ~(CHUNK - 1); }

// How the context of a row is cut: into parts, those of some kernels into subparts, a fourth each, and these into KV tiles. What is
// found in a KV tile is added to what its subpart has, subparts make a part, and all parts the result.
static constexpr u32 SUBPARTS = 4;

struct Cut {
    u32 length, kv_tile; // tokens of a part and of a KV tile

    DEVICE u32 subpart() const { return length / SUBPARTS; }
    DEVICE u32 in_subpart() const { return subpart() / kv_tile; }
};

// Results of parts of the contexts of some rows, in scratch. The rows of a span that are meant are cut alike.
struct Parts {
    float2* tops; // [rows][heads][count]: the largest score (to base 2), and the sum of weights relative to it
    float* mixed; // [rows][heads][count][value_dim], relative to the same
    u32 count;
    u32 first_span;
    u32 first_row, end_row; // of the step: those that are meant
    u32 has_kv_tiles;         // parts are cut into subparts
    u32 of_block;             // parts that a block has one after the other, where pages are latent

    // Rows of a span that are meant.
    DEVICE u32 begin_in(const Span& span) const {
        return max(prompt_rows(span), first_row > span.first ? first_row - span.first : 0);
    }
    DEVICE u32 end_in(const Span& span) const { return min(span.rows, end_row - span.first); }

    // Of the part that the block has.
    DEVICE float2* tops_at(u64 query) const { return tops + query * count + blockIdx.x; }
    DEVICE float* mixed_at(u64 query, u32 value_dim) const { return mixed + (query * count + blockIdx.x) * value_dim; }

    // For a row that sees so many tokens.
    DEVICE Cut cut(u32 context, const Pages& pages, bool has_sums) const;
};

static_assert(sizeof(Parts) == 40, "as in src/ops/attention.rs");

// How contexts are cut depends on where they end and on the shape of the layer alone, so that results do not depend on what
// else is in a step. KV tiles are so few that a cluster can have one for each of its warps, as long as subparts have more tokens,
// and blocks for sums of what was evicted besides, if there are any. Longer contexts have so many parts, in all KV heads, that all blocks
// of one are at work at once, and none is left over.
// Where tokens were evicted few are held. `Cutting` of src/ops/cutting.rs.
static constexpr u32 USUAL_PART = 512, MOST_PARTS = 128, MANY_HEADS = 8, BOUNDED_PART = 64;
static constexpr u32 LEAST_PART = 128, LEAST_KV_TILE = 32, MOST_KV_TILES = 64, MOST_BESIDE_SUMS = 48, PART_UNIT = 64;
static constexpr u32 BLOCKS_AT_WORK = 384, WIDE_AT_WORK = 256, NARROW = 128;

// Of latent pages, which all heads share: so many parts that one sequence has blocks enough, and so few that what they find is
// not as much as what they read. `part` of src/ops/latent.rs.
DEVICE u32 latent_part(u32 context) {
    if (context <= 1024) return 64;
    if (context <= 4096) return 128;
    return context <= 32768 ? 256 : ceil_div(context, MOST_PARTS * PART_UNIT) * PART_UNIT;
}

DEVICE Cut Parts::cut(u32 context, const Pages& pages, bool has_sums) const {
    if (pages.latent) {
        const u32 length = latent_part(context);
        return {length, length};
    }
    const u32 usual = pages.kv_heads < MANY_HEADS ? USUAL_PART / 2 : USUAL_PART;
    const bool is_bounded = has_sums && !has_kv_tiles;
    const u32 kv_tiles = has_sums ? MOST_BESIDE_SUMS : MOST_KV_TILES;
    if (context > (is_bounded ? BOUNDED_PART * MOST_PARTS : usual / SUBPARTS * kv_tiles)) {
        const u32 at_work = pages.key_dim > NARROW ? WIDE_AT_WORK : BLOCKS_AT_WORK;
        const u32 parts = is_bounded ? MOST_PARTS : max(min(at_work / pages.kv_heads, MOST_PARTS), 1);
        const u32 length = max(ceil_div(context, parts * PART_UNIT) * PART_UNIT, is_bounded ? BOUNDED_PART : usual);
        return {length, length / SUBPARTS};
    }
    Cut cut = {has_kv_tiles ? LEAST_PART : is_bounded ? BOUNDED_PART : usual, LEAST_KV_TILE};
    while (has_kv_tiles && cut.length < usual && cut.length < context) cut.length *= 2;
    while (cut.kv_tile < cut.subpart() && cut.kv_tile * kv_tiles < context) cut.kv_tile *= 2;
    return cut;
}
