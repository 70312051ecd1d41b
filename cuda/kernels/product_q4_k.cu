// Products with weights in Q4_K.
#include "quant/product.cuh"

PRODUCTS(q4_k, FormatQ4_K, 6)
