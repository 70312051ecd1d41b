// Ops that move rows: embedding and the choice of output rows.
#include "common/order.cuh"
#include "common/step.cuh"
#include "quant/at.cuh"

// `factor`: that of the matrix.
template <class VALUES>
DEVICE void embed(const StepView& step, const u8* table, u32 units, float* out, u32 columns, float factor, float scale) {
    let_next_begin();
    let_next_begin();
    wait_for_inputs();
    const u32 row = blockIdx.x;
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const float value = factor * VALUES::value(table, units, columns, step.tokens[row], column);
    out[u64(row) * columns + column] = scale * value;
}

#define EMBED(name, ...)                                                                                              \
    KERNEL embed_##name(StepView step, const u8* table, u32 units, float* out, u32 columns, float factor, float scale) { \
        embed<__VA_ARGS__>(step, table, units, out, columns, factor, scale);                                          \
    }

EMBED(f32, ValuesF32)
EMBED(f16, ValuesPacked<FormatF16>)
EMBED(bf16, ValuesPacked<FormatBf16>)
EMBED(q4_0, ValuesPacked<FormatQ4_0>)
EMBED(q4_1, ValuesPacked<FormatQ4_1>)
EMBED(q5_0, ValuesPacked<FormatQ5_0>)
EMBED(q5_1, ValuesPacked<FormatQ5_1>)
EMBED(q8_0, ValuesPacked<FormatQ8_0>)
EMBED(q2_k, ValuesPacked<FormatQ2_K>)
EMBED(q3_k, ValuesPacked<FormatQ3_K>)
EMBED(q4_k, ValuesPacked<FormatQ4_K>)
EMBED(q5_k, ValuesPacked<FormatQ5_K>)
EMBED(q6_k, ValuesPacked<FormatQ6_K>)
EMBED(iq4_nl, ValuesPacked<FormatIq4_Nl>)
EMBED(iq4_xs, ValuesPacked<FormatIq4_Xs>)
EMBED(mxfp4, ValuesPacked<FormatMxfp4>)

// out[i] = x[outputs[i]]
KERNEL gather_rows(StepView step, const float* x, float* out, u32 columns) {
    let_next_begin();
    let_next_begin();
    wait_for_inputs();
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column < columns) out[u64(blockIdx.x) * columns + column] = x[u64(step.outputs[blockIdx.x]) * columns + column];
}
