// What a memory of segments says, mixed into what attention has found (ALGORITHMS 4.2): the queries of a KV head and of some
// rows of a sequence go through its matrix and through the two layers of the gates, all in f32.
//
// A sum has one order, whatever else is in a step: inputs are cut into parts by the shape of a layer alone, and the sums of
// the parts are added in their order.
#include "common/memory.cuh"
#include "common/order.cuh"
#include "common/step.cuh"
#include "common/warp.cuh"

static constexpr u32 THREADS = 256, WARPS = THREADS / 32;
// Queries that a thread has at once, many or few, and how many of them are put together at once.
static constexpr u32 MANY = 16, FEW = 4;
// Hidden columns that are there at once.
static constexpr u32 HIDDEN = 256;

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

    DEVICE u32 group() const { return heads / kv_heads; }
};

static_assert(sizeof(ReadMemory) == 120, "as in src/ops/read_memory.rs");

// A product of rows of `x`, whose stride is a multiple of four, and a matrix `[inputs][outputs]`, that may have other columns
// beside these; and what becomes of it.
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

template <u32 WIDTH> struct Columns {
    float of[WIDTH];
    DEVICE void load(const float* from) {
        if constexpr (WIDTH == 4) {
            const float4 x = *reinterpret_cast<const float4*>(from);
            of[0] = x.x, of[1] = x.y, of[2] = x.z, of[3] = x.w;
        } else {
            of[0] = *from;
        }
    }
};

