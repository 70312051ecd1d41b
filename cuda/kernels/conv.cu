// Depthwise causal convolutions with a ring of earlier rows per slot. A thread has one or four channels of a span, or of a block of
// rows of a long one: it keeps the rows its taps reach back to in registers.
#include "common/conv.cuh"
#include "common/order.cuh"
#include "common/step.cuh"

// Rows of a block.
static constexpr u32 ROWS = 32;
static constexpr u32 MOST_TAPS = 8;

// Values of neighbouring channels.
template <u32 COUNT> struct Channels {
    float of[COUNT];

    DEVICE static Channels from(const float* at) {
        Channels x;
        if constexpr (COUNT == 4) {
            const float4 four = *reinterpret_cast<const float4*>(at);
            x.of[0] = four.x, x.of[1] = four.y, x.of[2] = four.z, x.of[3] = four.w;
        } else {
            x.of[0] = *at;
        }
        return x;
    }
    DEVICE void store(float* at) const {
        if constexpr (COUNT == 4) *reinterpret_cast<float4*>(at) = make_float4(of[0], of[1], of[2], of[3]);
        if constexpr (COUNT == 1) *at = of[0];
    }
    DEVICE Channels operator*(const Channels& by) const {
        Channels x;
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) x.of[i] = of[i] * by.of[i];
        return x;
    }
};

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
// that of the block of a long span. There are no more taps than MOST. AHEAD: rows that a thread asks for before it has computed
// the first of them.
//
// What earlier steps and layers have left is read before the wait: nothing else in a step writes the ring of a layer.
template <u32 MOST, u32 COUNT, u32 AHEAD, typename Input, typename Output>
DEVICE void convolve(const Conv& conv, const Span& span, u32 first, u32 channel, const float* halo, Input input,
                     Output output) {
    typedef Channels<COUNT> Of;
    Of window[MOST], weights[MOST];
    float* ring = conv.rings + u64(span.slot) * conv.ring * conv.channels + channel;
    const u32 reach = conv.taps - 1;
    // The usual number of taps is a vector.
    if (MOST == 4 && conv.taps == 4) {
#pragma unroll
        for (u32 c = 0; c < COUNT; ++c) {
            const Channels<4> taps = Channels<4>::from(conv.weights + u64(channel + c) * 4);
#pragma unroll
            for (u32 i = 0; i < MOST; ++i) weights[i].of[c] = taps.of[i % 4];
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) {
            const i32 tap = i32(i + conv.taps) - i32(MOST);
#pragma unroll
            for (u32 c = 0; c < COUNT; ++c) {
                weights[i].of[c] = tap < 0 ? 0.0f : conv.weights[u64(channel + c) * conv.taps + tap];
            }
        }
    }
    if (span.rows > ROWS) wait_for_inputs();
    // The newest row is the last one, whatever the number of taps.
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) {
        const i32 tap = i32(i + conv.taps) - i32(MOST);
        window[i] = Of{};
        if (i == 0 || tap < 1) continue;
        const u32 back = MOST - i; // rows before the block
        if (span.rows > ROWS) {
            window[i] = Of::from(halo + u64(reach - back) * conv.channels);
        } else if (span.context >= back) {
            window[i] = Of::from(ring + u64((span.context - back) & (conv.ring - 1)) * conv.channels);
        }
    }
    if (span.rows <= ROWS) wait_for_inputs();
    const u32 end = min(first + ROWS, span.rows);
    Of next[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
        if (first + i < end) next[i] = input(span.first + first + i);
    }
    for (u32 begin = first; begin < end; begin += AHEAD) {
#pragma unroll
        for (u32 turn = 0; turn < AHEAD; ++turn) {
            const u32 row = begin + turn;
            if (row >= end) break;
            const Of x = next[turn];
            if (row + AHEAD < end) next[turn] = input(span.first + row + AHEAD);
#pragma unroll
            for (u32 i = 0; i + 1 < MOST; ++i) window[i] = window[i + 1];
            window[MOST - 1] = x;
            // Nobody else reads it in this launch.
            if (row + conv.ring >= span.rows) x.store(ring + u64((span.context + row) & (conv.ring - 1)) * conv.channels);
            Of sum = {};
#pragma unroll
            for (u32 i = 0; i < MOST; ++i) {
#pragma unroll
                for (u32 c = 0; c < COUNT; ++c) sum.of[c] = fmaf(weights[i].of[c], window[i].of[c], sum.of[c]);
            }
            output(span.first + row, sum);
        }
    }
}

