// What a memory of segments says, mixed into what attention has found (ALGORITHMS 4.2): the queries of a KV head and of
// some rows of a sequence go through its matrix and through the two layers of the gates, all in f32.
//
// A sum has one order, whatever else is in a step: eight lanes share the inputs of a column, four at a time in turn, and
// what they have is put together in one order.
#include "common/memory.cuh"
#include "common/order.cuh"
#include "common/rotation.cuh"
#include "common/step.cuh"
#include "common/warp.cuh"

static constexpr u32 THREADS = 512, WARPS = THREADS / 32;
// Queries of a block at once, many or few.
static constexpr u32 MANY = 16, FEW = 4;
// Hidden columns that are there at once.
static constexpr u32 HIDDEN = 512;
// Lanes that share the inputs of a column.
static constexpr u32 PARTS = 8;

struct ReadMemory {
    const float* q;        // [rows][heads * key_dim]
    const float* gate;     // [rows][heads * value_dim], before its sigmoid; none: 1
    float* out;            // [rows][heads * value_dim]
    const float* matrices; // [slots][kv_heads][key_dim][value_dim]
    const float* norms;    // [slots][kv_heads][key_dim]
    const float* fc1;      // [value_dim][hidden], transposed
    const float* fc1_bias;
    const float* fc2; // [hidden][value_dim], transposed
    const float* fc2_bias;
    const float* share; // `g` of a channel of a head is at `head * head_stride + channel * channel_stride`
    u32 heads, kv_heads, key_dim, value_dim, hidden;
    u32 head_stride, channel_stride;
    u32 ordinal; // of the page store
    u32 rows;    // of a block
    u32 at_once; // queries there is room for in shared memory: `MANY` or `FEW`
    Back back;   // what is done to queries before

    DEVICE u32 group() const { return heads / kv_heads; }
};

static_assert(sizeof(ReadMemory) == 144, "as in src/ops/read_memory.rs");

// A product of rows of `x`, whose stride is a multiple of four, and a matrix `[inputs][outputs]`, that may have other
// columns beside these; and what becomes of it.
struct Product {
    const float* x;
    u32 x_stride;
    const float* matrix;
    u32 stride, inputs, outputs;
    float* out;
    u32 out_stride;
    const float* by;   // a factor for each row, or
    const float* bias; // to be added, before what is negative becomes 0; none of both: the product is added to `out`

    DEVICE void finish(u32 row, u32 column, float sum) const {
        float& to = out[row * out_stride + column];
        to = by != nullptr ? sum * by[row] : bias != nullptr ? fmaxf(sum + bias[column], 0.0f) : to + sum;
    }
};

// Adds up numbers over lanes that differ in the bits below `2 * OFFSET`: half of those that are left go to each side, until
// a lane has one. Returns which number the first one is that a lane has in the end.
template <u32 OFFSET, u32 COUNT> DEVICE u32 share_out(float* x) {
    if constexpr (OFFSET == 0) {
        return 0;
    } else if constexpr (COUNT == 1) {
        x[0] += __shfl_xor_sync(ALL_LANES, x[0], OFFSET);
        return share_out<OFFSET / 2, 1>(x);
    } else {
        const bool is_upper = lane_id() & OFFSET;
#pragma unroll
        for (u32 i = 0; i < COUNT / 2; ++i) {
            const float other = __shfl_xor_sync(ALL_LANES, is_upper ? x[i] : x[COUNT / 2 + i], OFFSET);
            x[i] = (is_upper ? x[COUNT / 2 + i] : x[i]) + other;
        }
        return (is_upper ? COUNT / 2 : 0) + share_out<OFFSET / 2, COUNT / 2>(x);
    }
}

