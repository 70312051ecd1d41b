// Products with weights in BF16.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(bf16, FormatBf16, 4)
WIDE(bf16, FormatBf16)
NARROW_PRODUCTS(bf16, FormatBf16)
