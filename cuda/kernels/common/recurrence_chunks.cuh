// What is made of the whole chunks of a prompt, and where it is.
#pragma once
#include "common/recurrence_tile.cuh"

struct Prompt {
    u16* keys;      // [chunks][key_heads][4][CHUNK][columns]: keys, what they lack, queries, what they lack
    u8* heads;      // [chunks][value_heads] ChunkHead
    u32 begin, end; // rows of the step
    u32 first_span, padding;
};

// Of a chunk and a value head: decays from the chunk's begin and to its end, step sizes, the decay of the whole chunk, what
// rows give to later queries, and the inverse of what they take from each other, times strengths.
struct ChunkHead {
    float decays[CHUNK], advancing[CHUNK], sizes[CHUNK], whole[CHUNK];
    u16 qk[2][CHUNK][CHUNK];
    u16 inverse[2][CHUNK][CHUNK];
};
static_assert(sizeof(Prompt) == 32 && sizeof(ChunkHead) == 2304, "as in src/ops/recurrence.rs");

// Which chunks of a span begin in the rows of a prompt: `first..end`, rows of the span. Whether there are any.
DEVICE bool find_chunks(const Span& span, const Prompt& prompt, u32& first, u32& end) {
    const u32 whole = span.is_final() ? span.rows & ~(CHUNK - 1) : 0;
    first = prompt.begin > span.first ? ceil_div(prompt.begin - span.first, CHUNK) * CHUNK : 0;
    end = prompt.end > span.first ? min(ceil_div(prompt.end - span.first, CHUNK) * CHUNK, whole) : 0;
    return first < end;
}
