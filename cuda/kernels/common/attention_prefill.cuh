// Attention of prompts: the rows of a span in whole chunks. A block has a KV head and 64 queries of the heads that share
// it, row after row; keys and values come into shared memory some tokens at a time, always at the same positions, so that
// a row's result does not depend on the rows beside it.
#pragma once
#include "common/tiles.cuh"

static constexpr u32 WARPS = 4;
static constexpr u32 THREADS = 32 * WARPS;
static constexpr u32 QUERIES = 16 * WARPS;

// Some GPUs have 99 KiB of shared memory for a block, others 163 and more.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
static constexpr bool HAS_LITTLE = true;
#else
static constexpr bool HAS_LITTLE = false;
#endif

template <u32 KV, u32 DIM> struct Prefill {
    static constexpr u32 TOKENS = DIM <= 128 ? 64 : HAS_LITTLE ? 16 : 32, EIGHTS = DIM / 8;
    static constexpr u32 TERMS = HAS_LITTLE ? 2 : terms<KV>();
    static constexpr u32 BYTES = element_bytes<KV>(), STAGES = has_scales<KV>() ? 1 : 2;

    // Rows of `DIM` 16-bit elements, their pieces of 16 bytes in an order of their own: see `piece`.
    struct Shared {
        uint4 queries[TERMS][QUERIES][EIGHTS];
        uint4 keys[STAGES][TOKENS][EIGHTS];
        uint4 values[STAGES][TOKENS][EIGHTS];
        float key_scales[TOKENS], value_scales[TOKENS], factors[QUERIES];
    };

    // Eight rows that are read together have their pieces in different banks.
    static DEVICE u32 piece(u32 row, u32 eight) { return eight ^ (row & 7); }

    const StepView& step;
    const Pages& pages;
    const Attention& op;
    const Span& span;
    Shared& shared;
    u32 kv_head, group, first, queries, tokens;

    DEVICE void load_queries() {
        for (u32 i = warp_id(); i < QUERIES; i += WARPS) {
            const bool inside = first + i < queries;
            const u32 query = inside ? first + i : 0;
            const float* q =
                op.q + (u64(span.first + query / group) * op.heads + kv_head * group + query % group) * DIM;
            float x[DIM / 32], most = 0.0f;
#pragma unroll
            for (u32 n = 0; n < DIM / 64; ++n) {
                const float2 pair = reinterpret_cast<const float2*>(q)[n * 32 + lane_id()];
                x[2 * n] = inside ? pair.x : 0.0f, x[2 * n + 1] = inside ? pair.y : 0.0f;
                most = fmaxf(most, fmaxf(fabsf(x[2 * n]), fabsf(x[2 * n + 1])));
            }
            const float power = power_below(warp_max(most)), inverse = 1.0f / power;
            if (lane_id() == 0) shared.factors[i] = power * op.scale * LOG2E;
#pragma unroll
            for (u32 n = 0; n < DIM / 64; ++n) {
                float low = x[2 * n] * inverse, high = x[2 * n + 1] * inverse;
                const u32 word = n * 32 + lane_id();
#pragma unroll
                for (u32 t = 0; t < TERMS; ++t)
                    reinterpret_cast<u32*>(&shared.queries[t][i][piece(i, word / 4)])[word % 4] =
                        take_pair<KV>(low, high);
            }
        }
    }

    // Where eight elements of a token are; tokens behind the last one are the last one.
    struct Place {
        u64 offset;
        HeadPage page;
        u32 row, eight, in_page;
    };

    DEVICE Place place(const u32* table, u32 from, u32 at) const {
        Place found;
        found.row = at / EIGHTS, found.eight = at % EIGHTS;
        const u32 token = min(from + found.row, tokens - 1);
        found.page = head_page<KV>(pages, table[token >> pages.shift], kv_head);
        found.in_page = token & (pages.page_size() - 1);
        found.offset = u64(found.in_page) * (DIM * BYTES) + found.eight * 8 * BYTES;
        return found;
    }

    // Asks for tokens `from..`: into shared memory, or, if they have to be converted, into registers.
    static constexpr u32 EACH = TOKENS * EIGHTS / THREADS;
    Eight<KV> key_words[STAGES == 1 ? EACH : 1], value_words[STAGES == 1 ? EACH : 1];
    float scales[2];

    DEVICE void request_tokens(u32 from, u32 stage) {
        const u32* table = step.table(span.slot, op.ordinal);
#pragma unroll
        for (u32 n = 0; n < EACH; ++n) {
            const Place at = place(table, from, n * THREADS + threadIdx.x);
            if constexpr (STAGES == 1) {
                key_words[n].load(at.page.keys + at.offset);
                value_words[n].load(at.page.values + at.offset);
            } else {
                const u32 to = piece(at.row, at.eight);
                copy_16_async(&shared.keys[stage][at.row][to], at.page.keys + at.offset);
                copy_16_async(&shared.values[stage][at.row][to], at.page.values + at.offset);
            }
        }
        if constexpr (STAGES == 1) {
            if (threadIdx.x < TOKENS) {
                const Place at = place(table, from, threadIdx.x * EIGHTS);
                scales[0] = to_float(at.page.key_scales[at.in_page]);
                scales[1] = to_float(at.page.value_scales[at.in_page]);
            }
        }
        copies_commit();
    }

    // Converts what was asked for.
    DEVICE void put_tokens() {
#pragma unroll
        for (u32 n = 0; n < (STAGES == 1 ? EACH : 0); ++n) {
            const u32 at = n * THREADS + threadIdx.x, row = at / EIGHTS, to = piece(row, at % EIGHTS);
            u32 w[4];
            key_words[n].words(w);
            shared.keys[0][row][to] = make_uint4(w[0], w[1], w[2], w[3]);
            value_words[n].words(w);
            shared.values[0][row][to] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        if (threadIdx.x < TOKENS) {
            shared.key_scales[threadIdx.x] = scales[0];
            shared.value_scales[threadIdx.x] = scales[1];
        }
    }

    // Of the queries of this lane, in its warp: `lane / 4` and the one 8 further on.
    float top[2], sum[2], unit[2];
    float mixed[DIM / 8][4];

    DEVICE void attend(u32 from, u32 stage) {
        const u32 matrix = lane_id() >> 3, line = lane_id() & 7, pair = lane_id() & 3, group_lane = lane_id() >> 2;
        float scores[TOKENS / 8][4];
#pragma unroll
        for (u32 n = 0; n < TOKENS / 8; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; ++k) {
            u32 a[TERMS][4];
            const u32 query = warp_id() * 16 + (matrix & 1) * 8 + line;
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t)
                load_matrices(a[t], &shared.queries[t][query][piece(query, 2 * k + (matrix >> 1))]);
#pragma unroll
            for (u32 n = 0; n < TOKENS / 16; ++n) {
                u32 r[4];
                const u32 token = n * 16 + (matrix >> 1) * 8 + line;
                load_matrices(r, &shared.keys[stage][token][piece(token, 2 * k + (matrix & 1))]);
                const u32 b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
                for (u32 t = 0; t < TERMS; ++t) {
                    multiply<KV>(scores[2 * n], a[t], b[0]);
                    multiply<KV>(scores[2 * n + 1], a[t], b[1]);
                }
            }
        }
        float fade[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 in_block = warp_id() * 16 + group_lane + 8 * i, query = first + in_block;
            const u32 visible = query < queries ? span.context + query / group + 1 : 0;
            const float factor = shared.factors[in_block];
            float most = MINUS_INFINITY, largest = 0.0f;
#pragma unroll
            for (u32 n = 0; n < TOKENS / 8; ++n)
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    float& score = scores[n][2 * i + e];
                    const u32 column = n * 8 + 2 * pair + e;
                    const bool is_seen = from + column < visible;
                    float by = factor;
                    if constexpr (has_scales<KV>()) {
                        by *= shared.key_scales[column];
                        largest = fmaxf(largest, is_seen ? shared.value_scales[column] : 0.0f);
                    }
                    score = is_seen ? score * by : MINUS_INFINITY;
                    most = fmaxf(most, score);
                }
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            most = fmaxf(most, top[i]);
            const float by = most == MINUS_INFINITY ? 0.0f : most;
            fade[i] = exp2f(top[i] - by);
            top[i] = most;
            float added = 0.0f, grown = 1.0f, inverse = 1.0f;
            if constexpr (has_scales<KV>()) {
                // Weights are given the scales of their values, in a unit that grows with those that are seen.
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
                grown = grow_unit(unit[i], largest);
                inverse = 1.0f / unit[i];
            }
#pragma unroll
            for (u32 n = 0; n < TOKENS / 8; ++n)
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    float& score = scores[n][2 * i + e];
                    score = exp2f(score - by);
                    added += score;
                    if constexpr (has_scales<KV>()) score = score * inverse * shared.value_scales[n * 8 + 2 * pair + e];
                }
            sum[i] = fmaf(sum[i], fade[i], added);
            fade[i] *= grown;
        }
