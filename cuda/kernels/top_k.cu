// The likeliest tokens of a row of logits. Small blocks look through parts of a row, one of 1024 threads at what they found.
#include "common/order.cuh"
#include "common/warp.cuh"

static constexpr u32 NONE = 0xffffffffu;
static constexpr u32 TOO_MANY = 0xfffffffeu;
static constexpr u32 THREADS = 1024;
static constexpr u32 ROOM = 2048;

// A logit and its column as a number: larger for a larger logit, then for a lower column; 0 for what cannot be chosen.
DEVICE u64 rank(float logit, u32 column) {
    if (!(logit > __int_as_float(0xff800000))) return 0; // minus infinity, or not a number
    const u32 bits = __float_as_uint(fminf(logit, __int_as_float(0x7f7fffff)));
    const u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return u64(ordered) << 32 | (NONE - column);
}

DEVICE u32 column_of(u64 rank) { return rank == 0 ? NONE : NONE - u32(rank); }

DEVICE float logit_of(u64 rank) {
    const u32 ordered = u32(rank >> 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

DEVICE u64 larger(u64 a, u64 b) { return a > b ? a : b; }

// The mask of a row, a bit for each column; none if all of them count.
DEVICE const u32* mask_of_row(const u32* mask_of, const u32* masks, u32 columns, u32 row) {
    const u32 mask = mask_of == nullptr ? NONE : mask_of[row];
    return mask == NONE ? nullptr : masks + u64(mask) * ((columns + 31) / 32);
}

// Calls `each` with the rank of every column that is this thread's, 0 where the mask has no bit: it is thread `first` of
// `threads`.
template <typename F> DEVICE void for_own(const float* row, const u32* mask, u32 columns, u32 first, u32 threads, F each) {
    const auto bits = [&](u32 at) { return mask == nullptr ? ~0u : mask[at / 32] >> at % 32; };
    // Four at a time only where no thread is left without: the largest of a few threads say little.
    if (columns % 4 == 0 && columns >= 4 * threads) {
        for (u32 at = 4 * first; at < columns; at += 4 * threads) {
            const float4 four = *reinterpret_cast<const float4*>(row + at);
            const u32 counts = bits(at);
            each(counts & 1 ? rank(four.x, at) : 0);
            each(counts & 2 ? rank(four.y, at + 1) : 0);
            each(counts & 4 ? rank(four.z, at + 2) : 0);
            each(counts & 8 ? rank(four.w, at + 3) : 0);
        }
    } else {
        for (u32 at = first; at < columns; at += threads) each(bits(at) & 1 ? rank(row[at], at) : 0);
    }
}

// Columns that are told apart: (row, column) and the logit there, which is minus infinity until it is put back.
KERNEL set_apart(float* logits, const uint2* apart, float* values, u32 count, u32 columns) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float* at = logits + u64(apart[i].x) * columns + apart[i].y;
    values[i] = *at;
    *at = __int_as_float(0xff800000);
}

KERNEL put_back(float* logits, const uint2* apart, const float* values, u32 count, u32 columns) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) logits[u64(apart[i].x) * columns + apart[i].y] = values[i];
}

// Calls `each` with the logit of every column that is a number, and this thread's.
template <typename F> DEVICE void for_numbers(const float* row, u32 columns, F each) {
    for (u32 at = threadIdx.x; at < columns; at += THREADS) {
        const float logit = fminf(row[at], __int_as_float(0x7f7fffff)); // of a NaN and a number the number
        if (row[at] == row[at]) each(logit);
    }
}

// The largest logit of a row and the sum of exp(logit - largest), a block per row.
KERNEL __launch_bounds__(1024) normalise_rows(const float* logits, float* normalisers, u32 columns) {
    __shared__ float parts[THREADS / 32];
    const float* row = logits + u64(blockIdx.x) * columns;
    float largest = __int_as_float(0xff800000), sum = 0;
    for_numbers(row, columns, [&](float logit) { largest = fmaxf(largest, logit); });
#pragma unroll
    for (u32 offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
    if (lane_id() == 0) parts[warp_id()] = largest;
    __syncthreads();
    for (u32 i = 0; i < THREADS / 32; ++i) largest = fmaxf(largest, parts[i]);
    __syncthreads();
    if (largest > __int_as_float(0xff800000)) {
        for_numbers(row, columns, [&](float logit) { sum += expf(logit - largest); });
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) parts[warp_id()] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    sum = 0;
    for (u32 i = 0; i < THREADS / 32; ++i) sum += parts[i];
    normalisers[2 * blockIdx.x] = largest;
    normalisers[2 * blockIdx.x + 1] = sum;
}

DEVICE u64 warp_best(u64 best) {
#pragma unroll
    for (u32 offset = 16; offset > 0; offset /= 2) best = larger(best, __shfl_xor_sync(ALL_LANES, best, offset));
    return best;
}

// Blocks that share a row, and their threads.
static constexpr u32 PARTS = 64, PART_THREADS = 256;

// The largest of every part of a row: block (part, row).
KERNEL __launch_bounds__(PART_THREADS)
    top_1_of_parts(const float* logits, u64* parts, u32 columns, const u32* mask_of, const u32* masks) {
    __shared__ u64 ranks[PART_THREADS / 32];
    let_next_begin();
    wait_for_inputs();
    u64 best = 0;
    const u32* mask = mask_of_row(mask_of, masks, columns, blockIdx.y);
    for_own(logits + u64(blockIdx.y) * columns, mask, columns, blockIdx.x * PART_THREADS + threadIdx.x, PARTS * PART_THREADS,
            [&](u64 rank) { best = larger(best, rank); });
    best = warp_best(best);
    if (lane_id() == 0) ranks[warp_id()] = best;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 i = 0; i < PART_THREADS / 32; ++i) best = larger(best, ranks[i]);
    parts[blockIdx.y * PARTS + blockIdx.x] = best;
}

