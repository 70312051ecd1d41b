// A step of one row a span, and few of them: a recurrence makes the convolution of what it reads itself, and the gated norm of what it gives.
// Each of both would be a launch to wait for, and takes less time than that; with many spans it is the other way round. All bits are those of the kernels they are
// made with otherwise (conv.cu, norm.cu).
#pragma once
#include "common/cluster.cuh"
#include "common/conv.cuh"
#include "common/norm.cuh"
#include "common/recurrence_few.cuh"

// Taps of such a convolution, and columns of such a norm: those of a value head.
static constexpr u32 TAPS = 4, NORMED = 128;

// What is before and behind a recurrence.
struct Fusion {
    Conv conv;
    const float* conv_bias; // [channels], or none
    const float* gate;      // [rows][value_heads * NORMED]
    const float* weight;    // [NORMED]
    float eps;
    u32 activation;
};

static_assert(sizeof(Fusion) == 64, "as in src/ops/around.rs");

// A channel of the convolution: what it needs but its new row.
struct Channel {
    float before[TAPS - 1], weights[TAPS], add;

    // `at`: the ring of the slot. Rows before position 0 are zeros.
    DEVICE void request(const Fusion& fusion, const float* ring, u32 context, u32 channel) {
        const Conv& conv = fusion.conv;
#pragma unroll
        for (u32 i = 0; i < TAPS; ++i) weights[i] = conv.weights[channel * TAPS + i];
#pragma unroll
        for (u32 i = 0; i + 1 < TAPS; ++i) {
            const u32 back = TAPS - 1 - i;
            before[i] = context >= back ? ring[u64((context - back) & (conv.ring - 1)) * conv.channels + channel] : 0.0f;
        }
        add = fusion.conv_bias != nullptr ? fusion.conv_bias[channel] : 0.0f;
    }

    DEVICE float with(float x) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i + 1 < TAPS; ++i) sum = fmaf(weights[i], before[i], sum);
        return activate(SILU, fmaf(weights[TAPS - 1], x, sum) + add);
    }
};

#ifdef HAS_CLUSTERS
// The norm of the outputs of a head, of which every block of a cluster has some: each tells all others its sums of four
// squares, and adds up those of all.
struct HeadNorm {
    static constexpr u32 ROWS = 16, BLOCKS = NORMED / ROWS, WARPS = BLOCK_WARPS;

    struct Shared {
        u64 barrier;
        float sums[NORMED / 4]; // of four squares, as a lane has them in norm.cu
    };
    Shared& shared;

    // Lets others begin to tell.
    explicit DEVICE HeadNorm(Shared& shared) : shared(shared) {
        if (threadIdx.x == 0) {
            barrier_init(&shared.barrier, 1);
            barriers_made();
        }
        __syncwarp(); // the race checker knows the barrier as one that the whole warp has made
        if (threadIdx.x == 0) barrier_expect(&shared.barrier, sizeof(shared.sums));
        cluster_arrive();
    }

    // One over the length of the head: every eight lanes have the output of a row.
    DEVICE float inverse(float y, float eps) {
        float four[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) four[i] = __shfl_sync(ALL_LANES, y, 8 * i);
        const float sum = square_sum(make_float4(four[0], four[1], four[2], four[3]));
        cluster_wait();
        float* at = &shared.sums[blockIdx.x * WARPS + warp_id()];
        if (lane_id() < BLOCKS) store_float_at(at, sum, &shared.barrier, lane_id());
        barrier_wait(&shared.barrier, 0);
        return inverse_root(warp_sum(shared.sums[lane_id()]), NORMED, eps);
    }
};
#endif

