"""GivenServer: an exact server that also gives the lists along given answers as vLLM does, or lies
about them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.providers.schema import AnswerRules
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import COMPLETIONS, JSON
from tests.support.exact.server import Answer

GivenLie = Literal["starts anew", "one place on", "other tokens"]
"""A closed assistant turn; prompt logprobs of the next position; a message whose text is read as
other tokens.
"""
CHAT, TEXT = COMPLETIONS
ROWS = AnswerRules(
    prompt_logprobs="prompt_logprobs",
    continues={"continue_final_message": True},
    repeats=True,
    prompt_ids="prompt_token_ids",
)
WAYS: dict[str, dict[str, Any]] = {
    "prompt logprobs": {"answers": AnswerRules(prompt_logprobs="prompt_logprobs")},
    "token ids": {"answers": AnswerRules()},
    "assistant message": {
        "answers": AnswerRules(continues=ROWS.continues, repeats=True, prompt_ids=ROWS.prompt_ids),
        "reference": None,
    },
    "unproven message": {
        "answers": AnswerRules(continues=ROWS.continues, repeats=True),
        "reference": None,
    },
}
"""Rows of the server's profile that leave one way each."""


def profile(way: str | None = None) -> Profile:
    """The server's profile with all its rows, or those of one way."""
    return load_profile("llamacpp").model_copy(
        update={"answers": ROWS} if way is None else WAYS[way]
    )


class GivenServer(ExactServer):
    """``prompt_logprobs`` with a prompt of token ids, ``prompt_token_ids`` in every chat answer,
    ids of messages by /tokenize.

    Before a server of another dialect among a class's bases, it does the same in that dialect.
    """

    def __init__(
        self,
        model: ExactModel,
        *,
        seed: int = 0,
        lie: GivenLie | None = None,
        prompt_of: Callable[[str], int] | None = None,
    ) -> None:
        super().__init__(model, seed=seed, prompt_of=prompt_of)
        self.lie = lie

    def post(self, path: str, body: JSON) -> Answer:
        """The honest answer with more in it, or what the lie makes of it."""
        messages, asked = body.get("messages", []), body
        if path == "/tokenize" and messages:
            text = self._dialect.post("/apply-template", body, 0)["prompt"]
            return self._dialect.post(path, {"content": text}, 0)
        if path == "/detokenize":
            text = self._dialect.post(path, body, 0)["content"]
            return {"content": text, "prompt": text, "text": text}
        if path == CHAT and self.lie == "starts anew":
            asked = {**body, "messages": [{**each, "role": "user"} for each in messages]}
        answer = super().post(path, asked)
        if path in COMPLETIONS and isinstance(answer, dict):
            text, before = self._dialect._prompt(body, path == CHAT)
            if path == CHAT:
                shown = [each + (self.lie == "other tokens") for each in before]
                answer["prompt_token_ids"] = [*self.tokenize(text), *shown]
            elif body.get("prompt_logprobs"):
                ids = body["prompt"]
                lists = [
                    self._listed(ids, place, len(ids) - len(before), text, body["prompt_logprobs"])
                    for place in range(len(ids))
                ]
                answer["choices"][0]["prompt_logprobs"] = lists
        return answer

    def _listed(self, ids: list[int], place: int, start: int, text: str, k: int) -> JSON | None:
        """The list at one place of a prompt of ``start`` tokens with the answer behind it; those of
        the prompt are made up.
        """
        if place == 0:
            return None
        if place < start:
            return {
                str(ids[place]): {
                    "logprob": -1.0,
                    "rank": 1,
                    "decoded_token": self.texts[ids[place]],
                }
            }
        prefix = ids[start : place + (self.lie == "one place on")]
        logprobs = self.model.logprobs(prefix, self._dialect._prompt_of(text))
        order = (-logprobs).argsort(kind="stable").tolist()
        shown = dict.fromkeys([ids[place], *order[:k]])
        return {
            str(token): {
                "logprob": float(logprobs[token]),
                "rank": 1 + order.index(token),
                "decoded_token": self.texts[token],
            }
            for token in shown
        }
