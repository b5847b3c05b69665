"""The command `regard`: main.py dispatches, one file per command runs it."""
