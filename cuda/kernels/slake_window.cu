// Which tokens the last queries read, and what would be lost without some of them (ALGORITHMS 5.1, 5.2): passes over the
// keys that are held, of which no more than the scores of some tokens is ever there. A block has `PART` tokens and a
// head; what blocks find out is added up in their order.
#include "common/slake.cuh"

static constexpr u32 THREADS = 256, WARPS = THREADS / 32, TOKENS = 64, PART = 1024, CHUNK_COLUMNS = 32, AT_ONCE = 32;
// Most queries of a window, and those of them that a warp has.
static constexpr u32 QUERIES = 128, OF_WARP = QUERIES / WARPS;

struct Window {
    Pages pages;
    const u32* table;
    const u16* queries; // of the slot: [window][heads * key_dim]
    u32 heads, window; // queries that are remembered, and that there is room for wherever something is kept by query
    u32 held;
    u32 first, count; // position of the first query, and how many there are: the last tokens that are held
    float scale;

    DEVICE u32 group() const { return heads / pages.kv_heads; }
    DEVICE u32 old() const { return held - count; }
    // Place of what this block found out of a query.
    DEVICE u64 by_query(u32 head, u32 query) const { return (u64(blockIdx.x) * heads + head) * window + query; }
};

static_assert(sizeof(Window) == 80, "as in src/ops/slake.rs");

struct Tile {
    float scores[QUERIES][TOKENS + 1]; // powers of 2; minus infinity for what a query does not see
    float keys[TOKENS][CHUNK_COLUMNS + 1];
    float queries[AT_ONCE][CHUNK_COLUMNS + 1];
};

// The scores of the tokens from `start` on for the queries of a head.
template <u32 KV> DEVICE void score(const Window& window, u32 head, u32 start, Tile& tile) {
    const Pages& pages = window.pages;
    const u32 kv_head = head / window.group(), key_dim = pages.key_dim, x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (u32 first = 0; first < window.count; first += AT_ONCE) {
        float sums[4][2] = {};
        for (u32 begin = 0; begin < key_dim; begin += CHUNK_COLUMNS) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < TOKENS * CHUNK_COLUMNS; i += THREADS) {
                const u32 row = i / CHUNK_COLUMNS, token = start + row, column = begin + i % CHUNK_COLUMNS;
                float k = 0.0f;
                if (token < window.held && column < key_dim) {
                    const HeadPage page = head_page<KV>(pages, window.table[token >> pages.shift], kv_head);
                    k = element<KV>(page.keys + (token & (pages.page_size() - 1)) * page.key_stride, column);
                }
                tile.keys[row][i % CHUNK_COLUMNS] = k;
            }
            for (u32 i = threadIdx.x; i < AT_ONCE * CHUNK_COLUMNS; i += THREADS) {
                const u32 query = first + i / CHUNK_COLUMNS, column = begin + i % CHUNK_COLUMNS;
                float q = 0.0f;
                if (query < window.count && column < key_dim) {
                    const u32 at = (window.first + query) % window.window;
                    q = to_float(f16{window.queries[(u64(at) * window.heads + head) * key_dim + column]}) * window.scale;
                }
                tile.queries[i / CHUNK_COLUMNS][i % CHUNK_COLUMNS] = q;
            }
            __syncthreads();
#pragma unroll 8
            for (u32 c = 0; c < CHUNK_COLUMNS; ++c) {
                const float q[2] = {tile.queries[y][c], tile.queries[y + 16][c]};
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const float k = tile.keys[x + 16 * i][c];
                    sums[i][0] = fmaf(q[0], k, sums[i][0]);
                    sums[i][1] = fmaf(q[1], k, sums[i][1]);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 token = start + x + 16 * i;
            float by = 1.0f;
            if (has_scales<KV>() && token < window.held) {
                const HeadPage page = head_page<KV>(pages, window.table[token >> pages.shift], kv_head);
                by = to_float(page.key_scales[token & (pages.page_size() - 1)]);
            }
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                const u32 query = first + y + 16 * n;
                const bool sees = query < window.count && token <= window.old() + query;
                if (query < QUERIES) tile.scores[query][x + 16 * i] = sees ? sums[i][n] * by : MINUS_INFINITY;
            }
        }
    }
    __syncthreads();
}

