// What is made of the whole chunks of a prompt, and where it is.
#pragma once
#include "common/recurrence_tile.cuh"

struct Prompt {
    u16* keys;      // [chunks][key_heads or value_heads] ChunkKeys
    u8* heads;      // [chunks][value_heads] ChunkHead
    u32 begin, end; // rows of the step
    u32 first_span;
    u16 stages;   // chunks in shared memory: two, or three where they have room
    u16 is_first; // whether nothing of the step was prepared before
};

// Keys and what they lack, queries and what they lack: normalised, and of a key head. Decays per channel make them those of
// a value head: faded by what is before them in the chunk, then keys faded by what is after them, and how much the state
// fades by the whole chunk.
template <bool PER_CHANNEL, u32 COLUMNS> struct ChunkKeys {
    static constexpr u32 SQUARES = PER_CHANNEL ? 6 : 4;
    static constexpr u32 SIZE = (SQUARES * CHUNK + 2 * PER_CHANNEL) * COLUMNS; // in u16
    static DEVICE u16* of(const Prompt& prompt, const Recurrence& op, u32 chunk, u32 head) {
        return prompt.keys + (PER_CHANNEL ? u64(chunk) * op.value_heads + head : u64(chunk) * op.key_heads + op.key_head(head)) * SIZE;
    }
};

// Of a chunk and a value head: decays from the chunk's begin and to its end, step sizes, the decay of the whole chunk, what
// rows give to later queries, and the inverse of what they take from each other, times strengths.
struct ChunkHead {
    float decays[CHUNK], advancing[CHUNK], sizes[CHUNK], whole[CHUNK];
    u16 qk[2][CHUNK][CHUNK];
    u16 inverse[2][CHUNK][CHUNK];
};
// The bytes of it that a recurrence has: one without a delta rule no inverse.
template <bool IS_DELTA> constexpr u32 HEAD_BYTES = IS_DELTA ? sizeof(ChunkHead) : 1280;
// What a row takes from those before it, and its strength.
struct Taken {
    float by[CHUNK][CHUNK + 4];
};
static_assert(sizeof(Prompt) == 32 && sizeof(ChunkHead) == 2304, "as in src/ops/recurrence.rs");

// Which chunks of a span begin in the rows of a prompt: `first..end`, rows of the span. Whether there are any.
DEVICE bool find_chunks(const Span& span, const Prompt& prompt, u32& first, u32& end) {
    const u32 whole = span.is_final() ? span.rows & ~(CHUNK - 1) : 0;
    first = prompt.begin > span.first ? ceil_div(prompt.begin - span.first, CHUNK) * CHUNK : 0;
    end = prompt.end > span.first ? min(ceil_div(prompt.end - span.first, CHUNK) * CHUNK, whole) : 0;
    return first < end;
}

DEVICE void store_split(u16 (&to)[2][CHUNK][CHUNK], u32 t, u32 j, float x) {
    const bf16 high = to_bf16(x);
    to[0][t][j] = high.bits;
    to[1][t][j] = to_bf16(x - to_float(high)).bits;
}

// Column `j` of the inverse, from above, times the strength of row `j`.
DEVICE void invert(ChunkHead& head_here, const Taken& taken, u32 j) {
    float x[CHUNK];
    const float strength = taken.by[j][CHUNK];
#pragma unroll
    for (u32 t = 0; t < CHUNK; ++t) {
        float mine = t == j ? 1.0f : 0.0f;
#pragma unroll
        for (u32 i = 0; i < t; ++i) mine = fmaf(-taken.by[t][i], x[i], mine);
        x[t] = mine;
        store_split(head_here.inverse, t, j, mine * strength);
    }
}
