// The Mamba-2 recurrence, checkpoints in f32.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"

RECURRENCE(mamba2_f32_64, MAMBA2, float, 2, 4, false)
RECURRENCE(mamba2_f32_64, MAMBA2, float, 2, 1, true)
RECURRENCE(mamba2_f32_128, MAMBA2, float, 4, 4, false)
RECURRENCE(mamba2_f32_128, MAMBA2, float, 4, 1, true)
RECURRENCE(mamba2_f32_256, MAMBA2, float, 8, 1, true)

SEVERAL(mamba2_f32, MAMBA2, float)

ROW(mamba2_f32_64, MAMBA2, float, 2)
ROW(mamba2_f32_128, MAMBA2, float, 4)
ROW(mamba2_f32_256, MAMBA2, float, 8)

PROMPT(mamba2_f32_64, MAMBA2, float, 2)
PROMPT(mamba2_f32_128, MAMBA2, float, 4)
PROMPT(mamba2_f32_256, MAMBA2, float, 8)