template <u32 MOST, u32 COUNT, u32 AHEAD>
DEVICE void causal(const StepView& step, const Conv& conv, float* x, const float* bias, float* halo) {
    typedef Channels<COUNT> Of;
    let_next_begin();
    const Span& span = step.spans[blockIdx.z];
    const u32 channel = (blockIdx.x * blockDim.x + threadIdx.x) * COUNT, first = blockIdx.y * ROWS;
    if (first >= span.rows || channel >= conv.channels) return wait_for_inputs();
    const Of add = bias ? Of::from(bias + channel) : Of{};
    x += channel;
    convolve<MOST, COUNT, AHEAD>(
        conv, span, first, channel, halo_at(conv, span, first, channel, halo),
        [&](u32 row) { return Of::from(x + u64(row) * conv.channels); },
        [&](u32 row, Of sum) {
#pragma unroll
            for (u32 c = 0; c < COUNT; ++c) sum.of[c] += add.of[c];
            silu_all(sum.of);
            sum.store(x + u64(row) * conv.channels);
        });
}

KERNEL causal_conv(StepView step, Conv conv, float* x, const float* bias, float* halo) {
    causal<MOST_TAPS, 1, 1>(step, conv, x, bias, halo);
}
KERNEL causal_conv_by_4(StepView step, Conv conv, float* x, const float* bias, float* halo) {
    causal<4, 4, 1>(step, conv, x, bias, halo);
}
// The same for spans of several rows.
KERNEL causal_conv_rows_by_4(StepView step, Conv conv, float* x, const float* bias, float* halo) {
    causal<4, 4, 8>(step, conv, x, bias, halo);
}

// out = c * conv(b * x) of rows `b | c | x`.
template <u32 MOST, u32 COUNT, u32 AHEAD>
DEVICE void gated(const StepView& step, const Conv& conv, const float* bcx, float* out, float* halo) {
    typedef Channels<COUNT> Of;
    let_next_begin();
    const Span& span = step.spans[blockIdx.z];
    const u32 channel = (blockIdx.x * blockDim.x + threadIdx.x) * COUNT, first = blockIdx.y * ROWS;
    if (first >= span.rows || channel >= conv.channels) return wait_for_inputs();
    bcx += channel, out += channel;
    const auto at = [&](u32 row, u32 part) { return Of::from(bcx + (3 * u64(row) + part) * conv.channels); };
    convolve<MOST, COUNT, AHEAD>(
        conv, span, first, channel, halo_at(conv, span, first, channel, halo), [&](u32 row) { return at(row, 0) * at(row, 2); },
        [&](u32 row, const Of& sum) { (at(row, 1) * sum).store(out + u64(row) * conv.channels); });
}

KERNEL short_conv(StepView step, Conv conv, const float* bcx, float* out, float* halo) {
    gated<MOST_TAPS, 1, 1>(step, conv, bcx, out, halo);
}
KERNEL short_conv_by_4(StepView step, Conv conv, const float* bcx, float* out, float* halo) {
    gated<4, 4, 1>(step, conv, bcx, out, halo);
}
KERNEL short_conv_rows_by_4(StepView step, Conv conv, const float* bcx, float* out, float* halo) {
    gated<4, 4, 8>(step, conv, bcx, out, halo);
}
