// Attention of prompts over pages of f16 on GPUs of compute capability 9.0: the rows of a span in whole chunks, as in
// attention_prefill.cuh. A block has a KV head and 128 queries of the heads that share it, row after row. Four warps bring keys
// and values into shared memory, twice four multiply, and work out the weights of the next tokens while the values of the last
// ones are mixed. Queries and weights are f16, 11 bits: what products of their results would keep anyway.
#pragma once
#include "common/attention.cuh"
#include "common/hopper.cuh"

#ifdef HAS_WARPGROUPS

DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <u32 DIM> struct WidePrefill {
    static constexpr u32 GROUPS = 2, THREADS = 128 * (GROUPS + 1), QUERIES = 64 * GROUPS;
    static constexpr u32 TOKENS = DIM <= 128 ? 128 : 64, STAGES = 2, HALVES = DIM / 64;

    // Rows of 64 columns in eight pieces of 16 bytes, piece `i` of row `r` at `i ^ (r % 8)`.
    struct Shared {
        uint4 queries[HALVES][QUERIES][8];
        uint4 keys[STAGES][HALVES][TOKENS][8];
        uint4 values[STAGES][HALVES][TOKENS][8];
        u64 has_keys[STAGES], has_values[STAGES], keys_read[STAGES], values_read[STAGES];
    };

    const StepView& step;
    const Pages& pages;
    const Attention& op;
    const Span& span;
    Shared& shared;
    u32 kv_head, group, first, queries, end; // `end`: tokens that any query sees

    DEVICE u32 rounds() const { return ceil_div(end, TOKENS); }

    // Four warps: the thread has a piece of a row of every `AT_ONCE` tokens. What it asked for is handed over when it asked for
    // what comes next.
    DEVICE void bring() const {
        constexpr u32 PIECES = DIM / 8, AT_ONCE = 128 / PIECES;
        const u32 thread = threadIdx.x % 128, row = thread / PIECES, piece = thread % PIECES;
        const u32* table = step.table(span.slot, op.ordinal);
        const u32 in_head = pages.page_size() * DIM * 2; // bytes of its keys in a page
        const u8* base = pages.base + u64(kv_head) * in_head * 2 + piece * 16;
        const auto ask = [&](uint4(&to)[HALVES][TOKENS][8], u32 from, u32 offset) {
#pragma unroll 4
            for (u32 n = 0; n < TOKENS / AT_ONCE; ++n) {
                const u32 at = n * AT_ONCE + row, token = min(from + at, end - 1);
                const u8* page = base + table[token >> pages.shift] * pages.stride;
                copy_16_async(&to[piece / 8][at][piece % 8 ^ (at & 7)],
                              page + offset + (token & (pages.page_size() - 1)) * (DIM * 2));
            }
            copies_commit();
        };
        u64* last = nullptr;
        const auto hand_over = [&](u64* next) {
            if (last != nullptr) {
                copies_wait<1>();
                written_for_engines();
                barrier_arrive(last);
            }
            last = next;
        };
        for (u32 round = 0; round < rounds(); ++round) {
            const u32 stage = round % STAGES, parity = (round / STAGES & 1) ^ 1;
            barrier_wait(&shared.keys_read[stage], parity);
            ask(shared.keys[stage], round * TOKENS, 0);
            hand_over(&shared.has_keys[stage]);
            barrier_wait(&shared.values_read[stage], parity);
            ask(shared.values[stage], round * TOKENS, in_head);
            hand_over(&shared.has_values[stage]);
        }
        copies_wait<0>();
        written_for_engines();
        barrier_arrive(last);
    }

    // A warpgroup. Of the queries of this lane, in its warp: `lane / 4` and the one 8 further on.
    struct Softmax {
        float top[2], sum[2], factor[2], fade[2];
    };
    typedef float Scores[TOKENS / 2];
    typedef float Mixed[DIM / 2];
    typedef u32 Weights[TOKENS / 16][4];

    DEVICE u32 query(u32 i) const { return first + warp_id() * 16 + lane_id() / 4 + 8 * i; }

    // A warp loads its 16 queries, many at a time.
    DEVICE void load_queries(float (&factor)[2]) const {
        constexpr u32 AT_ONCE = DIM <= 128 ? 16 : 8;
#pragma unroll
        for (u32 begin = 0; begin < 16; begin += AT_ONCE) {
            float2 x[AT_ONCE][HALVES];
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 at = first + warp_id() * 16 + begin + n, query = at < queries ? at : 0;
                const u64 row = u64(span.first + query / group) * op.heads + kv_head * group + query % group;
#pragma unroll
                for (u32 half = 0; half < HALVES; ++half) {
                    x[n][half] = reinterpret_cast<const float2*>(op.q + row * DIM)[half * 32 + lane_id()];
                }
            }
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 i = warp_id() * 16 + begin + n;
                float most = 0.0f;
#pragma unroll
                for (u32 half = 0; half < HALVES; ++half) {
                    most = fmaxf(most, fmaxf(fabsf(x[n][half].x), fabsf(x[n][half].y)));
                }
                const u32 bits = __float_as_uint(warp_max(most)) & 0x7f800000u;
                const float power = bits < 0x02000000u || bits > 0x7d000000u ? 1.0f : __uint_as_float(bits);
                const float inverse = copysignf(1.0f / power, op.scale);
                if (lane_id() / 4 == (begin + n) % 8) factor[(begin + n) / 8] = power * fabsf(op.scale) * LOG2E;
#pragma unroll
                for (u32 half = 0; half < HALVES; ++half) {
                    reinterpret_cast<u32*>(&shared.queries[half][i][lane_id() / 4 ^ (i & 7)])[lane_id() % 4] =
                        pack_f16(x[n][half].x * inverse, x[n][half].y * inverse);
                }
            }
        }
        written_for_engines();
    }

    DEVICE void multiply_keys(Scores& scores, u32 stage) const {
        products_begin();
#pragma unroll
        for (u32 k = 0; k < DIM / 16; ++k) {
            const u64 q = rows_of_128(&shared.queries[k / 4][warp_id() / 4 * 64]) + 2 * (k % 4);
            product_f16(scores, q, rows_of_128(&shared.keys[stage][k / 4]) + 2 * (k % 4), k > 0);
        }
        products_commit();
    }

    DEVICE void mix_values(Mixed& mixed, const Weights& weights, u32 stage) const {
        products_begin();
        const u64 v = rows_of_128(&shared.values[stage], sizeof(shared.values[stage][0]));
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) product_f16_transposed(mixed, weights[k], v + 128 * k, 1);
        products_commit();
    }

    // Scores become weights relative to the largest score so far; `fade`: what earlier ones become relative to it.
    DEVICE void weigh(Scores& scores, Softmax& of, u32 from) const {
        if (from + TOKENS > span.context + (first + warp_id() * 16) / group + 1) {
#pragma unroll
            for (u32 i = 0; i < TOKENS / 2; ++i) {
                const u32 token = from + i / 4 * 8 + 2 * (lane_id() & 3) + i % 2;
                if (token > span.context + query(i / 2 % 2) / group) scores[i] = MINUS_INFINITY;
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float most = MINUS_INFINITY, added = 0.0f;
#pragma unroll
            for (u32 n = 0; n < TOKENS / 2; n += 4) most = fmaxf(most, fmaxf(scores[n + 2 * i], scores[n + 2 * i + 1]));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            most = fmaxf(most * of.factor[i], of.top[i]);
            const float by = most == MINUS_INFINITY ? 0.0f : most;
            of.fade[i] = power_of_two(of.top[i] - by);
            of.top[i] = most;
#pragma unroll
            for (u32 n = 0; n < TOKENS / 2; n += 4) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    float& score = scores[n + 2 * i + e];
                    score = power_of_two(fmaf(score, of.factor[i], -by));
                    added += score;
                }
            }
            of.sum[i] = fmaf(of.sum[i], of.fade[i], added);
        }
    }

    // Weights as the left side of the next products.
    DEVICE static void pack_weights(const Scores& scores, Weights& weights) {
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) weights[k][i] = pack_f16(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
        }
    }

    DEVICE void release(u64* barrier) const {
        if (lane_id() == 0) barrier_arrive(barrier);
    }

    DEVICE void attend() const {
        Softmax of = {{MINUS_INFINITY, MINUS_INFINITY}, {0.0f, 0.0f}};
        Scores scores;
        Mixed mixed;
        Weights weights;
#pragma unroll
        for (u32 i = 0; i < DIM / 2; ++i) mixed[i] = 0.0f;
        load_queries(of.factor);
        if (warp_id() < 4) sync_some<1, 128>();
        else sync_some<2, 128>();
        barrier_wait(&shared.has_keys[0], 0);
        multiply_keys(scores, 0);
        products_wait<0>();
        hold(scores);
        release(&shared.keys_read[0]);
        weigh(scores, of, 0);
        pack_weights(scores, weights);
        const u32 last = rounds() - 1;
        for (u32 round = 0; round < last; ++round) {
            const u32 stage = round % STAGES, next = (round + 1) % STAGES;
            barrier_wait(&shared.has_keys[next], (round + 1) / STAGES & 1);
            multiply_keys(scores, next);
            barrier_wait(&shared.has_values[stage], round / STAGES & 1);
            mix_values(mixed, weights, stage);
            products_wait<1>();
            hold(scores);
            release(&shared.keys_read[next]);
            weigh(scores, of, (round + 1) * TOKENS);
            products_wait<0>();
            hold(mixed);
            release(&shared.values_read[stage]);
#pragma unroll
            for (u32 i = 0; i < DIM / 2; ++i) mixed[i] *= of.fade[i / 2 % 2];
            pack_weights(scores, weights);
        }
        barrier_wait(&shared.has_values[last % STAGES], last / STAGES & 1);
        mix_values(mixed, weights, last % STAGES);
        products_wait<0>();
        hold(mixed);
        finish(mixed, of.sum);
    }

    DEVICE void finish(const Mixed& mixed, const float (&sum)[2]) const {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float total = sum[i];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            const u32 at = query(i);
            if (at >= queries) continue;
            const float inverse = 1.0f / total;
            const u64 row = (u64(span.first + at / group) * op.heads + kv_head * group + at % group) * DIM;
#pragma unroll
            for (u32 m = 0; m < DIM / 8; ++m) {
                const u64 column = row + m * 8 + 2 * (lane_id() & 3);
                float2 y = make_float2(mixed[4 * m + 2 * i] * inverse, mixed[4 * m + 2 * i + 1] * inverse);
                if (op.gate != nullptr) {
                    const float2 gate = *reinterpret_cast<const float2*>(op.gate + column);
                    y.x *= sigmoid(gate.x), y.y *= sigmoid(gate.y);
                }
                *reinterpret_cast<float2*>(op.out + column) = y;
            }
        }
    }

    DEVICE void run() {
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; ++stage) {
                barrier_init(&shared.has_keys[stage], 128);
                barrier_init(&shared.has_values[stage], 128);
                barrier_init(&shared.keys_read[stage], 4 * GROUPS);
                barrier_init(&shared.values_read[stage], 4 * GROUPS);
            }
            barriers_made();
        }
        __syncthreads();
        if (threadIdx.x >= 128 * GROUPS) {
            give_registers<40>();
            bring();
        } else {
            take_registers<232>();
            attend();
        }
    }
};

