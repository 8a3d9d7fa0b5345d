"""What a trained model is compared with at its end: a last layer that is solved for."""
