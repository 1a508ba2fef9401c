"""Virtual devices on one machine, and the experiments that run on them. Python 3.11 and later, nothing but the standard library (plots: matplotlib)."""
