"""What CPU kernels share: how they are compiled, loaded and run, and the parts of which they consist."""
