"""Recurrent cells: one step as one kernel, without gradients."""
