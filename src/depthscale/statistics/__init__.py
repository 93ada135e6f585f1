"""Tensors in, tensors out: what is measured of hidden states and updates, reduced in float32 or better."""
