// The gated delta rule with a decay per head, checkpoints in f16.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"

RECURRENCE(delta_f16_64, DELTA, f16, 2, 4, false)
RECURRENCE(delta_f16_64, DELTA, f16, 2, 1, true)
RECURRENCE(delta_f16_128, DELTA, f16, 4, 4, false)
RECURRENCE(delta_f16_128, DELTA, f16, 4, 1, true)
RECURRENCE(delta_f16_256, DELTA, f16, 8, 1, true)

SEVERAL(delta_f16, DELTA, f16)

ROW(delta_f16_64, DELTA, f16, 2)
ROW(delta_f16_128, DELTA, f16, 4)
ROW(delta_f16_256, DELTA, f16, 8)
NORMED_ROW(delta_f16_128, DELTA, f16, 4)

PROMPT(delta_f16_64, DELTA, f16, 2)
PROMPT(delta_f16_128, DELTA, f16, 4)
PROMPT(delta_f16_256, DELTA, f16, 8)
