"""Virtual devices on one machine, and the experiments that run on them. Needs Python 3.11 or later
and only the standard library (plots: matplotlib).
"""