// The largest of the parts of a row, a warp per row.
KERNEL top_1(const u64* parts, u32* tokens, float* values) {
    let_next_begin();
    wait_for_inputs();
    parts += blockIdx.x * PARTS;
    const u64 best = warp_best(larger(parts[lane_id()], parts[lane_id() + 32]));
    if (lane_id() == 0) tokens[blockIdx.x] = column_of(best), values[blockIdx.x] = logit_of(best);
}

// Sorts `count` ranks, a power of two up to ROOM, the largest first.
DEVICE void sort(u64* ranks, u32 count) {
    for (u32 size = 2; size <= count; size *= 2) {
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            for (u32 i = threadIdx.x; i < count / 2; i += THREADS) {
                const u32 low = 2 * stride * (i / stride) + i % stride, high = low + stride;
                const bool falling = (low & size) == 0;
                const u64 a = ranks[low], b = ranks[high];
                if ((a < b) == falling) {
                    ranks[low] = b;
                    ranks[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

// Lanes that share their largest, so that a row has GROUPS of them.
static constexpr u32 GROUP = 16, GROUPS = PARTS * PART_THREADS / GROUP;
static_assert(GROUPS == THREADS, "who sorts them has a thread for each");

// What is known of a row while its likeliest tokens are looked for.
struct Search {
    u64 largest[GROUPS];
    // What is at least as large as `least`: at least as many as are wanted, if there are.
    u64 ranks[ROOM];
    u64 least;
    u64 found;
};

// The largest of every group: block (part, row).
KERNEL __launch_bounds__(PART_THREADS)
    top_of_groups(const float* logits, Search* searches, u32 columns, const u32* mask_of, const u32* masks) {
    let_next_begin();
    wait_for_inputs();
    const u32* mask = mask_of_row(mask_of, masks, columns, blockIdx.y);
    const u32 thread = blockIdx.x * PART_THREADS + threadIdx.x;
    u64 best = 0;
    for_own(logits + u64(blockIdx.y) * columns, mask, columns, thread, PARTS * PART_THREADS,
            [&](u64 rank) { best = larger(best, rank); });
#pragma unroll
    for (u32 offset = GROUP / 2; offset > 0; offset /= 2) best = larger(best, __shfl_xor_sync(ALL_LANES, best, offset));
    if (lane_id() % GROUP == 0) searches[blockIdx.y].largest[thread / GROUP] = best;
}

// The `count`-th of these, which no fewer than `count` are as large as: a block per row.
KERNEL __launch_bounds__(1024) least_of_row(Search* searches, u32 count) {
    __shared__ u64 ranks[GROUPS];
    Search& search = searches[blockIdx.x];
    let_next_begin();
    wait_for_inputs();
    ranks[threadIdx.x] = search.largest[threadIdx.x];
    __syncthreads();
    sort(ranks, GROUPS);
    if (threadIdx.x == 0) search.least = larger(ranks[count - 1], 1), search.found = 0;
}

// What is at least as large: block (part, row).
KERNEL __launch_bounds__(PART_THREADS)
    collect_of_parts(const float* logits, Search* searches, u32 columns, const u32* mask_of, const u32* masks) {
    let_next_begin();
    wait_for_inputs();
    const u32* mask = mask_of_row(mask_of, masks, columns, blockIdx.y);
    Search& search = searches[blockIdx.y];
    const u64 least = search.least;
    for_own(logits + u64(blockIdx.y) * columns, mask, columns, blockIdx.x * PART_THREADS + threadIdx.x, PARTS * PART_THREADS,
            [&](u64 rank) {
                if (rank < least) return;
                const u64 at = atomicAdd(&search.found, u64(1));
                if (at < ROOM) search.ranks[at] = rank;
            });
}

// tokens[row][i], values[row][i]: the i-th largest. TOO_MANY if there was no room for all that had to be collected.
KERNEL __launch_bounds__(1024) top_k_rows(const Search* searches, u32* tokens, float* values, u32 count) {
    __shared__ u64 ranks[ROOM];
    const Search& search = searches[blockIdx.x];
    tokens += u64(blockIdx.x) * count;
    values += u64(blockIdx.x) * count;
    let_next_begin();
    wait_for_inputs();
    const u64 found = search.found;
    if (found > ROOM) {
        if (threadIdx.x == 0) tokens[0] = TOO_MANY;
        return;
    }
    u32 sorted = 2;
    while (sorted < found) sorted *= 2;
    for (u32 i = threadIdx.x; i < sorted; i += THREADS) ranks[i] = i < found ? search.ranks[i] : 0;
    __syncthreads();
    sort(ranks, sorted);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u64 rank = i < sorted ? ranks[i] : 0;
        tokens[i] = column_of(rank);
        values[i] = logit_of(rank);
    }
}