// The product of `QUERIES` rows. A thread has `WIDTH` neighbouring columns of `EACH` rows and a part of the inputs. What
// is behind the inputs in a row of `x`, up to a multiple of four, is finite.
template <u32 QUERIES, u32 WIDTH> __device__ __noinline__ void multiply(const Product product) {
    constexpr u32 EACH = QUERIES < 8 ? QUERIES : 8, COUNT = EACH * WIDTH, LEFT = COUNT < PARTS ? 1 : COUNT / PARTS;
    // Lanes beyond these have what others have.
    constexpr u32 SAME = COUNT < PARTS ? PARTS / COUNT - 1 : 0;
    const u32 part = threadIdx.x % PARTS, wide = product.outputs / WIDTH, tasks = wide * (QUERIES / EACH);
    // All lanes of a warp go through as many rounds.
    for (u32 first = 0; first < tasks; first += THREADS / PARTS) {
        const u32 task = first + threadIdx.x / PARTS, column = task % wide * WIDTH, row = task / wide * EACH;
        const bool works = task < tasks;
        const float *matrix = product.matrix + column, *x = product.x + (works ? row : 0) * product.x_stride;
        float sums[COUNT] = {};
#pragma unroll(QUERIES == FEW ? 4 : 1)
        for (u32 k = 4 * part; k < product.inputs; k += 4 * PARTS) {
            float values[4][WIDTH];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float* from = matrix + u64(k + i) * product.stride;
                const bool is_there = works && k + i < product.inputs;
                if constexpr (WIDTH == 4) {
                    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (is_there) four = *reinterpret_cast<const float4*>(from);
                    values[i][0] = four.x, values[i][1] = four.y, values[i][2] = four.z, values[i][3] = four.w;
                } else {
                    values[i][0] = is_there ? *from : 0.0f;
                }
            }
#pragma unroll
            for (u32 q = 0; q < EACH; ++q) {
                const float4 by = *reinterpret_cast<const float4*>(x + q * product.x_stride + k);
                const float of[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
                for (u32 i = 0; i < 4; ++i)
#pragma unroll
                    for (u32 c = 0; c < WIDTH; ++c)
                        sums[q * WIDTH + c] = fmaf(of[i], values[i][c], sums[q * WIDTH + c]);
            }
        }
        const u32 begin = share_out<PARTS / 2, COUNT>(sums);
        if (!works || (part & SAME) != 0) continue;
#pragma unroll
        for (u32 i = 0; i < LEFT; ++i) product.finish(row + (begin + i) / WIDTH, column + (begin + i) % WIDTH, sums[i]);
    }
    __syncthreads();
}

template <u32 QUERIES> DEVICE void multiply(const Product& product) {
    if (((product.outputs | product.stride) & 3) == 0) {
        multiply<QUERIES, 4>(product);
    } else {
        multiply<QUERIES, 1>(product);
    }
}

// Rows of shared memory: every row begins at a multiple of four floats.
DEVICE u32 padded(u32 columns) { return ceil_div(columns, 4u) * 4; }

