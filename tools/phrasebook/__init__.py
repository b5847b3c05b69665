"""Generator of the phrasebook dataset in `src/regard/datasets/phrasebook/`."""
