// What of the whole chunks of a prompt does not depend on the state where decays are per channel: as recurrence_prepare.cuh
// has it, but faded column by column, and so for each value head. A block has a chunk and a value head, a thread a column
// with all of its rows in registers. Factors are products of those of single rows, none above 1.
#pragma once
#include "common/recurrence_chunks.cuh"

// Adds up 32 values over the lanes of a warp: lane `i` gets the sum of value `i`. `LEFT` are left to be shared
// out. That is no loop: the compiler would leave it, with the values in memory.
template <u32 LEFT = 32> DEVICE float sum_32_over_32(float (&x)[32]) {
    if constexpr (LEFT > 1) {
        constexpr u32 OFFSET = LEFT / 2;
        const bool is_upper = lane_id() & OFFSET;
#pragma unroll
        for (u32 i = 0; i < OFFSET; ++i) {
            const float mine = is_upper ? x[i + OFFSET] : x[i], theirs = is_upper ? x[i] : x[i + OFFSET];
            x[i] = mine + __shfl_xor_sync(ALL_LANES, theirs, OFFSET);
        }
        return sum_32_over_32<OFFSET>(x);
    }
    return x[0];
}

template <u32 QUADS> struct PrepareChannels {
    static constexpr u32 COLUMNS = 32 * QUADS, WARPS = QUADS, THREADS = COLUMNS;
    using Keys = ChunkKeys<true, COLUMNS>;

    struct Shared {
        float squares[WARPS][32];             // of keys, then of queries
        float products[CHUNK * CHUNK][WARPS]; // see `with_key` and `with_query`
        ChunkHead head;
        Taken taken;
    };

    const Recurrence& op;
    const Span& span;
    const Prompt& prompt;
    Shared& shared;
    u32 first, chunk, head;

    // The numbers of the product of row `t` of keys with row `j` before it, and of its query with that row or its own key.
    static constexpr DEVICE u32 with_key(u32 t, u32 j) { return t * t + j; }
    static constexpr DEVICE u32 with_query(u32 t, u32 j) { return t * t + t + j; }

    // The thread's column of keys and queries of unit length, queries scaled.
    DEVICE void open_rows(float (&k)[CHUNK], float (&q)[CHUNK]) {
        const u32 column = threadIdx.x;
        const float* inputs = op.inputs + u64(span.first + first) * op.columns + op.key_head(head) * op.key_dim + column;
        const float *keys = inputs + op.keys_at, *queries = inputs + op.queries_at;
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t, keys += op.columns, queries += op.columns) {
            k[t] = column < op.key_dim ? *keys : 0.0f;
            q[t] = column < op.key_dim ? *queries : 0.0f;
        }
        float x[32];
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) x[t] = k[t] * k[t], x[CHUNK + t] = q[t] * q[t];
        shared.squares[warp_id()][lane_id()] = sum_32_over_32(x);
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; ++i) sum += shared.squares[i][lane_id()];
        const float scale = rsqrtf(sum + op.norm_eps);
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) {
            k[t] *= __shfl_sync(ALL_LANES, scale, t);
            q[t] *= __shfl_sync(ALL_LANES, scale, CHUNK + t) * op.query_scale;
        }
    }

    // What the column fades by is made of: asked for before anything waits for something else.
    DEVICE void request_decays(float (&steps)[CHUNK]) {
        const u32 all = op.value_heads * op.key_dim;
        const float* from = op.steps + u64(span.first + first) * all + head * op.key_dim + threadIdx.x;
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t, from += all) steps[t] = threadIdx.x < op.key_dim ? *from : 0.0f;
    }

    // How much it fades by each row.
    DEVICE void open_decays(float (&passed)[CHUNK]) {
        const u32 column = threadIdx.x;
        const float bias = op.bias != nullptr && column < op.key_dim ? op.bias[head * op.key_dim + column] : 0.0f;
        const float rate = op.a[head];
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) passed[t] = column < op.key_dim ? expf(rate * softplus(passed[t] + bias)) : 0.0f;
    }

    // Row `t` of square `square` and what that lacks, of a column of squares.
    static DEVICE void store(u16* column, int square, int t, float x) {
        const bf16 high = to_bf16(x);
        column[(square * int(CHUNK) + t) * int(COLUMNS)] = high.bits;
        column[((square + 1) * int(CHUNK) + t) * int(COLUMNS)] = to_bf16(x - to_float(high)).bits;
    }

    // What is made of row `T` and of those after it. `products`: the thread's parts of 32 of them, until these are added up.
    template <u32 T>
    DEVICE void open_row(const float (&k)[CHUNK], const float (&q)[CHUNK], const float (&passed)[CHUNK],
                         float (&faded)[CHUNK], float& before, float (&products)[32], u16* column) {
        if constexpr (T < CHUNK) {
#pragma unroll
            for (u32 j = 0; j < T; ++j) faded[j] *= passed[T];
            faded[T] = k[T];
#pragma unroll
            for (u32 i = 0; i <= 2 * T; ++i) {
                const u32 number = with_key(T, i); // then those with the query
                products[number % 32] = i < T ? k[T] * faded[i] : q[T] * faded[i - T];
                if (number % 32 == 31) shared.products[number / 32 * 32 + lane_id()][warp_id()] = sum_32_over_32(products);
            }
            before *= passed[T];
            store(column, 0, T, k[T] * before);
            store(column, 2, T, q[T] * before);
            open_row<T + 1>(k, q, passed, faded, before, products, column);
        }
    }

    DEVICE void run() {
        float k[CHUNK], q[CHUNK], passed[CHUNK], faded[CHUNK], products[32], before = 1.0f;
        request_decays(passed);
        open_rows(k, q);
        open_decays(passed);
        u16* keys = Keys::of(prompt, op, chunk, head);
        u16* column = keys + place_of(threadIdx.x & ~1u) + (threadIdx.x & 1);
        open_row<0>(k, q, passed, faded, before, products, column);
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) store(column, 4, t, faded[t]);
        reinterpret_cast<float*>(keys + Keys::SQUARES * CHUNK * COLUMNS)[threadIdx.x] = before;
        __syncthreads();
        relate();
        __syncthreads();
        if (threadIdx.x < CHUNK) invert(shared.head, shared.taken, threadIdx.x);
        __syncthreads();
        u8* to = prompt.heads + (u64(chunk) * op.value_heads + head) * sizeof(ChunkHead);
        for (u32 at = threadIdx.x; at < sizeof(ChunkHead) / 16; at += THREADS)
            reinterpret_cast<uint4*>(to)[at] = reinterpret_cast<const uint4*>(&shared.head)[at];
    }

    // A product, of all columns.
    DEVICE float total(u32 number) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; ++i) sum += shared.products[number][i];
        return sum;
    }

    // Decays are in the keys, so those of the head are 1 and nobody reads them.
    DEVICE void relate() {
#pragma unroll 1
        for (u32 at = threadIdx.x; at < CHUNK * CHUNK; at += THREADS) {
            const u32 t = at / CHUNK, j = at % CHUNK;
            store_split(shared.head.qk, t, j, j <= t ? total(with_query(t, j)) : 0.0f);
            const float strength = sigmoid(op.beta[u64(span.first + first + t) * op.value_heads + head]);
            if (j < t) shared.taken.by[t][j] = strength * total(with_key(t, j));
            if (j == 0) shared.taken.by[t][CHUNK] = strength;
        }
        if (threadIdx.x < CHUNK) {
            shared.head.decays[threadIdx.x] = shared.head.advancing[threadIdx.x] = 1.0f;
            shared.head.sizes[threadIdx.x] = shared.head.whole[threadIdx.x] = 1.0f;
        }
    }
};
