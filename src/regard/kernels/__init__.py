"""Tensor arithmetic without parameters: reference, normalisers, weighted sum, additive operator."""
