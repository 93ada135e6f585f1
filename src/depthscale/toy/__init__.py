"""Teachers that are deep residual MLPs, students that are shallower ones, and the exponent of loss over depth.

Importing this package loads no torch; the modules that train do.
"""
