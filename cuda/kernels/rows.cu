// Ops that move rows: embedding and the choice of output rows.
#include "common/order.cuh"
#include "common/step.cuh"
#include "quant/at.cuh"

template <u32 QUANT>
DEVICE void embed(const StepView& step, const u8* table, u32 row_bytes, float* out, u32 columns, float scale) {
    let_next_begin();
    wait_for_inputs();
    const u32 row = blockIdx.x;
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const u8* stored = table + u64(step.tokens[row]) * row_bytes;
    out[u64(row) * columns + column] = scale * value_at<QUANT>(stored, column);
}

#define EMBED(name, quant)                                                                                            \
    KERNEL embed_##name(StepView step, const u8* table, u32 row_bytes, float* out, u32 columns, float scale) {        \
        embed<quant>(step, table, row_bytes, out, columns, scale);                                                    \
    }

EMBED(f32, QUANT_F32)
EMBED(f16, QUANT_F16)
EMBED(bf16, QUANT_BF16)
EMBED(q8_0, QUANT_Q8_0)
EMBED(q4_0, QUANT_Q4_0)

// out[i] = x[outputs[i]]
KERNEL gather_rows(StepView step, const float* x, float* out, u32 columns) {
    let_next_begin();
    wait_for_inputs();
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column < columns) out[u64(blockIdx.x) * columns + column] = x[u64(step.outputs[blockIdx.x]) * columns + column];
}
