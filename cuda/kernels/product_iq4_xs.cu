// Products with weights in IQ4_XS.
#include "quant/product.cuh"

PRODUCTS(iq4_xs, FormatIq4_Xs, 8)
