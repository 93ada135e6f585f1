"""Configurations, run directories and result files: plain data, no torch."""
