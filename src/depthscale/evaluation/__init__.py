"""What a trained model is worth: loss, checkpoints, and later generation and downstream tasks."""
