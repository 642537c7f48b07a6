"""The layouts in which kernels take their inputs: packed, paged, with a cache, for Transformers, for Flex."""
