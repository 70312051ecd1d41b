// The gated delta rule with a decay per head and channel of the key, checkpoints in f16.
#include "common/recurrence_one.cuh"
#include "common/recurrence_rows.cuh"

RECURRENCE_ONE(delta_per_channel_f16_64, DELTA_PER_CHANNEL, f16, 2, 4)
RECURRENCE_ONE(delta_per_channel_f16_64, DELTA_PER_CHANNEL, f16, 2, 1)
RECURRENCE_ONE(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4, 4)
RECURRENCE_ONE(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4, 1)
RECURRENCE_ONE(delta_per_channel_f16_256, DELTA_PER_CHANNEL, f16, 8, 1)

RECURRENCE_ROWS(delta_per_channel_f16_64, DELTA_PER_CHANNEL, f16, 2, 8)
RECURRENCE_ROWS(delta_per_channel_f16_64, DELTA_PER_CHANNEL, f16, 2, 16)
RECURRENCE_ROWS(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4, 8)
RECURRENCE_ROWS(delta_per_channel_f16_128, DELTA_PER_CHANNEL, f16, 4, 16)
RECURRENCE_ROWS(delta_per_channel_f16_256, DELTA_PER_CHANNEL, f16, 8, 8)
RECURRENCE_ROWS(delta_per_channel_f16_256, DELTA_PER_CHANNEL, f16, 8, 16)
