"""read_habits: what a chat template needs, read from its syntax tree.

Templates disagree about the shape of messages: some go through content parts and some print them, some add a
call's arguments to text and some turn them to JSON. What a template does with a message shows what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jinja2 import nodes

from fathom.frontend.chat_messages import MessageHabits


@dataclass(frozen=True)
class TemplateHabits:
    """messages: the shape of messages it needs. shows_tools: it reads the variable `tools`."""

    messages: MessageHabits
    shows_tools: bool


def read_habits(tree: nodes.Template) -> TemplateHabits:
    """The habits of a parsed template."""
    contents = {"content"} | _names_of(tree, "content")  # with the parameter that macros have for it
    arguments = _names_of(tree, "arguments", filtered=False)
    tests = list(tree.find_all(nodes.Test))
    adds_arguments = any(
        _is(operand, "arguments", arguments, filtered=False)
        for addition in tree.find_all((nodes.Add, nodes.Concat))
        for operand in _operands(addition)
    )
    takes_both = any(test.name in ("string", "mapping") and _is(test.node, "arguments", arguments) for test in tests)
    return TemplateHabits(
        MessageHabits(
            keeps_parts=any(_is(loop.iter, "content", contents) for loop in tree.find_all(nodes.For)),
            asks_for_null=any(test.name == "none" and _is(test.node, "content", contents) for test in tests),
            adds_arguments=adds_arguments and not takes_both,
        ),
        shows_tools=any(name.name == "tools" and name.ctx == "load" for name in tree.find_all(nodes.Name)),
    )


def _names_of(tree: nodes.Template, key: str, *, filtered: bool = True) -> set[str]:
    """The variables that are set to a message's `key`, behind filters or not."""
    names: set[str] = set()
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is(assignment.node, key, names, filtered=filtered):
            names.add(assignment.target.name)
    return names


def _operands(addition: nodes.Expr) -> Iterable[nodes.Expr]:
    if isinstance(addition, nodes.Concat):
        return addition.nodes
    assert isinstance(addition, nodes.Add)
    return (addition.left, addition.right)


def _is(node: nodes.Node | None, key: str, names: Iterable[str], *, filtered: bool = True) -> bool:
    """Whether an expression is `message.key`, or a variable that holds it, behind filters or not."""
    while filtered and isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and node.attr == key
