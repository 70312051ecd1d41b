// The gated delta rule with a decay per head, checkpoints in f32.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"
#include "common/recurrence_several.cuh"

RECURRENCES(delta_f32, DELTA, float)

SEVERAL(delta_f32, DELTA, float)

ROW(delta_f32_64, DELTA, float, 2)
ROW(delta_f32_128, DELTA, float, 4)
ROW(delta_f32_256, DELTA, float, 8)
NORMED_ROW(delta_f32_128, DELTA, float, 4)

PROMPT(delta_f32_64, DELTA, float, 2)
PROMPT(delta_f32_128, DELTA, float, 4)
PROMPT(delta_f32_256, DELTA, float, 8)
