"""Record batches decoded in bulk into Arrow columns."""
