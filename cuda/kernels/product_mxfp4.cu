// Products with weights in MXFP4.
#include "quant/product.cuh"

PRODUCTS(mxfp4, FormatMxfp4, 8)
