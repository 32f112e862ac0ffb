"""Speed measurements.

Contenders take turns in one process tree, so that a drifting machine slows them equally; ratios are the result.
"""
