// The Mamba-2 recurrence, checkpoints in f16.
#include "common/recurrence_half.cuh"
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_rows.cuh"

RECURRENCE_HALF(mamba2_f16_64, MAMBA2, 2)
RECURRENCE_HALF(mamba2_f16_128, MAMBA2, 4)
RECURRENCE_HALF(mamba2_f16_256, MAMBA2, 8)

RECURRENCE_ROWS(mamba2_f16_64, MAMBA2, f16, 2, 8)
RECURRENCE_ROWS(mamba2_f16_64, MAMBA2, f16, 2, 16)
RECURRENCE_ROWS(mamba2_f16_128, MAMBA2, f16, 4, 8)
RECURRENCE_ROWS(mamba2_f16_128, MAMBA2, f16, 4, 16)
RECURRENCE_ROWS(mamba2_f16_256, MAMBA2, f16, 8, 8)
RECURRENCE_ROWS(mamba2_f16_256, MAMBA2, f16, 8, 16)

PROMPT(mamba2_f16_64, MAMBA2, f16, 2)
PROMPT(mamba2_f16_128, MAMBA2, f16, 4)
PROMPT(mamba2_f16_256, MAMBA2, f16, 8)
