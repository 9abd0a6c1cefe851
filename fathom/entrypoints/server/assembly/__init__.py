"""From the engine's outputs to the answer, without I/O: outputs become chunks, and chunks fold to the whole answer.

A streamed answer is the chunks. One that is not streamed is their fold, so the two cannot differ, and neither depends
on how many tokens came at once.
"""
