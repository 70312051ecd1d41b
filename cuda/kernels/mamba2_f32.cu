// The Mamba-2 recurrence, checkpoints in f32.
#include "common/recurrence_one.cuh"
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_rows.cuh"

RECURRENCE_ONE(mamba2_f32_64, MAMBA2, float, 2, 4)
RECURRENCE_ONE(mamba2_f32_64, MAMBA2, float, 2, 1)
RECURRENCE_ONE(mamba2_f32_128, MAMBA2, float, 4, 4)
RECURRENCE_ONE(mamba2_f32_128, MAMBA2, float, 4, 1)
RECURRENCE_ONE(mamba2_f32_256, MAMBA2, float, 8, 1)

RECURRENCE_ROWS(mamba2_f32_64, MAMBA2, float, 2, 8)
RECURRENCE_ROWS(mamba2_f32_64, MAMBA2, float, 2, 16)
RECURRENCE_ROWS(mamba2_f32_128, MAMBA2, float, 4, 8)
RECURRENCE_ROWS(mamba2_f32_128, MAMBA2, float, 4, 16)
RECURRENCE_ROWS(mamba2_f32_256, MAMBA2, float, 8, 8)
RECURRENCE_ROWS(mamba2_f32_256, MAMBA2, float, 8, 16)

PROMPT(mamba2_f32_64, MAMBA2, float, 2)
PROMPT(mamba2_f32_128, MAMBA2, float, 4)
PROMPT(mamba2_f32_256, MAMBA2, float, 8)
