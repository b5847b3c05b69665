"""One step of a recurrent decoder as one kernel, without gradients."""
