"""Tokenizers: text to tokens and vocabulary ids, and back."""

from regard.text.features import SourceLike, format_source, split_features, split_source
from regard.text.normalization import remove_line_ending
from regard.text.special_tokens import BOS, BOS_TOKEN, EOS, EOS_TOKEN, PAD, SPECIAL_TOKENS, UNK
from regard.text.tokenizer import Encoding, Tokenizer, count_message, unknown_tokens_message
from regard.text.units import UNITS, choose_unit
from regard.text.words import display_token

__all__ = [
    "BOS",
    "BOS_TOKEN",
    "EOS",
    "EOS_TOKEN",
    "PAD",
    "SPECIAL_TOKENS",
    "UNITS",
    "UNK",
    "Encoding",
    "SourceLike",
    "Tokenizer",
    "choose_unit",
    "count_message",
    "display_token",
    "format_source",
    "remove_line_ending",
    "split_features",
    "split_source",
    "unknown_tokens_message",
]