// Calls `visit(start)` for the tokens of the part of this block, `TOKENS` at a time.
template <typename Visit> DEVICE void each_tile(u32 held, Visit visit) {
    const u32 begin = blockIdx.x * PART, end = min(begin + PART, held);
    for (u32 start = begin; start < end; start += TOKENS) visit(start);
}

// The largest score of every query in a part, and the sum of weights relative to it: `[parts][heads][window]`.
template <u32 KV> DEVICE void sum(const Window& window, float2* out) {
    extern __shared__ __align__(16) u8 bytes[];
    Tile& tile = *reinterpret_cast<Tile*>(bytes);
    const u32 head = blockIdx.y;
    float most[OF_WARP], total[OF_WARP];
#pragma unroll
    for (u32 i = 0; i < OF_WARP; ++i) most[i] = MINUS_INFINITY, total[i] = 0.0f;
    each_tile(window.held, [&](u32 start) {
        score<KV>(window, head, start, tile);
#pragma unroll
        for (u32 i = 0; i < OF_WARP; ++i) {
            const u32 query = warp_id() + WARPS * i;
            if (query >= window.count) break;
            const float a = tile.scores[query][lane_id()], b = tile.scores[query][lane_id() + 32];
            const float next = fmaxf(most[i], warp_max(fmaxf(a, b)));
            if (next == MINUS_INFINITY) continue;
            total[i] = fmaf(total[i], exp2f(most[i] - next), warp_sum(exp2f(a - next) + exp2f(b - next)));
            most[i] = next;
        }
    });
#pragma unroll
    for (u32 i = 0; i < OF_WARP; ++i) {
        const u32 query = warp_id() + WARPS * i;
        if (lane_id() == 0 && query < window.count) out[window.by_query(head, query)] = make_float2(most[i], total[i]);
    }
}

// The logarithms of the sums over all parts, `[heads][window]`. A block per head, a thread per query.
KERNEL slake_log_sums(const float2* found, u32 parts, u32 window, float* out) {
    const u32 at = blockIdx.x * window + threadIdx.x;
    if (threadIdx.x >= window) return;
    float most = MINUS_INFINITY, total = 0.0f;
    for (u32 part = 0; part < parts; ++part) {
        const float2 x = found[u64(part) * gridDim.x * window + at];
        const float next = fmaxf(most, x.x);
        if (next == MINUS_INFINITY) continue;
        total = fmaf(total, exp2f(most - next), x.y * exp2f(x.x - next));
        most = next;
    }
    out[at] = most + log2f(total);
}

