// What attention kernels have in common: how a context is cut into parts, and where their results wait.
#pragma once
#include "common/order.cuh"
#include "common/pages.cuh"
#include "common/step.cuh"

static constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
#define MINUS_INFINITY __int_as_float(0xff800000)

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
// matter where a prompt is cut, as long as that is at a multiple of a chunk. Where tokens were given up and summed up, all
// rows are looked at in parts, of which the sums are one more.
static constexpr u32 CHUNK = 16;
DEVICE u32 prompt_rows(const Span& span) { return span.has_sums() ? 0 : span.rows & ~(CHUNK - 1); }

// Results of parts of the contexts of some rows, in scratch. The rows of a span that are meant are cut alike.
struct Parts {
    float2* tops; // [rows][heads][count]: the largest score (to base 2), and the sum of weights relative to it
    float* mixed; // [rows][heads][count][value_dim], relative to the same
    u32 count;
    u32 first_span;
    u32 first_row, end_row; // of the step: those that are meant

    // Rows of a span that are meant.
    DEVICE u32 begin_in(const Span& span) const {
        return max(prompt_rows(span), first_row > span.first ? first_row - span.first : 0);
    }
    DEVICE u32 end_in(const Span& span) const { return min(span.rows, end_row - span.first); }

    // Of the part that the block has.
    DEVICE float2* tops_at(u64 query) const { return tops + query * count + blockIdx.x; }
    DEVICE float* mixed_at(u64 query, u32 value_dim) const { return mixed + (query * count + blockIdx.x) * value_dim; }
};

static_assert(sizeof(Parts) == 32, "as in src/ops/attention.rs");

// Tokens of a part of the context of a row: they depend on where it ends and on the shape of the layer alone, so that
// results do not depend on what else is in a step. Where tokens were given up few are held. `part_tokens` of
// src/ops/attention.rs.
static constexpr u32 LEAST_PART = 256, MOST_PARTS = 128, MANY_HEADS = 8, BOUNDED_PART = 64;

DEVICE u32 part_tokens(u32 context, u32 kv_heads, bool has_sums) {
    u32 part = has_sums ? BOUNDED_PART : kv_heads < MANY_HEADS ? LEAST_PART : 2 * LEAST_PART;
    while (part * MOST_PARTS < context) part *= 2;
    return part;
}
