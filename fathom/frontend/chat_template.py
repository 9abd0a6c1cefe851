"""render_chat: chat messages to prompt text, by the model's Jinja template.

Templates are written for transformers, so they get what it gives them: trimmed blocks, `raise_exception`,
`strftime_now`, a plain `tojson`, `{% generation %}`, `{% break %}`, and the tokenizer's special tokens by
name. They come with downloaded models, so they run in Jinja's immutable sandbox.

Special tokens that a user types ("<|im_end|>") reach the prompt as they are, and encoding makes them control
tokens, as in transformers: a message can end its own turn. A service that passes on text by strangers must
take them out.

The text has its BOS from the template, if it wants one: encode it with add_special_tokens=False.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fathom.errors import ValidationError
from fathom.frontend.chat_messages import Message, normalise_messages
from fathom.frontend.template_habits import TemplateHabits, read_habits
from fathom.frontend.tokenizer.tokenizer import Tokenizer, check_text

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

# Callers may send a template with each request; a model has a few of its own.
_MAX_COMPILED = 64

# Stands behind the final message's text while it is rendered. The space at its end is lost if, and only if,
# the template trims contents.
_END_MARK = "\ue000end of the final message\ue000 "


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The prompt text of a chat; equal to transformers' apply_chat_template.

    Args:
        messages: dicts with "role" and "content"; see normalise_messages for what is evened out.
        chat_template: a template, or the name of one of the model's, instead of the model's own.
        add_generation_prompt: end with the beginning of an answer.
        continue_final_message: end within the final message, so that the answer carries it on.
        tools: JSON schemas of functions. A template that does not show them is refused: the model would not know
            of them.
        chat_template_kwargs: further variables for the template.

    Raises:
        ValidationError: no template; a template that cannot be compiled ("chat_template") or has no place for tools
            ("tools"); messages that the template refuses ("messages", with the template's own words); options that
            contradict each other.
    """
    if continue_final_message and add_generation_prompt:
        raise ValidationError(
            "continue_final_message and add_generation_prompt cannot both be set.",
            parameter="continue_final_message",
            value=True,
            hint="Pass add_generation_prompt=False to continue the final message.",
        )
    extra = dict(chat_template_kwargs or {})
    if taken := _OWN_VARIABLES & extra.keys():
        raise ValidationError(
            f"chat_template_kwargs may not set {', '.join(sorted(taken))}.",
            parameter="chat_template_kwargs",
            value=extra,
            hint="Use the argument of that name.",
        )
    template = _compiled(tokenizer, _select_template(tokenizer.chat_template, chat_template, bool(tools)))
    if tools and not template.habits.shows_tools:
        raise ValidationError(
            "The model's chat template has no place for tools, so the model would not know of them.",
            parameter="tools",
            value=[*tools],
            hint="Leave them out, describe them in a message, or pass a chat_template= that shows them.",
        )
    chat = normalise_messages(messages, template.habits.messages)
    final_text = _mark_end(chat[-1]) if continue_final_message else ""
    variables = {
        **tokenizer.special_tokens,
        **extra,
        "messages": chat,
        "tools": list(tools) if tools else None,
        "documents": None if documents is None else list(documents),
        "add_generation_prompt": add_generation_prompt,
    }
    text = template.render(variables)
    if continue_final_message:
        text = _cut_at_mark(text, final_text)
    check_text(text, "messages")
    return text


class CompiledTemplate:
    """A chat template, compiled.

    habits: in which shape it needs messages, and whether it shows tools.

    Raises:
        ValidationError: a syntax error, with its line.
    """

    def __init__(self, source: str):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            self.habits: TemplateHabits = read_habits(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ValidationError(
                f"The chat template has a mistake in line {error.lineno}: {error.message}.",
                parameter="chat_template",
                value=source,
            ) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The rendered text.

        Raises:
            ValidationError: whatever goes wrong in the template, whose code is not ours.
        """
        try:
            return self._template.render(variables)
        except SecurityError as error:
            raise ValidationError(
                f"The chat template was stopped: {error}.", parameter="chat_template", value=None
            ) from error
        except jinja2.TemplateError as error:  # raise_exception, or something undefined
            raise ValidationError(str(error.message), parameter="messages", value=variables["messages"]) from error
        except Exception as error:
            raise ValidationError(
                f"The chat template cannot render these messages: {error}.",
                parameter="messages",
                value=variables["messages"],
            ) from error


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is all there is to it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, with variables of its own, as transformers has it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _compiled(tokenizer: Tokenizer, source: str) -> CompiledTemplate:
    found = tokenizer.compiled_templates.get(source)
    if found is None:
        if len(tokenizer.compiled_templates) >= _MAX_COMPILED:
            tokenizer.compiled_templates.clear()
        found = tokenizer.compiled_templates[source] = CompiledTemplate(source)
    return found


def _select_template(own: str | dict[str, str] | None, asked: str | None, has_tools: bool) -> str:
    """The template asked for, by name or in full; else the model's own, with tools the one for "tool_use"."""
    if isinstance(own, dict):
        if asked is None:
            asked = "tool_use" if has_tools and "tool_use" in own else "default"
            if asked not in own:
                raise ValidationError(
                    f"The model has several chat templates and no default: {', '.join(sorted(own))}.",
                    parameter="chat_template",
                    value=None,
                    hint="Pass one of these names as chat_template=.",
                )
        return own.get(asked, asked)
    template = own if asked is None else asked
    if template is None:
        raise ValidationError(
            "The model has no chat template.",
            parameter="chat_template",
            value=None,
            hint="Pass one as chat_template=, or use generate with a prompt in the model's own format.",
        )
    return template


def _mark_end(message: Message) -> str:
    """Put the mark behind the text of a message; the text without it."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _END_MARK
        return content
    if not content:
        raise ValidationError(
            "continue_final_message needs a final message with text.", parameter="messages", value=content
        )
    text: str = content[-1]["text"]
    content[-1]["text"] = text + _END_MARK
    return text


def _cut_at_mark(text: str, final_text: str) -> str:
    end = text.rfind(_END_MARK.rstrip())
    if end < 0 or final_text.strip() not in text:
        raise ValidationError(
            "continue_final_message is set, but the chat template leaves out text of the final message.",
            parameter="continue_final_message",
            value=True,
        )
    return text[:end] if text.startswith(_END_MARK, end) else text[:end].rstrip()


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
