"""How a language model uses its depth, read from the raw state after every visit of a block.

Read ``located.py`` (where the blocks are), ``states.py`` (what they leave), then ``quantities.py`` (what is made of
it).
"""