// The product of `QUERIES` rows. A thread has `WIDTH` neighbouring columns and a part of the inputs.
template <u32 QUERIES, u32 WIDTH> __device__ __noinline__ void multiply(const Product& product, float* partial) {
    const float* x = product.x;
    const u32 x_stride = product.x_stride;
    const u32 wide = product.outputs / WIDTH, parts = max(1u, THREADS / wide), across = min(wide, THREADS);
    const u32 each = ceil_div(ceil_div(product.inputs, parts), 4u) * 4, part = threadIdx.x / across;
    for (u32 base = 0; base < wide; base += THREADS) {
        const u32 column = (base + threadIdx.x % across) * WIDTH;
        const bool works = part < parts && column < product.outputs;
        const u32 begin = part * each, end = works ? min(product.inputs, begin + each) : 0;
        float sums[QUERIES][WIDTH] = {};
        u32 k = begin;
#pragma unroll(QUERIES == FEW ? 4 : 1)
        for (; k + 4 <= end; k += 4) {
            Columns<WIDTH> rows[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) rows[i].load(product.matrix + u64(k + i) * product.stride + column);
#pragma unroll
            for (u32 q = 0; q < QUERIES; ++q) {
                const float4 by = *reinterpret_cast<const float4*>(x + q * x_stride + k);
                const float of[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
                for (u32 i = 0; i < 4; ++i)
#pragma unroll
                    for (u32 c = 0; c < WIDTH; ++c) sums[q][c] = fmaf(of[i], rows[i].of[c], sums[q][c]);
            }
        }
        for (; k < end; ++k) {
            Columns<WIDTH> row;
            row.load(product.matrix + u64(k) * product.stride + column);
#pragma unroll
            for (u32 q = 0; q < QUERIES; ++q)
#pragma unroll
                for (u32 c = 0; c < WIDTH; ++c) sums[q][c] = fmaf(x[q * x_stride + k], row.of[c], sums[q][c]);
        }
        const u32 width = across * WIDTH;
#pragma unroll
        for (u32 first = 0; first < QUERIES; first += FEW) {
            __syncthreads();
            if (part < parts) {
#pragma unroll
                for (u32 q = 0; q < FEW; ++q)
#pragma unroll
                    for (u32 c = 0; c < WIDTH; ++c)
                        partial[(part * FEW + q) * width + threadIdx.x % across * WIDTH + c] = sums[first + q][c];
            }
            __syncthreads();
            for (u32 i = threadIdx.x; i < FEW * width; i += THREADS) {
                const u32 q = i / width, c = i % width;
                float sum = 0.0f;
                for (u32 p = 0; p < parts; ++p) sum += partial[(p * FEW + q) * width + c];
                if (base * WIDTH + c < product.outputs) product.finish(first + q, base * WIDTH + c, sum);
            }
        }
    }
    __syncthreads();
}

template <u32 QUERIES> DEVICE void multiply(const Product& product, float* partial) {
    if (((product.outputs | product.stride) & 3) == 0) {
        multiply<QUERIES, 4>(product, partial);
    } else {
        multiply<QUERIES, 1>(product, partial);
    }
}

// Rows of shared memory: every row begins at a multiple of four floats.
DEVICE u32 padded(u32 columns) { return ceil_div(columns, 4u) * 4; }

// `count` queries of a KV head, from number `first` of those of the rows that begin at `row`.
template <u32 QUERIES>
DEVICE void read(const ReadMemory& op, u32 slot, u32 row, u32 first, u32 count, float* shared) {
    const u32 kv_head = blockIdx.y, group = op.group(), value_stride = padded(op.value_dim), hidden_stride = padded(min(op.hidden, HIDDEN));
    float *partial = shared, *inverse = partial + 4 * THREADS * FEW;
    float *queries = inverse + MANY, *found = queries + op.at_once * padded(op.key_dim);
    float *hidden = found + op.at_once * value_stride, *result = hidden + op.at_once * hidden_stride;
    const u64 of_head = u64(slot) * op.kv_heads + kv_head;
    const auto head_of = [&](u32 query) { return kv_head * group + (first + query) % group; };
    const auto place_of = [&](u32 query) { return u64(row + (first + query) / group) * op.heads + head_of(query); };
    for (u32 i = threadIdx.x; i < QUERIES * op.key_dim; i += THREADS) {
        const u32 query = i / op.key_dim, column = i % op.key_dim;
        const float x = query < count ? positive(op.q[place_of(query) * op.key_dim + column]) : 0.0f;
        queries[query * padded(op.key_dim) + column] = x;
    }
    __syncthreads();
    const float* norm = op.norms + of_head * op.key_dim;
    for (u32 query = warp_id(); query < QUERIES; query += WARPS) {
        float total = 0.0f;
        for (u32 k = lane_id(); k < op.key_dim; k += 32) total = fmaf(queries[query * padded(op.key_dim) + k], norm[k], total);
        total = warp_sum(total);
        if (lane_id() == 0) inverse[query] = 1.0f / fmaxf(total, 1e-10f);
    }
    for (u32 i = threadIdx.x; i < QUERIES * op.value_dim; i += THREADS)
        result[i / op.value_dim * value_stride + i % op.value_dim] = op.fc2_bias[i % op.value_dim];
    const float* matrix = op.matrices + of_head * op.key_dim * op.value_dim;
    multiply<QUERIES>({queries, padded(op.key_dim), matrix, op.value_dim, op.key_dim, op.value_dim, found, value_stride, inverse, nullptr},
                      partial);
    for (u32 begin = 0; begin < op.hidden; begin += HIDDEN) {
        const u32 columns = min(HIDDEN, op.hidden - begin);
        multiply<QUERIES>({found, value_stride, op.fc1 + begin, op.hidden, op.value_dim, columns, hidden, hidden_stride, nullptr,
                           op.fc1_bias + begin},
                          partial);
        const float* fc2 = op.fc2 + u64(begin) * op.value_dim;
        multiply<QUERIES>({hidden, hidden_stride, fc2, op.value_dim, columns, op.value_dim, result, value_stride, nullptr, nullptr},
                          partial);
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

// A block per some rows and KV head.
KERNEL __launch_bounds__(THREADS, 2) read_memory(StepView step, ReadMemory op) {
    extern __shared__ __align__(16) float shared[];
    let_next_begin();
    wait_for_inputs();
    const u32 end = min((blockIdx.x + 1) * op.rows, step.rows());
    for (u32 row = blockIdx.x * op.rows; row < end;) {
        const u32 number = step.row_span[row];
        const Span& span = step.spans[number];
        const u32 stop = min(end, span.first + span.rows), queries = (stop - row) * op.group();
        for (u32 first = 0; step.bound(number, op.ordinal).has_memory() && first < queries;) {
            const u32 count = min(op.at_once, queries - first);
            if (count <= FEW) {
                read<FEW>(op, span.slot, row, first, count, shared);
            } else {
                read<MANY>(op, span.slot, row, first, count, shared);
            }
            first += count;
        }
        row = stop;
    }
}
