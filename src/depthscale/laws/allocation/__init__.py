"""What to build for a budget: buildable shapes, their predicted losses, intervals and the most useful next run."""