// `count` queries of a KV head, from number `first` of those of the rows that begin at `row`, at a position.
template <u32 QUERIES>
DEVICE void read(const ReadMemory& op, u32 slot, u32 row, u32 position, u32 first, u32 count, float* shared) {
    const u32 kv_head = blockIdx.y, group = op.group();
    const u32 key_stride = padded(op.key_dim), value_stride = padded(op.value_dim), hidden_stride = padded(min(op.hidden, HIDDEN));
    float *inverse = shared, *queries = inverse + MANY, *found = queries + op.at_once * key_stride;
    float *hidden = found + op.at_once * value_stride, *result = hidden + op.at_once * hidden_stride;
    const u64 of_head = u64(slot) * op.kv_heads + kv_head;
    const auto head_of = [&](u32 query) { return kv_head * group + (first + query) % group; };
    const auto place_of = [&](u32 query) { return u64(row + (first + query) / group) * op.heads + head_of(query); };
    for (u32 i = threadIdx.x; i < QUERIES * key_stride; i += THREADS) {
        const u32 query = i / key_stride, column = i % key_stride;
        const bool is_there = query < count && column < op.key_dim;
        if (is_there && op.back.turns(column)) continue;
        queries[i] = is_there ? positive(op.q[place_of(query) * op.key_dim + column]) : 0.0f;
    }
    for (u32 i = threadIdx.x; i < count * op.back.pairs; i += THREADS) {
        const u32 query = i / op.back.pairs, pair = i % op.back.pairs;
        const u32 columns[2] = {op.back.first(pair), op.back.second(pair)};
        const float* q = op.q + place_of(query) * op.key_dim;
        const float a = q[columns[0]], b = q[columns[1]];
        const float2 angle = op.back.angle(pair, position + (first + query) / group);
        queries[query * key_stride + columns[0]] = positive(a * angle.x + b * angle.y);
        queries[query * key_stride + columns[1]] = positive(b * angle.x - a * angle.y);
    }
    for (u32 i = threadIdx.x; i < QUERIES * value_stride; i += THREADS) {
        found[i] = 0.0f;
        result[i] = i % value_stride < op.value_dim ? op.fc2_bias[i % value_stride] : 0.0f;
    }
    for (u32 i = threadIdx.x; i < QUERIES * hidden_stride; i += THREADS) hidden[i] = 0.0f;
    __syncthreads();
    const float* norm = op.norms + of_head * op.key_dim;
    for (u32 query = warp_id(); query < QUERIES; query += WARPS) {
        float total = 0.0f;
        for (u32 k = lane_id(); k < op.key_dim; k += 32) total = fmaf(queries[query * key_stride + k], norm[k], total);
        total = warp_sum(total);
        if (lane_id() == 0) inverse[query] = 1.0f / fmaxf(total, 1e-10f);
    }
    __syncthreads();
    const float* matrix = op.matrices + of_head * op.key_dim * op.value_dim;
    multiply<QUERIES>({queries, key_stride, matrix, op.value_dim, op.key_dim, op.value_dim, found, value_stride, inverse, nullptr});
    for (u32 begin = 0; begin < op.hidden; begin += HIDDEN) {
        const u32 columns = min(HIDDEN, op.hidden - begin);
        const float *fc1 = op.fc1 + begin, *fc2 = op.fc2 + u64(begin) * op.value_dim, *bias = op.fc1_bias + begin;
        multiply<QUERIES>({found, value_stride, fc1, op.hidden, op.value_dim, columns, hidden, hidden_stride, nullptr, bias});
        multiply<QUERIES>({hidden, hidden_stride, fc2, op.value_dim, columns, op.value_dim, result, value_stride, nullptr, nullptr});
    }
    for (u32 i = threadIdx.x; i < count * op.value_dim; i += THREADS) {
        const u32 query = i / op.value_dim, column = i % op.value_dim;
        const u64 at = place_of(query) * op.value_dim + column;
        const float share = sigmoid(op.share[head_of(query) * op.head_stride + column * op.channel_stride]);
        float x = result[query * value_stride + column];
        if (op.gate != nullptr) x *= sigmoid(op.gate[at]);
        op.out[at] = fmaf(share, x - op.out[at], op.out[at]);
    }
    __syncthreads();
}

// Has a line come closer that will be read.
DEVICE void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// A block per some rows and KV head.
KERNEL __launch_bounds__(THREADS) read_memory(StepView step, ReadMemory op) {
    extern __shared__ __align__(16) float shared[];
    let_next_begin();
    // Nobody writes weights: they may come before the queries are there.
    const u64 layer = u64(op.hidden) * op.value_dim, blocks = u64(gridDim.x) * gridDim.y;
    for (u64 i = (blockIdx.y * gridDim.x + blockIdx.x) * u64(THREADS) + threadIdx.x; i < ceil_div(layer, u64(32)); i += blocks * THREADS) {
        prefetch(op.fc1 + 32 * i);
        prefetch(op.fc2 + 32 * i);
    }
    wait_for_inputs();
    const u32 end = min((blockIdx.x + 1) * op.rows, step.rows());
    for (u32 row = blockIdx.x * op.rows; row < end;) {
        const u32 number = step.row_span[row];
        const Span& span = step.spans[number];
        const u32 stop = min(end, span.first + span.rows), queries = (stop - row) * op.group();
        const Bound bound = step.bound(number, op.ordinal);
        const u32 position = op.back.position(bound.held + row - span.first, span.context - bound.held);
        for (u32 first = 0; bound.has_memory() && first < queries;) {
            const u32 count = min(op.at_once, queries - first);
            if (count <= FEW) {
                read<FEW>(op, span.slot, row, position, first, count, shared);
            } else {
                read<MANY>(op, span.slot, row, position, first, count, shared);
            }
            first += count;
        }
        row = stop;
    }
}