#pragma unroll
        for (u32 m = 0; m < DIM / 8; ++m)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) mixed[m][e] *= fade[e >> 1];
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) {
            u32 a[TERMS][4];
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t) {
                a[t][0] = take_pair<KV>(scores[2 * k][0], scores[2 * k][1]);
                a[t][1] = take_pair<KV>(scores[2 * k][2], scores[2 * k][3]);
                a[t][2] = take_pair<KV>(scores[2 * k + 1][0], scores[2 * k + 1][1]);
                a[t][3] = take_pair<KV>(scores[2 * k + 1][2], scores[2 * k + 1][3]);
            }
#pragma unroll
            for (u32 m = 0; m < DIM / 16; ++m) {
                u32 r[4];
                const u32 token = k * 16 + (matrix & 1) * 8 + line;
                load_matrices_transposed(r, &shared.values[stage][token][piece(token, 2 * m + (matrix >> 1))]);
                const u32 b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
                for (u32 t = 0; t < TERMS; ++t) {
                    multiply<KV>(mixed[2 * m], a[t], b[0]);
                    multiply<KV>(mixed[2 * m + 1], a[t], b[1]);
                }
            }
        }
    }

    DEVICE void run() {
        const u32 last_row = min(first + QUERIES, queries) - 1;
        const u32 end = span.context + last_row / group + 1;
        top[0] = top[1] = MINUS_INFINITY, sum[0] = sum[1] = 0.0f, unit[0] = unit[1] = LEAST_UNIT;
#pragma unroll
        for (u32 m = 0; m < DIM / 8; ++m) mixed[m][0] = mixed[m][1] = mixed[m][2] = mixed[m][3] = 0.0f;
        request_tokens(0, 0);
        load_queries();
        for (u32 from = 0, stage = 0; from < end; from += TOKENS) {
            const bool has_next = from + TOKENS < end;
            if constexpr (STAGES == 2) {
                copies_wait<0>();
                __syncthreads(); // this stage is there, and the other one is read no more
                if (has_next) request_tokens(from + TOKENS, stage ^ 1);
                attend(from, stage);
                stage ^= 1;
            } else {
                __syncthreads(); // nothing is read any more
                put_tokens();
                __syncthreads();
                if (has_next) request_tokens(from + TOKENS, 0);
                attend(from, 0);
            }
        }
        const u32 pair = lane_id() & 3;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float total = sum[i];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            const u32 query = first + warp_id() * 16 + (lane_id() >> 2) + 8 * i;
            if (query >= queries) continue;
            const float inverse = (has_scales<KV>() ? unit[i] : 1.0f) / total;
            const u64 at = (u64(span.first + query / group) * op.heads + kv_head * group + query % group) * DIM;
#pragma unroll
            for (u32 m = 0; m < DIM / 8; ++m) {
                const u64 column = at + m * 8 + 2 * pair;
                float2 y = make_float2(mixed[m][2 * i] * inverse, mixed[m][2 * i + 1] * inverse);
                if (op.gate != nullptr) {
                    const float2 gate = *reinterpret_cast<const float2*>(op.gate + column);
                    y.x *= sigmoid(gate.x), y.y *= sigmoid(gate.y);
                }
                *reinterpret_cast<float2*>(op.out + column) = y;
            }
        }
    }
};

template <u32 KV, u32 DIM> DEVICE void prefill(const StepView& step, const Pages& pages, const Attention& op) {
    extern __shared__ __align__(16) u8 bytes[];
    using Whole = Prefill<KV, DIM>;
    let_next_begin();
    wait_for_inputs();
    const Span span = step.span_in(blockIdx.z, op.ordinal);
    const u32 group = op.heads / pages.kv_heads, queries = prompt_rows(span) * group;
    // The last rows see most: they begin first.
    const u32 first = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    if (first >= queries) return;
    Whole whole = {step,    pages, op, span, *reinterpret_cast<typename Whole::Shared*>(bytes),
                   blockIdx.y, group, first, queries, span.context + span.rows};
    whole.run();
}

#define PREFILL(name, KV, DIM)                                                                                        \
    KERNEL __launch_bounds__(THREADS) attention_prefill_##name##_##DIM(StepView step, Pages pages, Attention op) {    \
        prefill<KV, DIM>(step, pages, op);                                                                            \
    }

#define PREFILLS(name, KV)                                                                                            \
    PREFILL(name, KV, 64)                                                                                             \
    PREFILL(name, KV, 128)                                                                                            \
    PREFILL(name, KV, 256)
