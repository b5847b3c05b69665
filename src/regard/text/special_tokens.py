"""Ids and spellings of the special tokens, which are the same in every vocabulary."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
BOS_TOKEN = SPECIAL_TOKENS[BOS]
EOS_TOKEN = SPECIAL_TOKENS[EOS]
