// Writes when kernels began and ended, those of graphs one by one, to the file that TIMELINE names: what the driver loads for
// CUDA_INJECTION64_PATH. Built and read by timeline.py. RECORD is the newest record of a kernel that the headers have.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 16 << 20 };
static FILE* out;

static void CUPTIAPI buffer(uint8_t** bytes, size_t* size, size_t* most) {
    *bytes = aligned_alloc(8, BYTES), *size = BYTES, *most = 0;
}

static void CUPTIAPI filled(CUcontext context, uint32_t stream, uint8_t* bytes, size_t size, size_t valid) {
    CUpti_Activity* next = NULL;
    while (cuptiActivityGetNextRecord(bytes, valid, &next) == CUPTI_SUCCESS) {
        if (next->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        const RECORD* kernel = (const RECORD*)next;
        fprintf(out, "%llu %llu %s %d %d %d\n", (unsigned long long)kernel->start, (unsigned long long)kernel->end, kernel->name,
                kernel->gridX, kernel->gridY, kernel->gridZ);
    }
    fflush(out);
    free(bytes);
}

static void flush(void) { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); }

int InitializeInjection(void) {
    const char* name = getenv("TIMELINE");
    out = name == NULL ? NULL : fopen(name, "w");
    if (out == NULL) return 0;
    if (cuptiActivityRegisterCallbacks(buffer, filled) != CUPTI_SUCCESS) return 0;
    if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
    atexit(flush);
    return 1;
}
