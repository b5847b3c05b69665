"""Generator of the phrasebook dataset that `src/regard/datasets/phrasebook/` contains."""
