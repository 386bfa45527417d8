"""``few_shot``: training examples before the prompt, as messages of the user and the
assistant.
"""

import hashlib
from collections import Counter

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.types import Message


def few_shot(case: Case, given: object) -> Alternative:
    """``given`` training examples, labels in turn, each label's in an order that the seed fixes.

    InputError: more than there are training rows with a label.
    """
    wanted = int(str(given))
    labelled = [
        (number, each) for each in case.task.train if (number := case.labels.of(each)) is not None
    ]
    mixed = [
        hashlib.sha256(f"{case.seed}\0{each.id}\0{each.prompt.text}".encode()).hexdigest()
        for _, each in labelled
    ]
    ordered = sorted(
        ((digest, *row) for digest, row in zip(mixed, labelled, strict=True)),
        key=lambda row: row[0],
    )
    if wanted > len(ordered):
        raise InputError(
            f"``few_shot={wanted}`` is more than the {len(ordered)} training rows with a label;"
            " give fewer, or more rows"
        )
    turn = Counter[int]()
    ranked = []
    for digest, number, example in ordered:
        turn[number] += 1
        ranked.append((turn[number], digest, number, example))
    chosen = sorted(sorted(ranked, key=lambda row: row[:2])[:wanted], key=lambda row: row[1])
    answered = [
        (*example.prompt.messages, Message("assistant", case.labels.names[number]))
        for *_, number, example in chosen
    ]
    shots = tuple(message for each in answered for message in each if message.role != "system")
    characters = sum(len(message.content) for message in shots)
    return Alternative(
        f"{wanted} examples",
        shots=shots,
        cost=(
            f"a completion a test prompt and sample, each with {characters:,} characters of"
            " examples before the prompt"
        ),
    )
