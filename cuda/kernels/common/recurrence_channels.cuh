// What of the whole chunks of a prompt does not depend on the state where decays are per channel: as recurrence_prepare.cuh
// has it, but faded column by column, and so for each value head. A block has a chunk and a value head, a thread a column
// with all of its rows in registers. Factors are products of those of single rows, none above 1.
#pragma once
#include "common/recurrence_chunks.cuh"

// Adds up 32 values over the lanes of a warp: lane `i` gets the sum of value `i`.
DEVICE float sum_32_over_32(float (&x)[32]) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 offset = 16; offset > 0; offset /= 2)
#pragma unroll
        for (u32 i = 0; i < offset; ++i) {
            const float mine = lane & offset ? x[i + offset] : x[i], theirs = lane & offset ? x[i] : x[i + offset];
            x[i] = mine + __shfl_xor_sync(ALL_LANES, theirs, offset);
        }
    return x[0];
}

template <u32 QUADS> struct PrepareChannels {
    static constexpr u32 COLUMNS = 32 * QUADS, WARPS = QUADS, THREADS = COLUMNS;
    using Keys = ChunkKeys<true, COLUMNS>;

    struct Shared {
        float squares[WARPS][32];         // of keys, then of queries
        float products[CHUNK][WARPS][32]; // of a row of keys with those before it, then of a query with keys
        ChunkHead head;
        Taken taken;
    };

    const Recurrence& op;
    const Span& span;
    const Prompt& prompt;
    Shared& shared;
    u32 first, chunk, head;

    // The thread's column of keys and queries of unit length, queries scaled.
    DEVICE void open_rows(float (&k)[CHUNK], float (&q)[CHUNK]) {
        const u32 column = threadIdx.x, of_key = op.key_head(head) * op.key_dim;
        const float* inputs = op.inputs + u64(span.first + first) * op.columns + column;
        float x[32];
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) {
            k[t] = column < op.key_dim ? inputs[t * op.columns + op.keys_at + of_key] : 0.0f;
            q[t] = column < op.key_dim ? inputs[t * op.columns + op.queries_at + of_key] : 0.0f;
            x[t] = k[t] * k[t], x[CHUNK + t] = q[t] * q[t];
        }
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

    // How much the column fades by each row.
    DEVICE void open_decays(float (&passed)[CHUNK]) {
        const u32 column = threadIdx.x, all = op.value_heads * op.key_dim;
        const float* steps = op.steps + u64(span.first + first) * all + head * op.key_dim + column;
        const float bias = op.bias != nullptr && column < op.key_dim ? op.bias[head * op.key_dim + column] : 0.0f;
        const float rate = op.a[head];
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) passed[t] = column < op.key_dim ? expf(rate * softplus(steps[t * all] + bias)) : 0.0f;
    }

    // The thread's column of row `t` of square `square` and of what that lacks.
    DEVICE void store(u16* keys, u32 square, u32 t, float x) {
        const u32 column = place_of(threadIdx.x & ~1u) + (threadIdx.x & 1);
        const bf16 high = to_bf16(x);
        keys[(square * CHUNK + t) * COLUMNS + column] = high.bits;
        keys[((square + 1) * CHUNK + t) * COLUMNS + column] = to_bf16(x - to_float(high)).bits;
    }

    DEVICE void run() {
        float k[CHUNK], q[CHUNK], passed[CHUNK], faded[CHUNK], before = 1.0f;
        open_rows(k, q);
        open_decays(passed);
        u16* keys = Keys::of(prompt, op, chunk, head);
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) {
            float x[32];
#pragma unroll
            for (u32 j = 0; j < CHUNK; ++j) {
                if (j < t) faded[j] *= passed[t];
                if (j == t) faded[j] = k[t];
                x[j] = j < t ? k[t] * faded[j] : 0.0f;
                x[CHUNK + j] = j <= t ? q[t] * faded[j] : 0.0f;
            }
            shared.products[t][warp_id()][lane_id()] = sum_32_over_32(x);
            before *= passed[t];
            store(keys, 0, t, k[t] * before);
            store(keys, 2, t, q[t] * before);
        }
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) store(keys, 4, t, faded[t]);
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

    // Decays are in the keys, so those of the head are 1 and nobody reads them.
    DEVICE void relate() {
#pragma unroll 1
        for (u32 at = threadIdx.x; at < CHUNK * 32; at += THREADS) {
            const u32 t = at / 32, j = at % CHUNK;
            float sum = 0.0f;
#pragma unroll
            for (u32 i = 0; i < WARPS; ++i) sum += shared.products[t][i][at % 32];
            if (at % 32 >= CHUNK) {
                store_split(shared.head.qk, t, j, sum);
            } else {
                const float strength = sigmoid(op.beta[u64(span.first + first + t) * op.value_heads + head]);
                shared.taken.by[t][j] = strength * sum;
                if (j == 0) shared.taken.by[t][CHUNK] = strength;
            }
        }
        if (threadIdx.x < CHUNK) {
            shared.head.decays[threadIdx.x] = shared.head.advancing[threadIdx.x] = 1.0f;
            shared.head.sizes[threadIdx.x] = shared.head.whole[threadIdx.x] = 1.0f;
        }
    }
};
