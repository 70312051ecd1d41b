// What of the whole chunks of a prompt does not depend on the state: keys and queries as sums of two bf16, and for each
// value head decays, what rows give to later queries, and the inverse of what they take from each other. A block has a
// chunk and a key head, with all of its value heads.
#pragma once
#include "common/recurrence_chunks.cuh"

// Value heads that a block makes at the same time: a thread has a column of one of them.
static constexpr u32 PREPARERS = 128, HEADS_AT_ONCE = PREPARERS / CHUNK;

template <u32 KIND, u32 QUADS> struct Prepare {
    static constexpr u32 COLUMNS = 32 * QUADS, STRIDE = row_stride(COLUMNS), PAIRS = COLUMNS / 64;
    static constexpr bool IS_DELTA = KIND == DELTA;
    static constexpr u32 ROWS = 2 * CHUNK * 32 / PREPARERS; // keys or queries that a warp has

    // Followed by `HEADS_AT_ONCE` heads or as many as there are, and as many `taken`.
    struct Shared {
        u16 keys[4][CHUNK][STRIDE];
        float products[2][CHUNK][CHUNK + 1]; // of keys and of queries with keys
    };
    const Recurrence& op;
    const Span& span;
    const Prompt& prompt;
    Shared& shared;
    u32 first, chunk, key_head;

    DEVICE u32 head_of(u32 number) const {
        return op.tiled ? key_head + number * op.key_heads : key_head * op.group + number;
    }

    // Normalised keys and queries go to shared and to device memory.
    DEVICE void open_rows() {
        const u32 at = warp_id() * ROWS;
        const bool is_query = at >= CHUNK;
        const float* from = op.inputs + u64(span.first + first + at % CHUNK) * op.columns +
                            (is_query ? op.queries_at : op.keys_at) + key_head * op.key_dim;
        const bool is_whole = ((op.columns | op.queries_at | op.keys_at | op.key_dim) & 1) == 0;
        float x[ROWS][PAIRS][2];
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < PAIRS; ++n) {
                const u32 column = 64 * n + 2 * lane_id();
                const float* here = from + u64(i) * op.columns + column;
                if (is_whole && column < op.key_dim) {
                    const float2 two = *reinterpret_cast<const float2*>(here);
                    x[i][n][0] = two.x, x[i][n][1] = two.y;
                } else {
                    x[i][n][0] = column < op.key_dim ? here[0] : 0.0f;
                    x[i][n][1] = column + 1 < op.key_dim ? here[1] : 0.0f;
                }
            }
        u16* to = ChunkKeys<false, COLUMNS>::of(prompt, op, chunk, head_of(0)) + 2 * is_query * CHUNK * COLUMNS;
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            float scale = 1.0f;
            if constexpr (IS_DELTA) {
                float sum = 0.0f;
#pragma unroll
                for (u32 n = 0; n < PAIRS; ++n) sum = fmaf(x[i][n][0], x[i][n][0], fmaf(x[i][n][1], x[i][n][1], sum));
                scale = rsqrtf(warp_sum(sum) + op.norm_eps);
                if (is_query) scale *= op.query_scale;
            }
            const u32 row = at % CHUNK + i;
#pragma unroll
            for (u32 n = 0; n < PAIRS; ++n) {
                u32 high, low;
                split(x[i][n][0] * scale, x[i][n][1] * scale, high, low);
                const u32 column = place_of(64 * n + 2 * lane_id());
                *reinterpret_cast<u32*>(&shared.keys[2 * is_query][row][column]) = high;
                *reinterpret_cast<u32*>(&shared.keys[2 * is_query + 1][row][column]) = low;
                *reinterpret_cast<u32*>(to + row * COLUMNS + column) = high;
                *reinterpret_cast<u32*>(to + (CHUNK + row) * COLUMNS + column) = low;
            }
        }
    }

    // Products of keys, and of queries, with 8 keys: a warp each.
    DEVICE void multiply_rows() {
        const u32 which = warp_id() >> 1, n = warp_id() & 1, lane = lane_id();
        if (!IS_DELTA && which == 0) return;
        float sums[3][4] = {};
        const u16* left = &shared.keys[2 * which][(lane >> 3 & 1) * 8 + (lane & 7)][(lane >> 4) * 8];
        const u16* right = &shared.keys[lane >> 4][8 * n + (lane & 7)][(lane >> 3 & 1) * 8];
#pragma unroll
        for (u32 at = 0; at < COLUMNS; at += 16) {
            u32 high[4], low[4], keys[4];
            load_matrices(high, left + at);
            load_matrices(low, left + CHUNK * STRIDE + at);
            load_matrices(keys, right + at); // high, then low
            const u32 b[2] = {keys[0], keys[1]}, lacking[2] = {keys[2], keys[3]};
            mma_bf16(sums[0], high, b);
            mma_bf16(sums[1], low, b);
            mma_bf16(sums[2], high, lacking);
        }
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
            shared.products[which][(lane >> 2) + 8 * (e >> 1)][8 * n + 2 * (lane & 3) + (e & 1)] =
                sums[0][e] + (sums[1][e] + sums[2][e]);
    }

    // What step size, decay and strength of a row and value head are made of: asked for long before.
    struct Asked {
        float step, bias, rate, beta;
    };
    DEVICE Asked ask(u32 number, u32 t) const {
        if (number >= op.group) return {};
        const u32 head = head_of(number);
        const u64 row = u64(span.first + first + t) * op.value_heads + head;
        return {op.steps[row], op.bias != nullptr ? op.bias[head] : 0.0f, op.a[head], IS_DELTA ? op.beta[row] : 0.0f};
    }
    DEVICE void open_head(ChunkHead& head_here, Taken& taken, const Asked& asked, u32 t) {
        const float size = softplus(asked.step + asked.bias);
        head_here.whole[t] = asked.rate * size;
        head_here.sizes[t] = size;
        if constexpr (IS_DELTA) taken.by[t][CHUNK] = sigmoid(asked.beta);
    }

    // Column `j` of what rows give to queries, and of what they take from each other.
    DEVICE void relate(ChunkHead& head_here, Taken& taken, u32 j) {
        const float(&g)[CHUNK] = head_here.whole;
        float sum = 0.0f;
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) {
            sum += t > j ? g[t] : 0.0f;
            const float factor = expf(sum);
            store_split(head_here.qk, t, j, t >= j ? shared.products[1][t][j] * factor : 0.0f);
            if constexpr (IS_DELTA) taken.by[t][j] = t > j ? taken.by[t][CHUNK] * (shared.products[0][t][j] * factor) : 0.0f;
        }
        head_here.advancing[j] = expf(sum);
        float before = 0.0f;
