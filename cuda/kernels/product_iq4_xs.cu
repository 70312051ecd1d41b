// Products with weights in IQ4_XS.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(iq4_xs, FormatIq4_Xs, 8)
WIDE(iq4_xs, FormatIq4_Xs)
NARROW_PRODUCTS(iq4_xs, FormatIq4_Xs)
