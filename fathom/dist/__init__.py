"""Ranks and what they say to each other: where a rank stands, which share of a model it holds, and collectives."""