#pragma unroll
        for (u32 t = 0; t < CHUNK; ++t) before += t <= j ? g[t] : 0.0f;
        head_here.decays[j] = expf(before);
    }

    DEVICE void run() {
        const u32 at_once = min(op.group, HEADS_AT_ONCE), number = threadIdx.x / CHUNK, j = threadIdx.x % CHUNK;
        Asked asked = ask(number, j);
        open_rows();
        ChunkHead* heads = reinterpret_cast<ChunkHead*>(&shared + 1);
        Taken* taken = reinterpret_cast<Taken*>(heads + at_once);
        __syncthreads();
        multiply_rows();
#pragma unroll 1
        for (u32 begin = 0; begin < op.group; begin += at_once) {
            const u32 count = min(at_once, op.group - begin);
            const bool is_mine = number < count;
            if (is_mine) open_head(heads[number], taken[number], asked, j);
            asked = ask(begin + at_once + number, j);
            __syncthreads();
            if (is_mine) relate(heads[number], taken[number], j);
            __syncthreads();
            if (is_mine) {
                if constexpr (IS_DELTA) invert(heads[number], taken[number], j);
                if (j == CHUNK - 1) heads[number].whole[0] = heads[number].decays[CHUNK - 1];
            }
            __syncthreads();
            constexpr u32 PIECES = HEAD_BYTES<IS_DELTA> / 16;
            for (u32 at = threadIdx.x; at < count * PIECES; at += PREPARERS) {
                u8* to = prompt.heads + (u64(chunk) * op.value_heads + head_of(begin + at / PIECES)) * sizeof(ChunkHead);
                reinterpret_cast<uint4*>(to)[at % PIECES] = reinterpret_cast<const uint4*>(heads + at / PIECES)[at % PIECES];
            }
            __syncthreads();
        }
    }
};
