// Attention over latent pages: one row of 576 columns a token, of which the first 512 are its value, for all heads. What kernels of
// all GPUs have in common: a block of eight warps has some queries, and brings some tokens at a time into shared memory, once for
// the products with the queries and with the weights.
#pragma once
#include "common/attention_part.cuh"
#include "common/cluster.cuh"

template <u32 KV, u32 TOKENS_AT_ONCE> struct LatentRows {
    static constexpr u32 KEY = 576, VALUE = 512, TOKENS = TOKENS_AT_ONCE, THREADS = 256, STAGES = 2;
    // Of keys, in columns of 64; a thread brings a piece of 8 columns of each, of every 32nd token.
    static constexpr u32 COLUMNS = KEY / 64, EACH = TOKENS * 8 / THREADS;

    // Rows of 64 columns in eight pieces of 16 bytes, piece `i` of row `r` at `i ^ (r % 8)`.
    typedef uint4 Tile[COLUMNS][TOKENS][8];

    // Pieces of 8 bits on their way: elements, and the scales of their rows.
    struct Arriving {
        uint2 pieces[EACH][COLUMNS];
        float scales[EACH];
    };

    const StepView& step;
    const Pages& pages;
    const Attention& op;
    const Parts* parts; // none: the block has whole contexts
    const Span& span;
    u32 skipped;            // rows of the span that are not meant
    u32 first, queries;     // of the block, and all of them
    u32 begin, end, length; // tokens that the block looks at, and those of a part

    DEVICE u32 step_row(u32 query) const { return span.first + skipped + (first + query) / op.heads; }
    DEVICE u64 place(u32 query) const { return u64(step_row(query)) * op.heads + (first + query) % op.heads; }
    // Tokens that a query sees.
    DEVICE u32 visible(u32 query) const {
        return first + query < queries ? span.context + skipped + (first + query) / op.heads + 1 : 0;
    }
    // Nothing in a step writes keys of earlier ones: the first ones may come before what is waited for.
    DEVICE bool is_old() const { return begin + TOKENS <= span.context; }

    // Token `i * 32 + thread / 8` of a tile; those behind the last one are the last one.
    DEVICE u32 token(u32 from, u32 i) const { return min(from + i * (THREADS / 8) + threadIdx.x / 8, end - 1); }

    // Asks for the pages of a tile.
    DEVICE void look_up(u32 (&ids)[EACH], u32 from) const {
        const u32* table = step.table(span.slot, op.ordinal);
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) ids[i] = table[token(from, i) >> pages.shift];
    }

    // Where a piece of the first columns of this thread goes.
    static DEVICE uint4* slot(Tile& tile, u32 i) {
        const u32 row = i * (THREADS / 8) + threadIdx.x / 8;
        return &tile[0][row][threadIdx.x % 8 ^ (row & 7)];
    }

    // Asks for a tile. Rows of 16 bits go where they are multiplied from.
    DEVICE void ask(Arriving& arriving, const u32 (&ids)[EACH], Tile& tile, u32 from) const {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const HeadPage page = head_page<KV>(pages, ids[i], 0);
            const u32 row = token(from, i) & (pages.page_size() - 1);
            const u8* key = page.keys + row * (KEY * element_bytes<KV>()) + threadIdx.x % 8 * (8 * element_bytes<KV>());
            uint4* to = slot(tile, i);
#pragma unroll
            for (u32 n = 0; n < COLUMNS; ++n) {
                if constexpr (has_scales<KV>()) arriving.pieces[i][n] = load_8(key + n * 64);
                else copy_16_async(to + n * (TOKENS * 8), key + n * 128);
            }
            if constexpr (has_scales<KV>()) arriving.scales[i] = to_float(page.key_scales[row]);
        }
        if constexpr (!has_scales<KV>()) copies_commit();
    }

    // What was asked for is in shared memory, as far as this thread brought it.
    static DEVICE void arrive(const Arriving& arriving, Tile& tile, float (&scales)[TOKENS]) {
        if constexpr (has_scales<KV>()) {
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                uint4* to = slot(tile, i);
#pragma unroll
                for (u32 n = 0; n < COLUMNS; ++n) {
                    u32 pairs[4];
                    Fractions<KV>::of(arriving.pieces[i][n], pairs);
                    to[n * (TOKENS * 8)] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                }
                if (threadIdx.x % 8 == 0) {
                    scales[i * (THREADS / 8) + threadIdx.x / 8] = arriving.scales[i] * Fractions<KV>::UNIT;
                }
            }
        } else {
            copies_wait<0>();
        }
    }

    // Where the result of a query goes, what it is multiplied by, and its gate if it has one.
    struct Target {
        float* out;
        const float* gate;
        float by;

        DEVICE void put(u32 column, float low, float high) const {
            float2 y = make_float2(low * by, high * by);
            if (gate != nullptr) {
                const float2 x = *reinterpret_cast<const float2*>(gate + column);
                y.x *= sigmoid(x.x), y.y *= sigmoid(x.y);
            }
            *reinterpret_cast<float2*>(out + column) = y;
        }
    };

    // Of a context, or of the part of it that ends at `part_end`, of which `tells` then has to tell the top and the sum.
    DEVICE Target target(u32 query, u32 part_end, float2 top_and_sum, float unit, bool tells) const {
        const u64 at = place(query);
        if (parts == nullptr || parts->count == 1) {
            return {op.out + at * VALUE, op.gate == nullptr ? nullptr : op.gate + at * VALUE, unit * (1.0f / top_and_sum.y)};
        }
        const u64 in_parts = (at - u64(parts->first_row) * op.heads) * parts->count + part_end / length - 1;
        if (tells) parts->tops[in_parts] = top_and_sum;
        return {parts->mixed + in_parts * VALUE, nullptr, unit};
    }
};

