"""What the kernels of decoders share: packed matrices, the beam search between steps, and its launcher."""
