"""A hierarchical reasoner on Sudoku, unscaled and scaled by depthscale's rules; see README.md."""
