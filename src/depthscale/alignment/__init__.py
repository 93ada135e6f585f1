"""How aligned the visits of a shared block are, and which exponent that calls for.

Read ``recording.py`` (gradients of each visit), then ``kappa.py`` (what is made of them).
"""
