// Kernels that begin before those they depend on have ended (launched with `early`, src/launch.rs). On GPUs that cannot do
// that, both do nothing.
#pragma once
#include "common/types.cuh"

// The next kernel may begin as soon as all blocks have come here and there is room for it.
DEVICE void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Everything before this kernel has ended. Before it, only what no kernel writes may be read, and nothing written.
DEVICE void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
