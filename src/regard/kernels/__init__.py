"""Arithmetic on tensors, no parameters: the oracle, the bounded PyTorch path, the operator."""
