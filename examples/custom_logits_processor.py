"""A logits processor of one's own: an answer without the letter e.

The class goes to the engine's process by its name, so it stands at the top level of this file; and what runs the
engine stands under the __main__ guard, since that process reads this file, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fathom import LLM, AdapterLogitsProcessor, SamplingParams


class BanTokens(AdapterLogitsProcessor):
    """Never generates the tokens listed in extra_args["banned"]."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        banned = (params.extra_args or {}).get("banned", [])
        if not all(isinstance(token_id, int) for token_id in banned):
            raise ValueError(f"extra_args['banned'] must be a list of token ids, got {banned!r}")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        banned = (params.extra_args or {}).get("banned")
        if not banned:
            return None
        banned_ids = torch.tensor(banned)

        def ban(output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
            logits_row[banned_ids] = -torch.inf
            return logits_row

        return ban


def main() -> None:
    with LLM("smollm2-135m", logits_processors=[BanTokens]) as llm:
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        vocabulary = tokenizer.token_strings(range(tokenizer.vocab_size))
        banned = [token_id for token_id, text in enumerate(vocabulary) if "e" in text.lower()]
        params = [
            SamplingParams(temperature=0.0, max_tokens=24),
            SamplingParams(temperature=0.0, max_tokens=24, extra_args={"banned": banned}),
        ]
        plain, without_e = llm.generate(["The capital of France is"] * 2, params)
        print(f"plain:     {plain.outputs[0].text!r}")
        print(f"without e: {without_e.outputs[0].text!r}")


if __name__ == "__main__":
    main()
