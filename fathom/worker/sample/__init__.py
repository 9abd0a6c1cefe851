"""From logits to tokens: a list of logits processors, one parameter family per file, and the sampler."""
