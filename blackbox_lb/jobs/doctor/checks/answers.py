"""Checks of the answer as a whole: several completions a request, the seed, what is counted, and why completions end."""

from __future__ import annotations

from collections import Counter

from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.errors import ConnectionFailed, ServerFailed
from blackbox_lb.jobs.doctor.asking.exam import WORDS, Exam

MOST_AT_ONCE = 128
"""Completions of one token that are asked for by one request: the largest limit that a hosted provider documents."""
SEED, SEEDED_TOKENS = 7, 12


async def check_n(exam: Exam) -> None:
    """As many completions of one token as the profile says one request gives, up to 128."""
    rows, claimed = ("sampling.n", "sampling.shares_prompt"), exam.profile.sampling.n
    if not DIALECTS[exam.rules.dialect].several:
        return exam.findings.skip(rows[:1], "the Responses API gives one completion a request")
    if claimed == 1:
        return exam.findings.skip(rows[:1], "one completion a request is all that is claimed")
    n, before = min(claimed, MOST_AT_ONCE), len(exam.probe.draws)
    completions = await exam.probe.ask(WORDS, n=n)
    distinct = len({(int(each.token_ids[0]) if len(each.token_ids) else None) for each in completions})
    said = f"{n} asked for, {len(completions)} came, with {distinct} different first tokens"
    if len(completions) != n or (distinct == 1 and _varies(exam)):
        del exam.probe.draws[before:]
        return exam.findings.agree(rows[0], False, said, 1)
    exam.n = n
    exam.findings.agree(rows[0], True, said if n == claimed else f"{said}; {claimed:,} are claimed")
    return _shared(exam, rows[1], completions[0].prompt_tokens, n)


def _varies(exam: Exam) -> bool:
    """Whether equal first tokens of many completions would be a surprise."""
    tops = [max(row.values()) for row in exam.openings()]
    return bool(tops) and max(tops) < -0.2


def _shared(exam: Exam, row: str, prompt_tokens: int, n: int) -> None:
    singles = [completion.prompt_tokens for prompt, completion in exam.probe.draws if prompt is WORDS][:1]
    if not prompt_tokens or not singles:
        return exam.findings.skip([row], "the answer does not count the tokens of the prompt")
    said = f"{prompt_tokens} prompt tokens counted for {n} completions, {singles[0]} for one"
    if exam.profile.sampling.shares_prompt:
        return exam.findings.agree(row, prompt_tokens == singles[0], said, False)
    return exam.findings.add(row, "MEASURED", said)


async def check_seed(exam: Exam) -> None:
    """A seed is accepted; whether it repeats the completion is told, and promised by nobody."""
    row = "sampling.seed"
    if not exam.profile.sampling.seed:
        return exam.findings.skip([row], "none is sent where the profile says that none is taken")
    try:
        drawn = await exam.probe.repeat(2, WORDS, seed=SEED, max_tokens=SEEDED_TOKENS)
    except (ConnectionFailed, ServerFailed) as error:
        return exam.findings.agree(row, False, f"the server failed at a request with a seed: {error}", False)
    same = "equal" if len({completion.text for completion in drawn}) == 1 else "different"
    said = f"two completions with seed {SEED} are {same}" if len(drawn) > 1 else "the content filter kept one back"
    return exam.findings.agree(row, True, f"accepted; {said}")


def check_usage(exam: Exam) -> None:
    """From all that came so far: token counts against lists, and finish reasons."""
    all_, endpoint = list(exam.completions()), exam.probe.session.endpoint
    counted = [each for each in all_ if each.generated is not None]
    off = sum(each.generated != len(each.token_ids) for each in counted)
    said = f"in {len(counted)} of {len(all_)} completions; {off} of these list another number of tokens"
    exam.findings.add(f"{endpoint} usage", "MEASURED", f"counted {said}")
    reasons = Counter(each.finish_reason for each in all_)
    exam.findings.add(f"{endpoint} finish_reason", "MEASURED", ", ".join(f"{reason} {n}" for reason, n in reasons.most_common()))
