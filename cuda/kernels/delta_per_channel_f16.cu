// The gated delta rule with a decay per head and channel of the key, checkpoints in f16.
#include "common/recurrence_prompt.cuh"
#include "common/recurrence_row.cuh"
#include "common/recurrence_several.cuh"

RECURRENCES(delta_per_channel_f16, DELTA_PER_CHANNEL, f16)
RECURRENCE_OF_EIGHT(delta_per_channel_f16, DELTA_PER_CHANNEL, f16, BLOCK_WARPS)

SEVERAL(delta_per_channel_f16, DELTA_PER_CHANNEL, f16)

ROW(delta_per_channel_f16_64, DELTA_PER_CHANNEL, f16, 2)
ROW(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4)
ROW(delta_per_channel_f16_256, DELTA_PER_CHANNEL, f16, 8)
NORMED_ROW(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4)

PROMPT(delta_per_channel_f16_64, DELTA_PER_CHANNEL, f16, 2)
PROMPT(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4)
