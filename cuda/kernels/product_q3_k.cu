// Products with weights in Q3_K.
#include "quant/product.cuh"

PRODUCTS(q3_k, FormatQ3_K, 8)
