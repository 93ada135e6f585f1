"""Training: from a corpus to a trained checkpoint."""
