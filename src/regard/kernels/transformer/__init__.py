"""Beam search with a Transformer decoder as one kernel, without gradients."""
