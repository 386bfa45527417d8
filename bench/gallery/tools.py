"""To call a function or to answer."""

from __future__ import annotations

from bench.gallery.use import Place, Step, Use, data_file, options

__all__ = ["TOOLS"]

CALLS = ("uv", "run", "python", "-m", "bench.gallery.calls")


def _tools(place: Place) -> list[Step]:
    """A fit of the decision, then the decisions of all policies on unseen prompts from one token
    each, and some whole calls.
    """
    out = place.out / "call"
    store = place.out / "lists.db"
    data = data_file(place, "calls.jsonl")
    task = options(data=data, decide="calls-tool", reward="accuracy", store=store)
    few = options(max_tokens=1, limit=40, validation_limit=40, test_limit=8, out=out)
    judged = options(*place.model, data=data, bias=out / "bias.json", store=store)
    return [
        Step("call", options("fit", *place.model, *task, *few)),
        Step("calls", options(*judged, prompts=32, rivals=16, whole=6), program=CALLS),
    ]


TOOLS = Use(
    "To call a function or to answer",
    "A chat prompt with one function, which answers it or does not (Berkeley Function Calling"
    " Leaderboard). A bias shifts the tokens that begin a call, so that the same generation goes on"
    " as a call or as an answer, with no second request and no token of prompt; it chooses a point"
    " on the curve, and the AUC stays the model's own. Rivals: an instruction, two examples,"
    " `tool_choice`, and a threshold in the client with two requests. 40 + 40 prompts to learn and"
    " to choose and 32 to judge (rivals that change the prompt: 16) are few, because a first list"
    " took a busy machine up to half a minute. A first fit, on 24 prompts of each split, ended with"
    " NO EVIDENCE: .67 right without and .75 with the bias on 24 test prompts.",
    _tools,
    files=("calls.jsonl",),
    second_model=True,
)
