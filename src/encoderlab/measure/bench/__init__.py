"""Speed measurements: contenders take turns in one process tree, so that a drifting machine slows them alike, and ratios are the result."""