// Block (KV head, queries, span).
template <u32 DIM> DEVICE void wide_prefill(const StepView& step, const Pages& pages, const Attention& op) {
    extern __shared__ __align__(1024) u8 bytes[];
    using Whole = WidePrefill<DIM>;
    let_next_begin();
    wait_for_inputs();
    const Span span = step.span_in(blockIdx.z, op.ordinal);
    const u32 group = op.heads / pages.kv_heads, queries = prompt_rows(span) * group;
    // The last rows see most: they begin first.
    const u32 first = (gridDim.y - 1 - blockIdx.y) * Whole::QUERIES;
    if (first >= queries) return;
    const u32 end = span.context + (min(first + Whole::QUERIES, queries) - 1) / group + 1;
    Whole whole = {step, pages, op, span, *reinterpret_cast<typename Whole::Shared*>(bytes), blockIdx.x, group, first,
                   queries, end};
    whole.run();
}

#define WIDE_PREFILL(DIM)                                                                                             \
    KERNEL __launch_bounds__(384, 1)                                                                                  \
        attention_wide_f16_##DIM(const StepView step, const Pages pages, const Attention op) {                        \
        wide_prefill<DIM>(step, pages, op);                                                                           \
    }

#else
#define WIDE_PREFILL(DIM)
#endif
