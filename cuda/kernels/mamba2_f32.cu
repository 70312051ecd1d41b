// The Mamba-2 recurrence, checkpoints in f32.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"
#include "common/recurrence_several.cuh"

RECURRENCES(mamba2_f32, MAMBA2, float)

SEVERAL(mamba2_f32, MAMBA2, float)

ROW(mamba2_f32_64, MAMBA2, float, 2)
ROW(mamba2_f32_128, MAMBA2, float, 4)
ROW(mamba2_f32_256, MAMBA2, float, 8)

PROMPT(mamba2_f32_64, MAMBA2, float, 2)
PROMPT(mamba2_f32_128, MAMBA2, float, 4)
PROMPT(mamba2_f32_256, MAMBA2, float, 8)
