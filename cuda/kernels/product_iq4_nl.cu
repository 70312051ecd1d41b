// Products with weights in IQ4_NL.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(iq4_nl, FormatIq4_Nl, 8)
WIDE(iq4_nl, FormatIq4_Nl)
NARROW_PRODUCTS(iq4_nl, FormatIq4_Nl)
