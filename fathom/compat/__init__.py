"""What scripts for vLLM bring along: options, fields and methods that Fathom has under other names, or lacks.

Whatever can be left out is accepted at the value that changes nothing. The rest is refused, by name and with a way out.
"""
