// The Mamba-2 recurrence, checkpoints in f16.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"
#include "common/recurrence_several.cuh"

RECURRENCES(mamba2_f16, MAMBA2, f16)
RECURRENCE_OF_EIGHT(mamba2_f16, MAMBA2, f16, 2)

SEVERAL(mamba2_f16, MAMBA2, f16)

ROW(mamba2_f16_64, MAMBA2, f16, 2)
ROW(mamba2_f16_128, MAMBA2, f16, 4)
ROW(mamba2_f16_256, MAMBA2, f16, 8)

PROMPT(mamba2_f16_64, MAMBA2, f16, 2)
PROMPT(mamba2_f16_128, MAMBA2, f16, 4)
PROMPT(mamba2_f16_256, MAMBA2, f16, 8)
