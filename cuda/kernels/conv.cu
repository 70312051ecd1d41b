// Depthwise causal convolutions with a ring of earlier rows per slot. A thread has a channel of a span, or of a block of
// rows of a long one: it keeps the rows its taps reach back to in registers.
#include "common/conv.cuh"
#include "common/order.cuh"
#include "common/step.cuh"

// Rows of a block.
static constexpr u32 ROWS = 32;
static constexpr u32 MOST_TAPS = 8;

// Scratch of a block of a long span: `[taps - 1][channels]`.
DEVICE float* halo_at(const Conv& conv, const Span& span, u32 first, u32 channel, float* halo) {
    const u64 block = (span.first + first) / ROWS + blockIdx.z;
    return halo + block * (conv.taps - 1) * conv.channels + channel;
}

// Keeps the rows that blocks of long spans reach back to, before they are overwritten, in `x` or in the ring.
// `input(row)` is what is convolved.
template <typename Input> DEVICE void keep(const StepView& step, const Conv& conv, float* halo, Input input) {
    const Span& span = step.spans[blockIdx.z];
    const u32 channel = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * ROWS;
    if (first >= span.rows || channel >= conv.channels || span.rows <= ROWS) return;
    halo = halo_at(conv, span, first, channel, halo);
    const float* ring = conv.rings + u64(span.slot) * conv.ring * conv.channels + channel;
    for (u32 i = 0; i + 1 < conv.taps; ++i) {
        const u32 back = conv.taps - 1 - i;
        float x = 0.0f;
        if (first > 0) {
            x = input(span.first + first - back);
        } else if (span.context >= back) {
            x = ring[u64((span.context - back) & (conv.ring - 1)) * conv.channels];
        }
        halo[u64(i) * conv.channels] = x;
    }
}

KERNEL causal_conv_keep(StepView step, Conv conv, const float* x, float* halo) {
    let_next_begin();
    wait_for_inputs();
    x += blockIdx.x * blockDim.x + threadIdx.x;
    keep(step, conv, halo, [&](u32 row) { return x[u64(row) * conv.channels]; });
}

KERNEL short_conv_keep(StepView step, Conv conv, const float* bcx, float* halo) {
    let_next_begin();
    wait_for_inputs();
    bcx += blockIdx.x * blockDim.x + threadIdx.x;
    keep(step, conv, halo, [&](u32 row) {
        return bcx[3 * u64(row) * conv.channels] * bcx[(3 * u64(row) + 2) * conv.channels];
    });
}

// `input(row)` is what is convolved, `output(row, sum)` what is done with a sum; rows are those of the step. `halo` is
// that of the block of a long span.
//
// What earlier steps and layers have left is read before the wait: nothing else in a step writes the ring of a layer.
template <typename Input, typename Output>
DEVICE void convolve(const Conv& conv, const Span& span, u32 first, u32 channel, const float* halo, Input input,
                     Output output) {
    float window[MOST_TAPS], weights[MOST_TAPS];
    float* ring = conv.rings + u64(span.slot) * conv.ring * conv.channels + channel;
    const u32 reach = conv.taps - 1;
    if (span.rows > ROWS) wait_for_inputs();
    // The newest row is the last one, whatever the number of taps.
#pragma unroll
    for (u32 i = 0; i < MOST_TAPS; ++i) {
        const i32 tap = i32(i + conv.taps) - i32(MOST_TAPS);
        weights[i] = tap < 0 ? 0.0f : conv.weights[u64(channel) * conv.taps + tap];
        window[i] = 0.0f;
        if (i == 0 || tap < 1) continue;
        const u32 back = MOST_TAPS - i; // rows before the block
        if (span.rows > ROWS) {
            window[i] = halo[u64(reach - back) * conv.channels];
        } else if (span.context >= back) {
            window[i] = ring[u64((span.context - back) & (conv.ring - 1)) * conv.channels];
        }
    }
    if (span.rows <= ROWS) wait_for_inputs();
    const u32 end = min(first + ROWS, span.rows);
    float next = input(span.first + first);
    for (u32 row = first; row < end; ++row) {
        const float x = next;
        if (row + 1 < end) next = input(span.first + row + 1);
#pragma unroll
        for (u32 i = 0; i + 1 < MOST_TAPS; ++i) window[i] = window[i + 1];
        window[MOST_TAPS - 1] = x;
        // Nobody else reads it in this launch.
        if (row + conv.ring >= span.rows) ring[u64((span.context + row) & (conv.ring - 1)) * conv.channels] = x;
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MOST_TAPS; ++i) sum = fmaf(weights[i], window[i], sum);
        output(span.first + row, sum);
    }
}

KERNEL causal_conv(StepView step, Conv conv, float* x, const float* bias, float* halo) {
    let_next_begin();
    const Span& span = step.spans[blockIdx.z];
    const u32 channel = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * ROWS;
    if (first >= span.rows || channel >= conv.channels) return wait_for_inputs();
    const float add = bias ? bias[channel] : 0.0f;
    x += channel;
    convolve(
        conv, span, first, channel, halo_at(conv, span, first, channel, halo),
        [&](u32 row) { return x[u64(row) * conv.channels]; },
        [&](u32 row, float sum) { x[u64(row) * conv.channels] = activate(SILU, sum + add); });
}

// out = c * conv(b * x) of rows `b | c | x`.
KERNEL short_conv(StepView step, Conv conv, const float* bcx, float* out, float* halo) {
    let_next_begin();
    const Span& span = step.spans[blockIdx.z];
    const u32 channel = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * ROWS;
    if (first >= span.rows || channel >= conv.channels) return wait_for_inputs();
    bcx += channel;
    auto at = [&](u32 row, u32 part) { return bcx[(3 * u64(row) + part) * conv.channels]; };
    convolve(
        conv, span, first, channel, halo_at(conv, span, first, channel, halo),
        [&](u32 row) { return at(row, 0) * at(row, 2); },
        [&](u32 row, float sum) { out[u64(row) * conv.channels + channel] = at(row, 1) * sum; });
}
