// Products with weights in Q2_K.
#include "quant/product.cuh"

PRODUCTS(q2_k, FormatQ2_K, 8)
