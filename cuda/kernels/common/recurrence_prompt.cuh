// Whole chunks of prompts through recurrences, by matrix instructions (ALGORITHMS 2.2): what does not depend on the state is
// made for all chunks at once (recurrence_prepare.cuh, recurrence_channels.cuh), then the state goes from chunk to chunk.
//
// Some warps share 16 rows of a state, each with a part of the columns. They add up what their parts give keys and queries,
// and each of them works out what is written: there is one exchange a chunk. Another warp of the block brings the chunks.
#pragma once
#include "common/recurrence_channels.cuh"
#include "common/recurrence_prepare.cuh"

template <u32 KIND, typename State, u32 QUADS> struct PromptBlock {
    static constexpr u32 COLUMNS = 32 * QUADS, STRIDE = row_stride(COLUMNS);
    static constexpr u32 SHARES = 2; // warps that share a row
    static constexpr u32 WIDTH = COLUMNS / SHARES;
    static constexpr bool IS_DELTA = KIND != MAMBA2, PER_CHANNEL = KIND == DELTA_PER_CHANNEL;
    using Part = Tile<State, WIDTH, STRIDE>;

    using Keys = ChunkKeys<PER_CHANNEL, COLUMNS>;

    // A chunk in shared memory; values `[CHUNK][16 * groups + 4]` follow it.
    struct Stage {
        u16 keys[Keys::SQUARES][CHUNK][STRIDE];
        ChunkHead head;
    };
    struct ChannelStage : Stage {
        float whole[COLUMNS];
    };
    static constexpr u32 STAGE = PER_CHANNEL ? sizeof(ChannelStage) : sizeof(Stage);
    // What the part of a warp gives keys, and those queries whose output the other warp of its 16 rows has: by lane.
    struct Exchange {
        float4 by_key[SHARES][2][32], by_query[SHARES][32];
    };

    const Recurrence& op;
    const Span& span;
    const Prompt& prompt;
    u8* memory; // a `Stage` for each stage, then an `Exchange` for each 16 rows
    const u32 head, groups, number, share; // number of 16 rows in the block, part of the columns
    const u32 first_row;                   // of the block
    Part part;

    DEVICE PromptBlock(const Recurrence& op, const Span& span, const Prompt& prompt, u8* memory)
        : op(op), span(span), prompt(prompt), memory(memory), head(blockIdx.y), groups((blockDim.x / 32 - 1) / SHARES),
          number(warp_id() / SHARES), share(warp_id() % SHARES), first_row(blockIdx.x * 16 * groups) {}

    DEVICE u32 value_stride() const { return 16 * groups + 4; }
    DEVICE u32 stage_bytes() const { return STAGE + 4 * CHUNK * value_stride(); }
    DEVICE Stage& stage(u32 at) const { return *reinterpret_cast<Stage*>(memory + at * stage_bytes()); }
    static DEVICE const float* values_of(const Stage& stage) {
        return reinterpret_cast<const float*>(reinterpret_cast<const u8*>(&stage) + STAGE);
    }
    static DEVICE const float* whole_of(const Stage& stage) { return static_cast<const ChannelStage&>(stage).whole; }

    // A warp asks for what was made for a chunk, and for its values.
    DEVICE void request(u32 at_stage, u32 first) {
        Stage& to = stage(at_stage);
        const u32 chunk = (span.first + first - prompt.begin) / CHUNK, lane = lane_id();
        const u16* keys = Keys::of(prompt, op, chunk, head);
        constexpr u32 PIECES = COLUMNS / 8;
#pragma unroll 8
        for (u32 at = lane; at < Keys::SQUARES * CHUNK * PIECES; at += 32)
            copy_16_async(&to.keys[0][at / PIECES][at % PIECES * 8], keys + at * 8);
        if constexpr (PER_CHANNEL) {
            float* whole = const_cast<float*>(whole_of(to));
            for (u32 at = lane; at < COLUMNS / 4; at += 32)
                copy_16_async(whole + 4 * at, keys + Keys::SQUARES * CHUNK * COLUMNS + 8 * at);
        }
        const u8* heads = prompt.heads + (u64(chunk) * op.value_heads + head) * sizeof(ChunkHead);
#pragma unroll
        for (u32 at = lane; at < HEAD_BYTES<IS_DELTA> / 16; at += 32)
            copy_16_async(reinterpret_cast<u8*>(&to.head) + 16 * at, heads + 16 * at);
        const float* from = op.inputs + u64(span.first + first) * op.columns + op.values_at + head * op.value_dim + first_row;
        float* values = const_cast<float*>(values_of(to));
        const u32 rows = 16 * groups, left = op.value_dim - first_row, stride = value_stride();
        if (((op.columns | op.values_at | op.value_dim) & 3) == 0) {
            for (u32 at = lane; at < CHUNK * 4 * groups; at += 32) {
                const u32 t = at & 15, row = at / 16 * 4;
                copy_16_async(values + t * stride + row, from + t * op.columns + (row < left ? row : 0), row < left);
            }
        } else {
            for (u32 at = lane; at < CHUNK * rows; at += 32) {
                const u32 t = at & 15, row = at / 16;
                copy_4_async(values + t * stride + row, from + t * op.columns + (row < left ? row : 0), row < left);
            }
        }
    }

    // Brings the chunks: a warp of its own, that takes part in every barrier of the block.
    template <u32 STAGES> DEVICE void bring(u32 first, u32 end) {
        u32 to = 0;
#pragma unroll 1
        for (u32 n = 0; n + 1 < STAGES; ++n, ++to) {
            if (first + n * CHUNK < end) request(to, first + n * CHUNK);
            copies_commit();
        }
#pragma unroll 1
        for (; first < end; first += CHUNK) {
            copies_wait<STAGES - 2>();
            __syncthreads();
            const u32 next = first + (STAGES - 1) * CHUNK;
            if (next < end) request(to, next);
            copies_commit();
            to = to + 1 == STAGES ? 0 : to + 1;
        }
    }

    DEVICE u32 rows_left() const { return op.value_dim > first_row + 16 * number ? op.value_dim - first_row - 16 * number : 0; }
    DEVICE u32 columns_left() const { return op.key_dim > share * WIDTH ? op.key_dim - share * WIDTH : 0; }
    DEVICE State* state_at() const {
        return static_cast<State*>(op.state) +
               ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row + 16 * number) * op.key_dim + share * WIDTH;
    }

    // The column of element `e` of tile `n`.
    static DEVICE u32 column_at(u32 n, u32 e) { return Part::column_of(n & ~1u) + 2 * (n & 1) + e; }

    // Puts the entries of the ring into the state, the newest of each 16 first.
    DEVICE void fold() {
        constexpr u32 DECAYS = PER_CHANNEL ? Part::TILES : 1, EACH = PER_CHANNEL ? 2 : 1; // of a lane
        const u32 mask = op.ring - 1, decays = PER_CHANNEL ? op.key_dim : 1;
        const u64 of_head = (u64(span.slot) * op.value_heads + head) * op.ring;
        const f16* keys = op.ring_k + (u64(span.slot) * op.key_heads + op.key_head(head)) * op.ring * op.key_dim + share * WIDTH;
        const f16* us = op.ring_u + of_head * op.value_dim + first_row + 16 * number;
        const float* gs = op.ring_g + of_head * decays + (PER_CHANNEL ? share * WIDTH : 0);
        const auto g = [&](u32 entry, u32 n, u32 e) {
            const u32 column = PER_CHANNEL ? column_at(n, e) : 0;
            return !PER_CHANNEL || column < columns_left() ? gs[entry * decays + column] : 0.0f;
        };
#pragma unroll 1
        for (u32 from = 0; from < span.before_held; from += CHUNK) {
            const u32 count = min(span.before_held - from, CHUNK), newest = span.before_base + from + count - 1;
            float newer[DECAYS][EACH] = {};
#pragma unroll 1
            for (u32 i = 0; i < count; ++i)
#pragma unroll
                for (u32 n = 0; n < DECAYS; ++n)
#pragma unroll
                    for (u32 e = 0; e < EACH; ++e) newer[n][e] += g((newest - i) & mask, n, e);
#pragma unroll
            for (u32 n = 0; n < Part::TILES; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) part.state[n][e] *= expf(newer[n % DECAYS][e % EACH]);
#pragma unroll
            for (u32 n = 0; n < DECAYS; ++n)
#pragma unroll
                for (u32 e = 0; e < EACH; ++e) newer[n][e] = 0.0f;
#pragma unroll 1
            for (u32 i = 0; i < count; ++i) {
                const u32 entry = (newest - i) & mask;
                float u[2];
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    const u32 row = Part::row_of(2 * half);
                    u[half] = row < rows_left() ? to_float(us[entry * op.value_dim + row]) : 0.0f;
                }
#pragma unroll
                for (u32 n = 0; n < Part::TILES; ++n)
#pragma unroll
                    for (u32 e = 0; e < 2; ++e) {
                        const u32 column = column_at(n, e);
                        const float key = column < columns_left() ? to_float(keys[entry * op.key_dim + column]) : 0.0f;
                        const float faded = key * expf(newer[n % DECAYS][e % EACH]);
                        part.state[n][e] = fmaf(u[0], faded, part.state[n][e]);
                        part.state[n][2 + e] = fmaf(u[1], faded, part.state[n][2 + e]);
                    }
#pragma unroll
                for (u32 n = 0; n < DECAYS; ++n)
#pragma unroll
                    for (u32 e = 0; e < EACH; ++e) newer[n][e] += g(entry, n, e);
            }
        }
        part.round();
    }

    // Multiplies with the transpose of a square, of which `n` is the number of 8 rows.
    static DEVICE void multiply_square(float (&sums)[4], const u32 (&high)[4], const u32 (&low)[4],
                                       const u16 (&by)[2][CHUNK][CHUNK], u32 n) {
        const u16* row = &by[0][8 * n + (lane_id() >> 2)][2 * (lane_id() & 3)];
        const u32* at = reinterpret_cast<const u32*>(row);
        const u32* rest = reinterpret_cast<const u32*>(row + CHUNK * CHUNK);
        const u32 b[2] = {at[0], at[4]}, lacking[2] = {rest[0], rest[4]};
        multiply_split(sums, high, low, b, lacking);
    }

    static DEVICE float4 sum_of(const float (&x)[3][2][4], u32 n) {
        return make_float4(x[0][n][0] + (x[1][n][0] + x[2][n][0]), x[0][n][1] + (x[1][n][1] + x[2][n][1]),
                           x[0][n][2] + (x[1][n][2] + x[2][n][2]), x[0][n][3] + (x[1][n][3] + x[2][n][3]));
    }
    // The same whichever warp adds: of two numbers.
    static DEVICE float4 sum_of(float4 x, float4 y) { return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w); }

    // Waits for the other warp of the same rows.
    DEVICE void meet_other() const { asm volatile("bar.sync %0, %1;" ::"r"(1 + number), "n"(32 * SHARES) : "memory"); }

    // `out`: of the lane's first row of the state and row of the chunk.
    DEVICE void run_chunk(const Stage& stage, Exchange& exchange, float skip, float* out, u32 stride, u32 left) {
        const ChunkHead& given = stage.head;
        float by_key[3][2][4] = {}, by_query[3][2][4] = {};
        const u16* rows = &stage.keys[0][0][share * WIDTH] + Part::meeting_place();
#pragma unroll
        for (u32 n = 0; n < Part::TILES; n += 2) {
            u32 high[4], low[4];
            split_left(part.state[n], part.state[n + 1], high, low);
            if constexpr (IS_DELTA) Part::meet(by_key, high, low, rows + 8 * n, CHUNK * STRIDE);
            Part::meet(by_query, high, low, rows + 2 * CHUNK * STRIDE + 8 * n, CHUNK * STRIDE);
        }
        const float4 first = sum_of(by_query, 0), second = sum_of(by_query, 1);
        const float4 of_queries = share == 0 ? first : second;
        exchange.by_query[share][lane_id()] = share == 0 ? second : first;
        float4 of_keys[2];
        if constexpr (IS_DELTA) {
#pragma unroll
            for (u32 n = 0; n < 2; ++n) exchange.by_key[share][n][lane_id()] = of_keys[n] = sum_of(by_key, n);
        }
        const u32 pair = 2 * (lane_id() & 3);
        const float* values = values_of(stage) + pair * value_stride() + 16 * number + (lane_id() >> 2);
        float value[2][4], decays[2][2], u[2][4];
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
#pragma unroll
            for (u32 e = 0; e < 4; ++e) value[n][e] = values[(8 * n + (e & 1)) * value_stride() + 8 * (e >> 1)];
            decays[n][0] = PER_CHANNEL ? 1.0f : given.decays[8 * n + pair];
            decays[n][1] = PER_CHANNEL ? 1.0f : given.decays[8 * n + pair + 1];
        }
        // What Mamba-2 writes does not depend on what the state gives.
        if constexpr (IS_DELTA) meet_other();
        u32 high[4], low[4];
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
            if constexpr (IS_DELTA) {
                const float4 sum = sum_of(of_keys[n], exchange.by_key[1 - share][n][lane_id()]);
                u[n][0] = fmaf(-decays[n][0], sum.x, value[n][0]), u[n][1] = fmaf(-decays[n][1], sum.y, value[n][1]);
                u[n][2] = fmaf(-decays[n][0], sum.z, value[n][2]), u[n][3] = fmaf(-decays[n][1], sum.w, value[n][3]);
            } else {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) u[n][e] = given.sizes[8 * n + pair + (e & 1)] * value[n][e];
            }
        }
        if constexpr (IS_DELTA) {
            split_left(u[0], u[1], high, low);
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) u[n][e] = 0.0f;
                multiply_square(u[n], high, low, given.inverse, n);
            }
        }
        float advanced[2][4];