// Adds up over the block, to thread 0.
DEVICE double block_total(double x, double* shared) {
#pragma unroll
    for (u32 offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    __syncthreads();
    if (lane_id() == 0) shared[warp_id()] = x;
    __syncthreads();
    double sum = 0.0;
    for (u32 w = 0; w < WARPS; ++w) sum += shared[w];
    return sum;
}

// Means and variances over the queries: by KV head the score of every token (`ranks`, `stride` to a head), and entropy and
// variance of the weights of the tokens before the window, then the entropy of all: `[parts][kv_heads][3]`. Four
// neighbouring threads have a token.
template <u32 KV> DEVICE void spread(const Window& window, const float* log_sums, float gamma, float* ranks, u32 stride, double* out) {
    extern __shared__ __align__(16) u8 bytes[];
    Tile& tile = *reinterpret_cast<Tile*>(bytes);
    __shared__ double totals[WARPS];
    const u32 kv_head = blockIdx.y, group = window.group(), mine = threadIdx.x / 4, first = threadIdx.x % 4;
    const auto of_four = [](float x) {
        x += __shfl_xor_sync(ALL_LANES, x, 1);
        return x + __shfl_xor_sync(ALL_LANES, x, 2);
    };
    double entropy = 0.0, whole = 0.0, variances = 0.0;
    each_tile(window.held, [&](u32 start) {
        const u32 token = start + mine;
        float rank = 0.0f;
        for (u32 head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            score<KV>(window, head, start, tile);
            float weights = 0.0f, of_token = 0.0f;
            for (u32 query = first; query < window.count; query += 4) {
                const float logarithm = tile.scores[query][mine] - log_sums[head * window.window + query];
                const float weight = exp2f(logarithm);
                tile.scores[query][mine] = weight;
                weights += weight;
                // Minus infinity times 0 is no number.
                of_token -= weight * fmaxf(logarithm, -1000.0f);
            }
            const float mean = of_four(weights) / float(window.count);
            float squares = 0.0f;
            for (u32 query = first; query < window.count; query += 4) {
                const float off = tile.scores[query][mine] - mean;
                squares = fmaf(off, off, squares);
            }
            const float variance = of_four(squares) / float(max(window.count - 1, 1u));
            whole += of_token;
            if (token < window.old()) {
                entropy += of_token;
                if (first == 0) variances += variance;
                rank += (mean + gamma * variance) / float(group);
            }
        }
        if (first == 0 && token < window.held) ranks[u64(kv_head) * stride + token] = rank;
    });
    const double found[3] = {block_total(entropy, totals) * LN2, block_total(variances, totals), block_total(whole, totals) * LN2};
    if (threadIdx.x < 3) out[(blockIdx.x * window.pages.kv_heads + kv_head) * 3 + threadIdx.x] = found[threadIdx.x];
}

// The mean of five neighbours, zeros beyond the ends, for the tokens between `stayed` and `old`; `stride` to a KV head.
KERNEL slake_pool(const float* ranks, u32 stride, u32 stayed, u32 old, u32 held, float* out) {
    const u32 token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= held) return;
    ranks += u64(blockIdx.y) * stride;
    float sum = 0.0f;
    if (token < stayed || token >= old) {
        sum = ranks[token];
    } else {
        for (u32 near = max(token, stayed + 2) - 2; near < min(old, token + 3); ++near) sum += ranks[near];
        sum /= 5.0f;
    }
    out[u64(blockIdx.y) * stride + token] = sum;
}

// Marks what would be evicted: `[kv_heads][stride]` bytes, from `[kv_heads][count]`.
KERNEL slake_mark(const u32* gone, u32 count, u32 stride, u8* marked) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) marked[u64(blockIdx.y) * stride + gone[u64(blockIdx.y) * count + i]] = 1;
}

struct Losses {
    const float* log_sums; // [heads][window]
    const u8* marked;      // [kv_heads][stride]
    u32 stride, gone;
};

// What the tokens that would be evicted have in common, and what the others weigh: by query the sum of the logarithms of
// the former and of the weights of the latter, `[parts][heads][window][2]`.
template <u32 KV> DEVICE void divide(const Window& window, Losses losses, double* out) {
    extern __shared__ __align__(16) u8 bytes[];
    Tile& tile = *reinterpret_cast<Tile*>(bytes);
    const u32 head = blockIdx.y;
    const u8* marked = losses.marked + u64(head / window.group()) * losses.stride;
    double gone[OF_WARP] = {}, kept[OF_WARP] = {};
    each_tile(window.held, [&](u32 start) {
        score<KV>(window, head, start, tile);
#pragma unroll
        for (u32 i = 0; i < OF_WARP; ++i) {
            const u32 query = warp_id() + WARPS * i;
            if (query >= window.count) break;
            float of_gone = 0.0f, of_kept = 0.0f;
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                const u32 at = lane_id() + 32 * n;
                const float logarithm = tile.scores[query][at] - losses.log_sums[head * window.window + query];
                if (start + at >= window.held) continue;
                if (marked[start + at]) {
                    of_gone += logarithm;
                } else {
                    of_kept += exp2f(logarithm);
                }
            }
            gone[i] += warp_sum(of_gone);
            kept[i] += warp_sum(of_kept);
        }
    });
#pragma unroll
    for (u32 i = 0; i < OF_WARP; ++i) {
        const u32 query = warp_id() + WARPS * i;
        double* at = out + window.by_query(head, query) * 2;
        if (lane_id() == 0 && query < window.count) at[0] = gone[i], at[1] = kept[i];
    }
}

