"""What `scripts/gpu_check.py` runs on a GPU, and dry on a CPU.

plan.py       the parts, their limits, what they are compared for
run.py        each part in a process of its own, within the budget
part.py       that process
rows.py       what a part says, and the table of it
the parts     ceilings.py, attention.py, layers.py, packed.py, sampling.py, engine.py, tokens.py
models.py     the models that they make up
comparing.py  random inputs, poisoned outputs, errors
"""
