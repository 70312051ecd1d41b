// Products with weights in MXFP4.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(mxfp4, FormatMxfp4, 8)
WIDE(mxfp4, FormatMxfp4)
NARROW_PRODUCTS(mxfp4, FormatMxfp4)