// How far weights and values would move, given what `slake_divide` found: `[parts][heads][window][2]`; and the lengths of
// the values, `[parts][heads]`.
template <u32 KV> DEVICE void move(const Window& window, Losses losses, const double* divided, double* out, double* lengths) {
    extern __shared__ __align__(16) u8 bytes[];
    Tile& tile = *reinterpret_cast<Tile*>(bytes);
    __shared__ float of_token[TOKENS];
    __shared__ double totals[WARPS];
    const Pages& pages = window.pages;
    const u32 head = blockIdx.y, kv_head = head / window.group();
    const u8* marked = losses.marked + u64(kv_head) * losses.stride;
    double moved[OF_WARP] = {}, values[OF_WARP] = {}, length = 0.0;
    each_tile(window.held, [&](u32 start) {
        score<KV>(window, head, start, tile);
        for (u32 at = warp_id(); at < TOKENS; at += WARPS) {
            const u32 token = start + at;
            float sum = 0.0f, by = 1.0f;
            if (token < window.held) {
                const HeadPage page = head_page<KV>(pages, window.table[token >> pages.shift], kv_head);
                const u32 in_page = token & (pages.page_size() - 1);
                const u8* value = page.values + in_page * page.value_stride;
                for (u32 c = lane_id(); c < pages.value_dim; c += 32) {
                    const float v = element<KV>(value, c);
                    sum = fmaf(v, v, sum);
                }
                if (has_scales<KV>()) by = to_float(page.value_scales[in_page]);
            }
            sum = sqrtf(warp_sum(sum)) * by;
            if (lane_id() == 0) of_token[at] = sum, length += sum;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < OF_WARP; ++i) {
            const u32 query = warp_id() + WARPS * i;
            if (query >= window.count) break;
            const u32 of_query = head * window.window + query;
            // Scores are relative to the sum of all weights here: so are the weights that would take their place.
            const float mean = float(divided[2 * of_query] / losses.gone), of_mean = exp2f(mean);
            const float total = float(divided[2 * of_query + 1]) + float(losses.gone) * of_mean;
            float off = 0.0f, of_values = 0.0f;
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                const u32 at = lane_id() + 32 * n;
                if (start + at >= window.held) continue;
                const float logarithm = tile.scores[query][at] - losses.log_sums[of_query], weight = exp2f(logarithm);
                const float first_order = of_mean * (1.0f + (fmaxf(logarithm, -1000.0f) - mean) * LN2);
                const float by = fabsf((marked[start + at] ? first_order : weight) / total - weight);
                off += by;
                of_values = fmaf(of_token[at], by, of_values);
            }
            moved[i] += 0.5f * warp_sum(off);
            values[i] += warp_sum(of_values);
        }
        __syncthreads();
    });
#pragma unroll
    for (u32 i = 0; i < OF_WARP; ++i) {
        const u32 query = warp_id() + WARPS * i;
        double* at = out + window.by_query(head, query) * 2;
        if (lane_id() == 0 && query < window.count) at[0] = moved[i], at[1] = values[i];
    }
    const double all = block_total(length, totals);
    if (threadIdx.x == 0) lengths[blockIdx.x * window.heads + head] = all;
}

// Adds up `parts` rows of `count` numbers, in their order.
KERNEL slake_add(const double* found, u32 parts, u32 count, double* out) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    double sum = 0.0;
    for (u32 part = 0; part < parts; ++part) sum += found[u64(part) * count + i];
    out[i] = sum;
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL __launch_bounds__(THREADS) slake_sum_##name(Window window, float2* out) { sum<KV>(window, out); }          \
    KERNEL __launch_bounds__(THREADS) slake_spread_##name(Window window, const float* log_sums, float gamma,          \
                                                          float* ranks, u32 stride, double* out) {                    \
        spread<KV>(window, log_sums, gamma, ranks, stride, out);                                                      \
    }                                                                                                                 \
    KERNEL __launch_bounds__(THREADS) slake_divide_##name(Window window, Losses losses, double* out) {                \
        divide<KV>(window, losses, out);                                                                              \
    }                                                                                                                 \
    KERNEL __launch_bounds__(THREADS) slake_move_##name(Window window, Losses losses, const double* divided,          \
                                                        double* out, double* lengths) {                               \
        move<KV>(window, losses, divided, out, lengths);                                                              \
    }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)
