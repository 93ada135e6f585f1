"""Studies: many runs as one experiment, its paired statistics and its verdict. No torch is imported here."""