// The whole chunks of all spans. Block (queries, 1, span).
template <typename Kernel> DEVICE void attend_latent_prompts(const StepView& step, const Pages& pages, const Attention& op) {
    extern __shared__ __align__(1024) u8 bytes[];
    let_next_begin();
    const Span span = step.span_in(blockIdx.z, op.ordinal);
    const u32 queries = prompt_rows(span) * op.heads;
    // The last rows see most: they begin first.
    const u32 first = (gridDim.x - 1 - blockIdx.x) * Kernel::QUERIES;
    if (first >= queries) return wait_for_inputs();
    const u32 end = span.context + (min(first + Kernel::QUERIES, queries) - 1) / op.heads + 1;
    const Kernel kernel = {{step, pages, op, nullptr, span, 0, first, queries, 0, end, 0},
                           *reinterpret_cast<typename Kernel::Room*>(bytes)};
    kernel.attend();
}

// Parts of the contexts of some rows, some of one context in a block. Block (parts, queries, span).
template <typename Kernel>
DEVICE void attend_latent_parts(const StepView& step, const Pages& pages, const Attention& op, const Parts& parts) {
    extern __shared__ __align__(1024) u8 bytes[];
    let_next_begin();
    const Part<Kernel::QUERIES> part(step, pages, op, parts);
    const u32 length = part.cut.length, begin = blockIdx.x * parts.of_block * length;
    const u32 end = min(begin + parts.of_block * length, part.tokens());
    if (!part.has_queries() || begin >= end) return wait_for_inputs();
    const Kernel kernel = {{step, pages, op, &parts, part.span, part.skipped, part.first, part.queries, begin, end, length},
                           *reinterpret_cast<typename Kernel::Room*>(bytes)};
    kernel.attend();
}

#define LATENT(name, Whole, Few)                                                                                      \
    KERNEL __launch_bounds__(256, 1)                                                                                  \
        attention_latent_prompts_##name(const StepView step, const Pages pages, const Attention op) {                 \
        attend_latent_prompts<Whole>(step, pages, op);                                                                \
    }                                                                                                                 \
    KERNEL __launch_bounds__(256, 1)                                                                                  \
        attention_latent_parts_##name(const StepView step, const Pages pages, const Attention op, const Parts parts) { \
        attend_latent_parts<Few>(step, pages, op, parts);                                                             \
    }
