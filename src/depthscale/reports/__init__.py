"""Figures and HTML reports. They read result files only, never models: no torch is imported here."""