template <u32 KIND, typename State, u32 QUADS> struct Row : Few<KIND, State, QUADS, BLOCK_WARPS, 1, ROWS_OF_FOUR> {
    using Base = Few<KIND, State, QUADS, BLOCK_WARPS, 1, ROWS_OF_FOUR>;
    using Base::op, Base::span, Base::head, Base::first_row, Base::shared, Base::key_head, Base::row, Base::is_mine;
    using Base::which;
    static constexpr u32 COLUMNS = Base::COLUMNS, ROWS = Base::ROWS, THREADS = Base::THREADS, OWN_COLUMNS = Base::OWN_COLUMNS;
    const Fusion& fusion;

    DEVICE Row(const Recurrence& op, const Span& span, typename Base::Shared& shared, const Fusion& fusion)
        : Base(op, span, shared), fusion(fusion) {}

    // Key, query and value of the row, convolved; `wait` before the new row is looked at.
    template <typename Wait> DEVICE void convolve(Wait wait) {
        const Conv& conv = fusion.conv;
        float* ring = conv.rings + u64(span.slot) * conv.ring * conv.channels;
        float* to_ring = ring + u64(span.context & (conv.ring - 1)) * conv.channels;
        const float* x = op.inputs + u64(span.first) * op.columns;
        const u32 first_of[2] = {op.keys_at + key_head * op.key_dim, op.queries_at + key_head * op.key_dim};
        const u32 value = op.values_at + head * op.value_dim + first_row + threadIdx.x;
        const bool has_value = threadIdx.x < min(ROWS, Base::rows_left());
        const bool keeps = first_row == 0 && op.is_first_of_key_head(head);
        Channel channels[2][OWN_COLUMNS] = {}, of_value = {};
        if (has_value) of_value.request(fusion, ring, span.context, value);
#pragma unroll
        for (u32 i = 0; i < 2 * OWN_COLUMNS; ++i) {
            const u32 column = threadIdx.x + i / 2 * THREADS;
            if (column < op.key_dim) channels[i % 2][i / 2].request(fusion, ring, span.context, first_of[i % 2] + column);
        }
        wait();
        float of_columns[2][OWN_COLUMNS];
#pragma unroll
        for (u32 i = 0; i < 2 * OWN_COLUMNS; ++i) {
            const u32 column = threadIdx.x + i / 2 * THREADS;
            of_columns[i % 2][i / 2] = column < op.key_dim ? load_float(x + first_of[i % 2] + column) : 0.0f;
        }
        const float of_row = has_value ? load_float(x + value) : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 2 * OWN_COLUMNS; ++i) {
            const u32 column = threadIdx.x + i / 2 * THREADS;
            const float y = channels[i % 2][i / 2].with(of_columns[i % 2][i / 2]);
            // Nobody else reads it in this launch.
            if (keeps && column < op.key_dim) to_ring[first_of[i % 2] + column] = of_columns[i % 2][i / 2];
            if (column < COLUMNS) (i % 2 ? shared.q : shared.k)[0][column] = column < op.key_dim ? y : 0.0f;
        }
        if (threadIdx.x < ROWS) shared.u[0][threadIdx.x] = has_value ? of_value.with(of_row) : 0.0f;
        if (has_value) to_ring[value] = of_row;
    }

    // The row; its output is stored if `PUTS`, and given. `ask` once what earlier launches have made may be read.
    template <bool PUTS, typename Ask> DEVICE float run(Ask ask) {
        const auto [base, held, sum] = Base::template start<false>(span.flush(), [&] {
            convolve([&] {
                wait_for_inputs();
                Base::request_steps(0, 1);
                ask();
            });
        }, [] {});
        if constexpr (Base::PER_CHANNEL) {
            return Base::template run_channels<true>([&] { return Base::template places<PUTS>(); }, 0, base, held);
        } else {
            return Base::template run_one<PUTS>(base, held, sum);
        }
    }

    // With the norm of what it gives.
    DEVICE void run_normed() {
#ifdef HAS_CLUSTERS
        __shared__ HeadNorm::Shared of_head;
        HeadNorm norm(of_head);
        const u32 at = first_row + row;
        const float weight = fusion.weight[at];
        const u64 place = (u64(span.first) * op.value_heads + head) * NORMED + at;
        float gate = 0.0f;
        const float y = run<false>([&] { gate = load_float(fusion.gate + place); });
        const float x = normed(y, norm.inverse(y, fusion.eps), weight);
        if (is_mine() && which == 0) op.out[place] = x * activate(fusion.activation, gate);
#endif
    }
};

template <u32 KIND, typename State, u32 QUADS, bool HAS_NORM>
DEVICE void recur_row(const StepView& step, const Recurrence& op, const Fusion& fusion) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    using Whole = Row<KIND, State, QUADS>;
    const Span span = step.spans[blockIdx.z];
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes), fusion);
    if constexpr (HAS_NORM) {
        block.run_normed();
    } else {
        block.template run<true>([] {});
    }
}

// By most columns of a key.
#define ROW(name, KIND, State, QUADS)                                                                                  \
    KERNEL __launch_bounds__(32 * BLOCK_WARPS, 4) name##_row(StepView step, Recurrence op, Fusion fusion) {                     \
        recur_row<KIND, State, QUADS, false>(step, op, fusion);                                                        \
    }

// The same with the norm, in a cluster of blocks that have all rows of a head.
#ifdef HAS_CLUSTERS
#define NORMED_ROW(name, KIND, State, QUADS)                                                                           \
    KERNEL __cluster_dims__(HeadNorm::BLOCKS, 1, 1) __launch_bounds__(32 * BLOCK_WARPS, 4)                                      \
        name##_normed_row(StepView step, Recurrence op, Fusion fusion) {                                               \
        recur_row<KIND, State, QUADS, true>(step, op, fusion);                                                         \
    }
#else
#define NORMED_ROW(name, KIND, State, QUADS)
#endif
