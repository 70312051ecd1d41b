// Tokens that come one by one make others go: for several layers at once it is found out which, by the scores of lately, and
// what stays is remembered in its new order (ALGORITHMS 5.4).
#include "common/slake.cuh"

static constexpr u32 THREADS = 256, WARPS = THREADS / 32;
static constexpr u64 NONE = ~u64(0);

// A number that orders as the score does.
DEVICE u32 ordered(float score) {
    const u32 bits = __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE u64 warp_least(u64 x) {
#pragma unroll
    for (u32 by = 16; by > 0; by /= 2) x = min(x, __shfl_xor_sync(ALL_LANES, x, by));
    return x;
}

// The tokens of the lowest scores go, of equal ones the oldest, but neither the first `sinks` tokens nor those from `window`
// on. Block (KV head, layer). Dynamic shared memory: `most` tokens, twice, each rounded up to four.
KERNEL __launch_bounds__(THREADS) slake_choose(Moving op, u32 slot, u32 sinks, u32 window, u32 by_scores) {
    extern __shared__ u32 chosen[];
    __shared__ u64 least[2][WARPS];
    const Leaving leaving = op.leaving[blockIdx.y];
    const EvictionState layer = op.layers[leaving.layer];
    const u32 head = blockIdx.x, held = leaving.held, keep = leaving.keep, count = held - keep;
    if (head >= layer.pages.kv_heads) return;
    const u64 first = (u64(slot) * layer.pages.kv_heads + head) * layer.capacity;
    float* scores = layer.scores + first;
    u32 *positions = layer.positions + first, *gone = chosen + (op.most + 3 & ~3u);
    auto position = [&](u32 token) {
        return token < leaving.stayed ? positions[token] : leaving.since + token - leaving.stayed;
    };
    // The least key of the thread's own tokens behind one that was chosen. Positions make keys different.
    u64 own = NONE;
    u32 own_token = 0;
    auto look = [&](bool is_first, u64 behind) {
        own = NONE;
        for (u32 token = threadIdx.x; token < held; token += THREADS) {
            const u32 at = position(token);
            if (at < sinks || at >= window) continue;
            const u64 key = u64(by_scores ? ordered(scores[token]) : 0) << 32 | at;
            if (key < own && (is_first || key > behind)) own = key, own_token = token;
        }
    };
    look(true, 0);
    for (u32 n = 0; n < count; ++n) {
        const u64 of_warp = warp_least(own);
        if (lane_id() == 0) least[n % 2][warp_id()] = of_warp;
        __syncthreads();
        u64 next = least[n % 2][0];
#pragma unroll
        for (u32 w = 1; w < WARPS; ++w) next = min(next, least[n % 2][w]);
        if (own == next && own != NONE) {
            chosen[n] = own_token;
            look(false, next);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        u32 before = 0;
        for (u32 j = 0; j < count; ++j) before += chosen[j] < chosen[i];
        gone[before] = chosen[i];
        op.gone[u64(blockIdx.y) * op.heads * op.most + u64(head) * count + before] = chosen[i];
    }
    // Those that stayed since then have positions of their own from now on.
    for (u32 token = leaving.stayed + threadIdx.x; token < keep; token += THREADS) positions[token] = position(token);
    __syncthreads();
    u32 holes = 0;
    while (holes < count && gone[holes] < keep) ++holes;
    // Rows behind those that are kept go into the places that became free, in their order.
    u32* moves = op.moves + 2 * op.number(blockIdx.y, head) * op.most;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 from = keep + i;
        u32 before = 0;
        bool stays = true;
        for (u32 j = holes; j < count && gone[j] <= from; ++j) gone[j] == from ? stays = false : ++before;
        if (!stays) continue;
        const u32 number = i - before, to = gone[number];
        moves[2 * number] = from, moves[2 * number + 1] = to;
        scores[to] = scores[from], positions[to] = position(from);
    }
    if (threadIdx.x == 0) op.counts[op.number(blockIdx.y, head)] = holes;
    __syncthreads();
    for (u32 token = keep + threadIdx.x; token < layer.capacity; token += THREADS) scores[token] = 0.0f;
}
