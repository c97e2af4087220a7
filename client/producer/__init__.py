"""The producer: batches, sequences, the sender, partitioners."""
