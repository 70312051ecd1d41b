// Recurrences over a matrix per head, with a checkpoint and a replay ring (ALGORITHMS 2.2, 2.4, 2.5):
//   S = S diag(exp(g)), u = beta (v - S k) or u = size v, S += u k^T, out = S q + skip v.
//
// Which way a row of a span goes through depends on its span alone: whole chunks of prompts (recurrence_prompt.cuh), rows
// that stay in the ring (recurrence_few.cuh), all others (recurrence_rows.cuh). A block of either has some rows of the
// state of one value head, which it reads once and writes once, if at all.
#pragma once
#include "common/order.cuh"
#include "common/step.cuh"
#include "common/warp.cuh"

enum Kind : u32 { DELTA, DELTA_PER_CHANNEL, MAMBA2 };

struct Recurrence {
    const float* inputs; // [rows][columns]
    u32 columns;
    u32 queries_at, keys_at, values_at;
    const float* steps; // [rows][value_heads * decays]: alpha or dt
    const float* beta;  // [rows][value_heads]
    const float* bias;  // [value_heads * decays]
    const float* a;     // [value_heads]
    const float* skip;  // [value_heads]
    float* out;         // [rows][value_heads * value_dim]
    void* state;        // [slots][value_heads][value_dim][key_dim]
    f16* ring_u;        // [slots][value_heads][ring][value_dim]
    f16* ring_k;        // [slots][key_heads][ring][key_dim]
    float* ring_g;      // [slots][value_heads][ring][decays]
    u32 ring;
    u32 key_heads, value_heads, key_dim, value_dim;
    u32 tiled; // value head `h` reads key head `h % key_heads`, otherwise `h / (value_heads / key_heads)`
    float norm_eps;
    u32 group;         // value heads of a key head
    float query_scale; // 1 / sqrt(key_dim)
    u32 reciprocal;    // 2^32 by `key_heads` if these are tiled, by `group` otherwise, rounded up; 0 by 1

    // `head` by what `reciprocal` is of: a division proper is a long chain that all else waits for.
    DEVICE u32 quotient(u32 head) const { return reciprocal == 0 ? head : __umulhi(head, reciprocal); }
    DEVICE u32 key_head(u32 head) const { return tiled ? head - quotient(head) * key_heads : quotient(head); }
    // Whether a value head is the first that reads its key head: it appends keys to the ring.
    DEVICE bool is_first_of_key_head(u32 head) const { return tiled ? head < key_heads : quotient(head) * group == head; }
};

static_assert(sizeof(Recurrence) == 144, "as in src/ops/recurrence.rs");

// Rows that are solved together: `CHUNK` of backend/src/step.rs; also entries of the ring that are looked at together.
static constexpr u32 CHUNK = 16;

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// States and rings are stored as f32 or f16: to the nearest, what is too large as the largest.
DEVICE float limited(float x, const float*) { return x; }
DEVICE float limited(float x, const f16*) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }
DEVICE float rounded(float x, const float*) { return x; }
DEVICE float rounded(float x, const f16* type) { return to_float(to_f16(limited(x, type))); }
DEVICE void store_rounded(float* at, float x) { *at = x; }
DEVICE void store_rounded(f16* at, float x) { *at = to_f16(limited(x, at)); }
DEVICE void store_four_rounded(f16* at, float4 x) {
    *reinterpret_cast<uint2*>(at) = make_uint2(pack_f16(limited(x.x, at), limited(x.y, at)), pack_f16(limited(x.z, at), limited(x.w, at)));
}

// Four neighbours.
DEVICE float4 load_four(const float* at) { return *reinterpret_cast<const float4*>(at); }
DEVICE float4 load_four(const f16* at) {
    const uint2 x = *reinterpret_cast<const uint2*>(at);
    return make_float4(low_f16(x.x), high_f16(x.x), low_f16(x.y), high_f16(x.y));
}

// What rows find of a key, or of what was written, once it is an entry: as the ring has it. A row itself takes both as they are.
DEVICE float as_entry(float x) { return rounded(x, static_cast<const f16*>(nullptr)); }
DEVICE float4 as_entry(float4 x) { return make_float4(as_entry(x.x), as_entry(x.y), as_entry(x.z), as_entry(x.w)); }

// Whether whole chunks of prompts have kernels of their own; keys with decays per channel have none beyond 128 columns.
DEVICE constexpr bool has_prompts(u32 kind, u32 columns) { return kind != DELTA_PER_CHANNEL || columns <= 128; }

// Whole chunks of a prompt have been read before: only the rest is left.
DEVICE void skip_chunks(Span& span) {
    const u32 whole = span.rows & ~(CHUNK - 1);
    if (whole == 0) return;
    span.first += whole;
    span.context += whole;
    span.rows -= whole;
    span.flags = 2;
    span.after_held = 0;
}

// The ring of a slot that is folded besides any step; nothing is if it holds nothing.
struct Fold {
    u32 slot;
    u32 base, held;
    u32 padding;

    DEVICE Span span() const {
        Span span = {};
        span.slot = slot;
        span.before_base = base;
        span.before_held = held;
        span.flags = 1;
        return span;
    }
};
