"""Attention: score, mask, normalise, average; with one head or many.

attend.py one head: `Attention` · multihead.py many: `MultiHeadAttention`, `SelfAttention` ·
intervention.py a look pushed by hand · window.py a part of the source · coverage.py what was seen before · masks.py what may not be seen ·
memory.py what is computed once per source
"""

from regard.attention.attention import NORMALIZERS, Attention, AttentionOutput
from regard.attention.intervention import Intervention
from regard.attention.masks import padding_from_lengths
from regard.attention.memory import Memory
from regard.attention.multihead import MultiHeadAttention, SelfAttention

__all__ = [
    "NORMALIZERS",
    "Attention",
    "AttentionOutput",
    "Intervention",
    "Memory",
    "MultiHeadAttention",
    "SelfAttention",
    "padding_from_lengths",
]
