"""What a trained model is worth: loss over rounds, early exit, generation, downstream tasks, and export to the Hub."""
