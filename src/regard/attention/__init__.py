"""Attention layers: score, normalise, weighted sum; with one head or many."""

from regard.attention.attention import NORMALIZERS, Attention, AttentionOutput
from regard.attention.intervention import Intervention
from regard.attention.masks import padding_from_lengths
from regard.attention.memory import EnsembleMemory, Memory
from regard.attention.multihead import MultiHeadAttention, SelfAttention

__all__ = [
    "NORMALIZERS",
    "Attention",
    "AttentionOutput",
    "EnsembleMemory",
    "Intervention",
    "Memory",
    "MultiHeadAttention",
    "SelfAttention",
    "padding_from_lengths",
]
