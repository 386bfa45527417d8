"""Completions that go on after a given beginning of the answer, where a server takes a prompt as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blackbox_lb.api.limits.workers import run_all
from blackbox_lb.providers.schema import ReferenceRules
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.store import Writer, prompt_hash, request_hash, rollout_key
from blackbox_lb.types import Completion, Prompt

Begun = tuple[Prompt, tuple[int, ...]]
"""A prompt, and the token ids that its answer begins with."""


async def continued(
    trials: Trials, title: str, wanted: Sequence[Begun], rules: ReferenceRules, max_tokens: int
) -> list[Completion]:
    """What the base model says after each beginning, at temperature 1, at most ``max_tokens`` tokens; asked unless it is stored.

    Raises:
        ProviderError: the API failed; what was received is kept.
        BudgetExhausted, Interrupted: the budget allows no more.
    """
    session, store = trials.session, trials.store
    draw = replace(trials.draw(SAMPLED, max_tokens=max_tokens), endpoint=rules.endpoint)
    shared = {**settings_of(session, trials.tokenizer, draw), "prompt": session.endpoint}
    settings = [{**shared, "prefix": list(prefix)} for _, prefix in wanted]
    hashes = [request_hash(each) for each in settings]
    keys = [rollout_key(name, prompt_hash(prompt), 0) for name, (prompt, _) in zip(hashes, wanted, strict=True)]
    stored = set[str]().union(*(store.keys(name) for name in set(hashes)))
    missing = [place for place, key in enumerate(keys) if key not in stored]
    ids = dict[Prompt, list[int]]()
    with trials.report.stage(title, len(wanted)) as watch, Writer(store) as writer:

        async def receive(place: int) -> None:
            prompt, prefix = wanted[place]
            if prompt not in ids:
                ids[prompt] = await session.prompt_ids(prompt)
            completion = (await session.complete_many([*ids[prompt], *prefix], draw))[0]
            await writer.add_answer(settings[place], prompt, {0: completion})
            watch(completion)

        at_once = trials.concurrency or session.profile.connection.concurrency
        await run_all(missing, receive, at_once, trials.budget, session.drop_waiting)
    trials.used.update(keys)
    return list(store.completions(keys))