#pragma unroll
        for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) advanced[n][e] = PER_CHANNEL ? u[n][e] : u[n][e] * given.advancing[8 * n + pair + (e & 1)];
        u32 advanced_high[4], advanced_low[4];
        split_left(advanced[0], advanced[1], advanced_high, advanced_low);
        if constexpr (PER_CHANNEL) part.scale_columns(whole_of(stage) + share * WIDTH);
        part.add(advanced_high, advanced_low, &stage.keys[PER_CHANNEL ? 4 : 0][0][share * WIDTH] + Part::adding_place(), CHUNK * STRIDE,
                 PER_CHANNEL ? 1.0f : given.whole[0]);
        part.round();
        if constexpr (!IS_DELTA) meet_other();
        // Each of the two warps has the output of 8 rows of the chunk.
        split_left(u[0], u[1], high, low);
        const float4 sum = sum_of(of_queries, exchange.by_query[1 - share][lane_id()]);
        float y[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            const float mine = share == 1 ? value[1][e] : value[0][e];
            y[e] = fmaf(share == 1 ? decays[1][e & 1] : decays[0][e & 1], y[e], skip * mine);
        }
        multiply_square(y, high, low, given.qk, share);
        float* at = out + 8 * share * stride;
        if (left > 0) at[0] = y[0], at[stride] = y[1];
        if (left > 8) at[8] = y[2], at[stride + 8] = y[3];
    }

    // Chunks from row `first` of the span to row `end`, whose states follow each other.
    DEVICE void run(u32 first, u32 end) {
        if (warp_id() == SHARES * groups) return prompt.stages == 3 ? bring<3>(first, end) : bring<2>(first, end);
        typename Part::Raw raw;
        Part::template request<true>(raw, state_at(), first > 0 || !span.is_fresh() ? rows_left() : 0, columns_left(), op.key_dim);
        part.open(raw);
        if (first == 0 && span.flush()) fold();
        const float skip = op.skip != nullptr ? op.skip[head] : 0.0f;
        const u32 stride = op.value_heads * op.value_dim, group = lane_id() >> 2, left = rows_left() > group ? rows_left() - group : 0;
        float* out = op.out + u64(span.first + first + 2 * (lane_id() & 3)) * stride + head * op.value_dim + first_row + 16 * number + group;
        Exchange& exchange = reinterpret_cast<Exchange*>(memory + prompt.stages * stage_bytes())[number];
#pragma unroll 1
        for (u32 at = 0; first < end; first += CHUNK) {
            __syncthreads(); // this chunk is there, and nobody reads the last one any more
            run_chunk(stage(at), exchange, skip, out, stride, left);
            out += CHUNK * stride;
            at = at + 1 == prompt.stages ? 0 : at + 1;
        }
        part.store(state_at(), rows_left(), columns_left(), op.key_dim);
    }
};

