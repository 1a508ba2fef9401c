"""Inputs that are almost valid: model folders, files of clusters and plans, and command lines,
changed at random by seed. `testbed/inputs` runs them.
"""