template <u32 KIND, u32 QUADS> struct Preparer {
    using Type = Prepare<KIND, QUADS>;
};
template <u32 QUADS> struct Preparer<DELTA_PER_CHANNEL, QUADS> {
    using Type = PrepareChannels<QUADS>;
};

template <u32 KIND, u32 QUADS>
DEVICE void prepare_chunk(const StepView& step, const Recurrence& op, const Prompt& prompt, u8* memory) {
    const Span span = step.spans[prompt.first_span + blockIdx.z];
    u32 first, end;
    if (!find_chunks(span, prompt, first, end)) return;
    first += blockIdx.x * CHUNK;
    if (first >= end) return;
    using Whole = typename Preparer<KIND, QUADS>::Type;
    auto& shared = *reinterpret_cast<typename Whole::Shared*>(memory);
    const u32 chunk = (span.first + first - prompt.begin) / CHUNK;
    Whole{op, span, prompt, shared, first, chunk, blockIdx.y}.run();
}

// Blocks of the next kernel need much room: they come when these leave. What comes next of the same step is prepared while states go
// through what is before it. Its inputs were there when the first chunks were prepared. What it writes over was read by the
// states before those that go on now: whoever prepared what these read waited for them at its end, and has ended.
template <u32 KIND, u32 QUADS>
DEVICE void prepare_chunks(const StepView& step, const Recurrence& op, const Prompt& prompt) {
    extern __shared__ __align__(16) u8 bytes[];
    if (prompt.is_first) wait_for_inputs();
    prepare_chunk<KIND, QUADS>(step, op, prompt, bytes);
    if (!prompt.is_first) wait_for_inputs();
}

template <u32 KIND, typename State, u32 QUADS>
DEVICE void run_chunks(const StepView& step, const Recurrence& op, const Prompt& prompt) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    const Span span = step.spans[prompt.first_span + blockIdx.z];
    u32 first, end;
    if (!find_chunks(span, prompt, first, end)) return;
    PromptBlock<KIND, State, QUADS>(op, span, prompt, bytes).run(first, end);
}

// A block has 16 rows of a state for every two of its warps, up to 80, and another warp.
#define PROMPT(name, KIND, State, QUADS)                                                                              \
    KERNEL __launch_bounds__(PREPARERS) name##_prepare(StepView step, Recurrence op, Prompt prompt) {                   \
        prepare_chunks<KIND, QUADS>(step, op, prompt);                                                                \
    }                                                                                                                 \
    KERNEL __launch_bounds__(352, 1) name##_prompt(StepView step, Recurrence op, Prompt prompt) {                     \
        run_chunks<KIND, State, QUADS>(step, op, prompt);                                                             \
    }
