"""The uses: their data, commands and rivals, all settings fixed here before any run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.gallery.reasoning import ASKED, CLOSING, RIGHT, WORDS, problems
from bench.gallery.rewards import FAMILIES, LETTERS_HAN
from bench.gpu.jobs import RIGHT as NUMBER
from bench.gpu.jobs import TASKS, instruction, school_problem
from blackbox_lb.vocabulary.gguf import read_gguf

__all__ = ["LAST", "USES", "Place", "Step", "Use"]

SMALL = 100
"""Test prompts of a use, where its data have more."""


@dataclass(frozen=True, slots=True)
class Place:
    """where: options of ``blb`` that name the model. out: folder of the use's runs. data: folder of
    tasks as JSONL, or None. reflector: GGUF file of a second model, that rewrites prompts for the
    prompt optimiser and judges texts, None for neither."""

    where: tuple[str, ...]
    out: Path
    data: Path | None
    reflector: Path | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A command of ``blb`` and the name of its result. judges: it is an evaluation, whose table the
    page shows under this title.

    program: another program than ``blb``, in words. A word ``@FILE`` stands for what an earlier
    step wrote into that file. labels: labelled examples that the policies of an evaluation had;
    those of one title share a table and a curve.
    """

    name: str
    words: tuple[str, ...]
    judges: str = ""
    program: tuple[str, ...] = ()
    labels: int | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """title, intro: of the page. steps: the commands at a place."""

    title: str
    intro: str
    steps: Callable[[Place], list[Step]]


def _words(*given: object) -> tuple[str, ...]:
    return tuple(str(each) for each in given)


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def _data(at: Place, name: str) -> Path:
    if at.data is None or not (at.data / name).exists():
        raise click.BadParameter(f"{name} is not in {at.data or 'any folder'}", param_hint="--data")
    return at.data / name


OPTIMISER = ("uv", "run", "--with", "gepa==0.1.4", "python", "-m", "bench.gallery.optimiser")


def _optimised(
    at: Place,
    name: str,
    task: tuple[str, ...],
    judged: tuple[str, ...],
    title: str,
    seed: str,
    calls: int,
) -> list[Step]:
    """A rival that rewrites the prompt with as many completions, alone and under the bias; nothing
    without a second model.
    """
    if at.reflector is None:
        return []
    said = at.out / f"{name}.txt"
    words = _words(
        *at.where,
        "--reflector",
        at.reflector,
        *task,
        "--seed-prompt",
        seed,
        "--calls",
        calls,
        "--out",
        said,
    )
    return [
        Step(name, words, program=OPTIMISER),
        Step(f"{name}_eval", (*judged, "--baseline-prompt", f"@{said}"), title),
    ]


def _decisions(at: Place) -> list[Step]:
    """The built-in task with greedy decisions and at .6."""
    continents, out = ("--task", "continents", "--reward", "accuracy"), at.out
    arms = (
        "--labels-only",
        "--calibrate",
        "contextual",
        "--calibrate",
        "batch",
        "--few-shot",
        4,
        "--classifier",
        "tfidf",
    )
    found = [
        Step("continents", _words("fit", *at.where, *continents, "--out", out / "continents")),
        Step(
            "continents_eval",
            _words(
                "eval",
                f"bias={out / 'continents' / 'bias.json'}",
                *at.where,
                *continents,
                "--deploy",
                "greedy",
            )
            + _words(
                "--deploy",
                "temperature=0.6",
                "--test-samples",
                2,
                *arms,
                "--baseline-prompt",
                "Answer with one word.",
            )
            + _words("--out", out / "continents"),
            "Continents of countries (built in, 80 labels)",
        ),
    ]
    judged = _words(
        "eval",
        f"bias={out / 'continents' / 'bias.json'}",
        *at.where,
        *continents,
        "--deploy",
        "greedy",
    )
    judged += _words("--store", out / "continents" / "rollouts.db", "--out", out / "optimised")
    title = "Continents, a prompt optimiser"
    return found + _optimised(
        at, "optimised", continents, judged, title, "Answer with one word.", 400
    )


NUMBERS = (10, 30, 100, 300)
"""Labels in all: a bias learns from two thirds of them and is chosen on the other third; a rival
has them all.
"""
VARYING = (30, 100, 300)
"""Those from which a bias that depends on the words of the prompt is learned."""
TITLES = {
    "sst2": "SST-2, sentiment",
    "agnews": "AG News, topics",
    "trec": "TREC, kinds of questions",
    "rte": "RTE, entailment",
}


def _labels(at: Place) -> list[Step]:
    """Four public decisions, with ever more labels for the biases and for their rivals alike."""
    return [step for task, title in TITLES.items() for step in _labelled(at, task, title)]


def _labelled(at: Place, task: str, title: str) -> list[Step]:
    lines = _data(at, f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    train, rest = (
        [row for row in rows if (row["split"] == "train") is wanted] for wanted in (True, False)
    )
    test, found = [row for row in rest if row["split"] == "test"], list[Step]()
    asked = _words(
        "--reward",
        "contains",
        "--max-tokens",
        4,
        "--test-limit",
        SMALL,
        "--labels",
        ",".join(TASKS[task]),
    )
    asked = (*at.where, *asked, *_words("--store", at.out / f"{task}.db"))
    for number in NUMBERS:
        name, own = f"{task}_{number}", train[:number]
        cut = [
            row | {"split": "train" if place < len(own) - len(own) // 3 else "validation"}
            for place, row in enumerate(own)
        ]
        learned = _words("--data", _write(at.out / f"{name}.jsonl", [*cut, *test]))
        # An evaluation does not read the validation rows.
        whole = _words("--data", _write(at.out / f"{name}_all.jsonl", [*own, *rest]))
        biases = {"fixed": name} | ({"words": f"{name}_words"} if number in VARYING else {})
        for kind, folder in biases.items():
            depends = ("--depends-on", "words") if kind == "words" else ()
            found.append(
                Step(folder, ("fit", *asked, *learned, *depends, "--out", str(at.out / folder)))
            )
        judged = (
            "eval",
            *(f"{kind}={at.out / folder / 'bias.json'}" for kind, folder in biases.items()),
            *asked,
            *whole,
        )
        judged += (
            "--deploy",
            "greedy",
            "--labels-only",
            "--calibrate",
            "contextual",
            "--calibrate",
            "batch",
        )
        judged += ("--classifier", "tfidf")
        if number in (min(NUMBERS), max(NUMBERS)):
            judged += ("--few-shot", "4")
        if number == max(NUMBERS):
            judged += (
                "--baseline-prompt",
                instruction(task),
                "--deploy",
                "temperature=0.6",
                "--test-samples",
                "2",
            )
        judged += ("--out", str(at.out / f"{name}_eval"))
        found.append(Step(f"{name}_eval", judged, title, labels=number))
    return found


PEOPLE = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Greta",
    "Hugo",
    "Ida",
    "Jonas",
    "Karl",
    "Lena",
    "Mona",
    "Nils",
)
CITIES = (
    "Oslo",
    "Rome",
    "Lyon",
    "Bonn",
    "Porto",
    "Turin",
    "Ghent",
    "Malmo",
    "Graz",
    "Brno",
    "Leeds",
    "Cork",
)


def _openers(at: Place) -> list[Step]:
    """Sentences to be turned into JSON; a model that was trained on chats puts a fence around
    it.
    """
    rng, rows = random.Random(0), list[dict[str, str]]()
    people = [(name, city) for name in PEOPLE for city in CITIES]
    rng.shuffle(people)
    for (name, city), split in zip(
        people, ["train"] * 30 + ["validation"] * 16 + ["test"] * 40, strict=False
    ):
        age = rng.randint(18, 80)
        text = f"{name} is {age} years old and lives in {city}."
        asked = (
            'Turn this sentence into JSON with the keys "name", "age" (a number) and "city":'
            f" {text}"
        )
        rows.append(
            {
                "prompt": asked,
                "answer": json.dumps({"name": name, "age": age, "city": city}),
                "split": split,
            }
        )
    data = _write(at.out / "records.jsonl", rows)
    # An answer of the data is one right text, and completions are judged by what they mean: nothing
    # is learned from it.
    task = _words(
        "--data",
        data,
        "--max-tokens",
        48,
        "--store",
        at.out / "store.db",
        "--seed",
        1,
        "--deploy",
        "greedy",
    )
    strict, stripped = (
        ("--reward", "bench.gallery.rewards:record"),
        ("--reward", "bench.gallery.rewards:stripped_record"),
    )
    learn = _words(
        "--learn-from",
        "samples",
        "--samples-per-prompt",
        8,
        "--tau",
        0.25,
        "--validation-samples",
        1,
    )
    biases = [f"{name}={at.out / name / 'bias.json'}" for name in ("one", "first")]
    said = "Write the JSON object alone, without a code block or any other text."
    return [
        Step("one", _words("fit", *at.where, *task, *strict, *learn, "--out", at.out / "one")),
        Step(
            "first",
            _words(
                "fit",
                *at.where,
                *task,
                *strict,
                *learn,
                "--phases",
                "first",
                "--out",
                at.out / "first",
            ),
        ),
        Step(
            "strict",
            _words(
                "eval",
                *biases,
                *at.where,
                *task,
                *strict,
                "--baseline-prompt",
                said,
                "--out",
                at.out / "strict",
            ),
            "Parsed strictly",
        ),
        Step(
            "stripped",
            _words(
                "eval",
                *biases,
                *at.where,
                *task,
                *stripped,
                "--baseline-prompt",
                said,
                "--out",
                at.out / "stripped",
            ),
            "Parsed by a client that takes fences off",
        ),
    ]


SUBJECTS = (
    *(
        "봄",
        "커피",
        "기차",
        "바다",
        "도서관",
        "음악",
        "자전거",
        "은행",
        "겨울",
        "고양이",
        "영화",
        "축구",
    ),
    *("요리", "여행", "병원", "학교", "시장", "날씨", "책", "꽃", "비행기", "산", "컴퓨터", "우유"),
)
REQUESTS = (
    "{}에 대해 세 문장으로 설명해 주세요.",
    "{}에 관한 짧은 글을 써 주세요.",
    "{}의 장점과 단점을 알려 주세요.",
    "{}에 대해 왜 중요한지 설명해 주세요.",
)
HAN = (
    *(
        "春夏秋冬",
        "東西南北",
        "日月山水",
        "你好世界",
        "大韓民國",
        "漢字",
        "學校",
        "圖書館",
        "北京大学",
        "中华人民共和国",
    ),
    *(
        "上海",
        "台北",
        "東京",
        "京都",
        "電車",
        "新聞",
        "音樂",
        "天安门",
        "长城",
        "人工智能",
        "山川草木",
        "花鳥風月",
    ),
)
ENTRIES = (16, 64, 300, 1024)


def _script(at: Place) -> list[Step]:
    """Korean prompts, in whose answers a model that learned much Chinese leaves the script, and
    prompts that quote Chinese.
    """
    asked = [request.format(subject) for request in REQUESTS for subject in SUBJECTS]
    random.Random(0).shuffle(asked)
    cut = {"train": asked[:40], "validation": asked[40:56], "test": asked[56:]}
    data = _write(
        at.out / "korean.jsonl",
        ({"prompt": each, "split": split} for split, rows in cut.items() for each in rows),
    )
    copies = zip(HAN, ["train", "validation"] + ["test"] * len(HAN), strict=False)
    rows = (
        {"prompt": f"다음 글자를 그대로 옮겨 쓰세요: {each}", "answer": each, "split": split}
        for each, split in copies
    )
    quotes = _write(at.out / "quotes.jsonl", rows)
    ban, model = (
        at.out / "han.txt",
        at.where[at.where.index("--model") + 1] if "--model" in at.where else "",
    )
    arms = _words("--baseline-words", f"{ban}:-100") if model.endswith(".gguf") else ()
    if arms:
        texts = (
            raw.decode(errors="replace").strip() for raw in read_gguf(Path(model)).ordinary.values()
        )
        ban.write_text(
            "".join(
                f"{text}\n" for text in sorted({text for text in texts if LETTERS_HAN.search(text)})
            )
        )
    task = _words(
        "--data",
        data,
        "--reward",
        "bench.gallery.rewards:one_script",
        "--max-tokens",
        60,
        "--store",
        at.out / "store.db",
    )
    task += ("--deploy", "temperature=0.7")
    learn = _words("--samples-per-prompt", 24, "--validation-samples", 8, "--test-samples", 4)
    learn += ("--tau", "0.5", "--tau", "0.25", "--tau", "0.1", "--entries", str(max(ENTRIES)))
    found = [
        Step("fit", _words("fit", *at.where, *task, *learn, "--out", at.out / str(max(ENTRIES))))
    ]
    for entries in ENTRIES[:-1]:
        out = at.out / str(entries) / "bias.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        learned = at.out / str(max(ENTRIES)) / "learned.json"
        words = _words(
            "compile", learned, "--entries", entries, "--store", at.out / "store.db", "--out", out
        )
        found.append(Step(f"compile_{entries}", words))
    biases = [f"{entries}-entries={at.out / str(entries) / 'bias.json'}" for entries in ENTRIES]
    judged = _words("eval", *biases, *at.where, *task, "--test-samples", 4, *arms)
    copied = _words(
        "eval",
        *biases,
        *at.where,
        "--data",
        quotes,
        "--reward",
        "bench.gallery.rewards:quoted",
        "--max-tokens",
        40,
    )
    copied += _words(
        "--store", at.out / "store.db", "--deploy", "greedy", *arms, "--out", at.out / "quotes"
    )
    said = "한국어로만 답하고 한자는 쓰지 마세요."
    return [
        *found,
        Step(
            "eval",
            (*judged, "--baseline-prompt", said, "--out", str(at.out / "eval")),
            "Korean alone, T = .7",
        ),
        Step("quotes", copied, "Chinese that is to be quoted"),
    ]


SPLITS = {"train": 40, "validation": 16, "test": 40}


def _reasoned(
    at: Place, rows: Iterable[Mapping[str, Any]], longest: int, right: str, count: str
) -> tuple[str, ...]:
    """Options of a task that is reasoned about up to "Answer:", for right answers in few tokens.
    longest: of a completion.
    """
    data = _write(at.out / "problems.jsonl", rows)
    task = _words(
        "--data", data, "--max-tokens", longest, "--reward", "correct-and-short", "--correct", right
    )
    return task + _words("--thinking", f"until:{CLOSING}", "--count", count)


def _by_hand(at: Place, budget: int) -> tuple[str, ...]:
    """What one would write down instead: a list of words, weight on "Answer:", a cut, no reasoning,
    an instruction.
    """
    words = at.out / "words.txt"
    words.write_text("\n".join(WORDS) + "\n")
    arms = _words("--baseline-words", f"{words}:-2", "--baseline-close", 2, "--baseline-close", 5)
    return arms + _words(
        "--baseline-thinking-tokens",
        budget,
        "--baseline-thinking-tokens",
        0,
        "--baseline-prompt",
        "Be brief.",
    )


def _shorter(at: Place) -> list[Step]:
    """Generated word problems: short reasoning that ends in the right number, greedy."""
    rows, drawn = list[dict[str, str]](), iter(problems(sum(SPLITS.values())))
    for split, number in SPLITS.items():
        taken = [next(drawn) for _ in range(number)]
        rows += [
            {"prompt": ASKED.format(text), "answer": str(total), "split": split}
            for text, total in taken
        ]
    task = _reasoned(at, rows, 120, RIGHT, "thinking")
    kept = _words("--store", at.out / "store.db", "--deploy", "greedy", "--seed", 1)
    learn = _words("--samples-per-prompt", 6, "--tau", 0.5, "--tau", 0.25, "--entries", 300)
    judged = _words("eval", f"bias={at.out / 'one' / 'bias.json'}", *at.where, *task, *kept)
    optimised = (*judged, *_words("--out", at.out / "optimised"))
    return [
        Step("one", _words("fit", *at.where, *task, *kept, *learn, "--out", at.out / "one")),
        Step(
            "eval",
            (*judged, *_by_hand(at, 40), *_words("--out", at.out / "eval")),
            "Reasoning in word problems",
        ),
        *_optimised(
            at, "optimised", task, optimised, "Word problems, a prompt optimiser", "Be brief.", 300
        ),
    ]


SCHOOL = {"train": 24, "validation": 12, "test": 30}
LAST = r"regex:(?<![\d.,-]){answer}(?:\.0+)?(?!\d|[.,]\d)\D*$"
"""The last number of all, as GSM8K is scored where a model forgets the words that it was to end
with.
"""


def _school(at: Place) -> list[Step]:
    """School problems (GSM8K) in the same way. One bias is chosen by the reward, one for the fewest
    tokens at equal accuracy.
    """
    lines = {split: _gsm8k(at, "test" if split == "test" else "train") for split in SCHOOL}
    if not all(lines.values()):
        raise click.BadParameter(
            f"gsm8k is not in or beside {at.data or 'any folder'}", param_hint="--data"
        )
    first = {"train": 0, "validation": SCHOOL["train"], "test": 0}
    rows = [
        _school_row(line, split)
        for split, number in SCHOOL.items()
        for line in lines[split][first[split] : first[split] + number]
    ]
    task = _reasoned(at, rows, 300, LAST, "all")
    kept = _words("--store", at.out / "store.db", "--deploy", "greedy", "--seed", 1)
    learn = _words(
        "--samples-per-prompt", 4, "--tau", 1, "--tau", 0.5, "--tau", 0.25, "--entries", 300
    )
    found = [
        Step(
            name,
            _words(
                "fit",
                *at.where,
                *task,
                *kept,
                *learn,
                "--objective",
                objective,
                "--out",
                at.out / name,
            ),
        )
        for name, objective in (("short", "reward"), ("as-right", "pareto"))
    ]
    biases = [f"{step.name}={at.out / step.name / 'bias.json'}" for step in found]
    judged = _words(
        "eval", *biases, *at.where, *task, *kept, *_by_hand(at, 150), "--out", at.out / "eval"
    )
    return [*found, Step("eval", judged, "Reasoning in school problems")]


def _school_row(line: Mapping[str, str], split: str) -> dict[str, Any]:
    """A row of GSM8K, asked like the generated problems; 1,234 is right with its comma, too."""
    number = school_problem(line, split)["answer"]
    accepted = [number, f"{int(number):,}"] if len(number) > 3 else number
    return {"prompt": ASKED.format(line["question"]), "answer": accepted, "split": split}


def _gsm8k(at: Place, split: str) -> list[dict[str, str]]:
    """The rows of GSM8K's own file, whose folder stands in or beside the folder of tasks; none
    where it is not there.
    """
    folders = [] if at.data is None else [folder / "gsm8k" for folder in (at.data, at.data.parent)]
    source = next(
        (folder / f"{split}.jsonl" for folder in folders if (folder / f"{split}.jsonl").exists()),
        None,
    )
    return (
        []
        if source is None
        else [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    )


PLACES = (
    "a harbour",
    "a library",
    "a mountain village",
    "a night market",
    "an old theatre",
    "a train station",
    "a lighthouse",
)
OTHER_PLACES = (
    *("a hospital", "a desert inn", "a bakery", "a museum", "an apartment block"),
    *("a farm", "a ferry", "a village school", "a circus"),
)
"""Where the stories of validation and test take place: none of them was looked at before the run.
"""
EVENTS = (
    "a storm begins",
    "two friends meet again",
    "someone loses a letter",
    "a stranger asks for help",
    "the lights go out",
)
WRITING = ("uv", "run", "python", "-m", "bench.gallery.writing")


def _slop(at: Place) -> list[Step]:
    """Openings of stories, with fewer of the words that generated prose is full of, at a
    temperature of .7.
    """
    asked = "Write the opening of a short story in {}, where {}."
    rows = [
        {"prompt": asked.format(place, event), "split": "train"}
        for place in PLACES
        for event in EVENTS
    ]
    fresh = [asked.format(place, event) for place in OTHER_PLACES for event in EVENTS]
    random.Random(0).shuffle(fresh)
    rows += [
        {"prompt": each, "split": "validation" if number < 15 else "test"}
        for number, each in enumerate(fresh)
    ]
    data, words = _write(at.out / "stories.jsonl", rows), at.out / "words.txt"
    words.write_text("\n".join((*FAMILIES, "—", "–", "--")) + "\n", encoding="utf-8")
    task = _words(
        "--data", data, "--reward", "bench.gallery.rewards:little_slop", "--max-tokens", 60
    )
    task += _words("--store", at.out / "store.db", "--deploy", "temperature=0.7")
    drawn = ("--samples-per-prompt", "20")
    learn = _words(
        *drawn, "--validation-samples", 3, "--test-samples", 3, "--tau", 4, "--tau", 2, "--tau", 1
    )
    arms = _words(
        "--test-samples", 3, "--baseline-words", f"{words}:-3", "--baseline-words", f"{words}:-100"
    )
    arms += ("--baseline-prompt", "Use plain words, no clichés and no flowery adjectives.")
    judged = _words(f"bias={at.out / 'fit' / 'bias.json'}", *at.where, *task, *arms)
    judge = () if at.reflector is None else _words("--judge", at.reflector)
    return [
        Step("fit", _words("fit", *at.where, *task, *learn, "--out", at.out / "fit")),
        Step(
            "eval",
            ("eval", *judged, "--out", str(at.out / "eval")),
            "Stock words and dashes in stories",
        ),
        Step("writing", (*judged, *drawn, *judge), program=WRITING),
    ]


def _limits(at: Place) -> list[Step]:
    """Decisions that a bias should not mend, looked at beforehand and fitted all the same."""
    pairs = [(one, other) for one in range(2, 16) for other in range(2, 16)]
    random.Random(0).shuffle(pairs)
    asked = "What is {} times {} modulo 4? Answer with one digit: 0, 1, 2 or 3."
    splits = ["train"] * 60 + ["validation"] * 40 + ["test"] * 80
    rows = [
        {"prompt": asked.format(one, other), "answer": str(one * other % 4), "split": split}
        for (one, other), split in zip(pairs, splits, strict=False)
    ]
    # A number is right where it is the whole answer: "0, 2" contains both.
    tasks = {"numbers": (_write(at.out / "numbers.jsonl", rows), "exact-match")}
    if at.data is not None:
        tasks["entailment"] = (_data(at, "rte.jsonl"), "contains")
    found = []
    for name, (data, reward) in tasks.items():
        task = _words("--data", data, "--reward", reward, "--max-tokens", 4)
        found.append(
            Step(f"{name}_check", _words("check", *at.where, *task, "--out", at.out / name))
        )
        found.append(
            Step(
                name, _words("fit", *at.where, *task, "--test-limit", SMALL, "--out", at.out / name)
            )
        )
        judged = _words(
            "eval",
            f"bias={at.out / name / 'bias.json'}",
            *at.where,
            *task,
            "--test-limit",
            SMALL,
            "--deploy",
            "greedy",
        )
        arms = _words("--labels-only", "--classifier", "tfidf", "--out", at.out / name)
        found.append(Step(f"{name}_eval", judged + arms, name.capitalize()))
    return found + _reasoning(at)


def _reasoning(at: Place) -> list[Step]:
    """School problems that the model cannot solve: right answers are what is rewarded, and no token
    makes them.
    """
    lines = _gsm8k(at, "test")
    if not lines:
        return []
    splits = ["train"] * 30 + ["validation"] * 20 + ["test"] * 60
    rows = [school_problem(line, split) for line, split in zip(lines, splits, strict=False)]
    out = at.out / "gsm8k"
    task = _words(
        "--data", _write(at.out / "gsm8k.jsonl", rows), "--reward", "accuracy", "--correct", NUMBER
    )
    task += _words("--max-tokens", 200, "--deploy", "greedy")
    learn = _words("--samples-per-prompt", 12, "--validation-samples", 1, "--test-samples", 1)
    said = "Be careful with each calculation."
    judged = _words(
        "eval",
        f"bias={out / 'bias.json'}",
        *at.where,
        *task,
        "--baseline-prompt",
        said,
        "--out",
        out,
    )
    return [
        Step("gsm8k", _words("fit", *at.where, *task, *learn, "--out", out)),
        Step("gsm8k_eval", judged, "GSM8K"),
    ]


AGES = ("young", "adult", "middle", "old")
AGES_BY_CITY = {
    "Lisbon": (0.4, 0.3, 0.2, 0.1),
    "Oslo": (0.1, 0.2, 0.3, 0.4),
    "Quito": (0.2, 0.3, 0.3, 0.2),
    "Perth": (0.1, 0.4, 0.4, 0.1),
}
"""Wanted shares of the age groups; their mean over the cities is .2, .3, .3, .2."""
SHOPS: Mapping[str, tuple[str, ...]] = {
    "train": (
        *("bakery", "bookshop", "florist", "gym", "pharmacy"),
        *("toy shop", "wine shop", "hardware store", "pet shop"),
    ),
    "validation": ("record shop", "butcher", "travel agency", "shoe shop"),
    "test": (
        *("cinema", "fish market", "tea house", "bicycle shop"),
        *("garden centre", "optician"),
    ),
}
PROFILES = (
    "Write one line about a customer of a {shop} in {city}. Begin with the age group: {ages}.",
    "In one line, describe somebody who shops at a {shop} in {city}, age group ({ages}) first.",
)
DIGIT = "{verb} a random digit from 0 to 9 for {purpose}. Answer with the digit alone."
PURPOSES: Mapping[str, tuple[str, ...]] = {
    "train": (
        *("a locker", "a raffle", "a quiz", "a house number", "a bus line", "a jersey"),
        *("a hotel room", "a seat", "a bingo game", "a PIN", "a password", "a table"),
    ),
    "validation": ("a lottery", "a parking place", "a phone number", "a shelf", "a gate"),
    "test": (
        *("a magic trick", "a maths game", "a queue ticket", "a dice app", "a train platform"),
        *("a postcode", "a competition", "a key code", "a card game", "a draw"),
    ),
}
VERBS = ("Give me", "Pick", "Choose", "Name")


def _profile_rows() -> list[dict[str, Any]]:
    """Prompts for profiles of customers, with the shares of their city."""
    ages = ", ".join(AGES)
    return [
        {
            "prompt": frame.format(shop=shop, city=city, ages=ages),
            "answer": dict(zip(AGES, shares, strict=True)),
            "city": city,
            "split": split,
        }
        for split, shops in SHOPS.items()
        for shop in shops
        for frame in PROFILES
        for city, shares in AGES_BY_CITY.items()
    ]


def _digit_rows() -> list[dict[str, Any]]:
    """Prompts for a random digit, every digit as often as any other."""
    return [
        {
            "prompt": DIGIT.format(verb=verb, purpose=purpose),
            "answer": {str(digit): 1 for digit in range(10)},
            "split": split,
        }
        for split, purposes in PURPOSES.items()
        for purpose in purposes
        for verb in VERBS
    ]


def _margins(at: Place) -> list[Step]:
    """Profiles with wanted age groups, by a fixed bias and by one that depends on the city; and a
    digit that is to be uniform.
    """
    profiles = _write(at.out / "profiles.jsonl", _profile_rows())
    digits = _write(at.out / "digits.jsonl", _digit_rows())
    few = ("--validation-limit", 20, "--test-limit", 24)
    one = ("--data", profiles, "--reward", "distribution:city", "--max-tokens", 6, *few)
    two = ("--data", digits, "--reward", "distribution", "--max-tokens", 3, *few)
    samples = ("--test-samples", 2)
    store = ("--store", at.out / "profiles.db")
    city = ("--depends-on", "groups:city")
    fixed_bias = f"fixed={at.out / 'fixed' / 'bias.json'}"
    city_bias = f"by-city={at.out / 'by-city' / 'bias.json'}"
    digit_bias = f"digit={at.out / 'digit' / 'bias.json'}"
    return [
        Step("fixed", _words("fit", *at.where, *one, *samples, *store, "--out", at.out / "fixed")),
        Step(
            "by-city",
            _words("fit", *at.where, *one, *samples, *store, *city, "--out", at.out / "by-city"),
        ),
        Step(
            "profiles_eval",
            _words("eval", fixed_bias, city_bias, *at.where, *one, *samples, *store)
            + _words("--rivals", "--out", at.out / "profiles"),
            "Age groups of customers, by city",
        ),
        Step("digit", _words("fit", *at.where, *two, *samples, "--out", at.out / "digit")),
        Step(
            "digit_eval",
            _words("eval", digit_bias, *at.where, *two, *samples, "--rivals")
            + _words("--out", at.out / "digit"),
            "A random digit",
        ),
    ]


CALLS = ("uv", "run", "python", "-m", "bench.gallery.calls")


def _tools(at: Place) -> list[Step]:
    """Prompts with one function that fits or does not: a fit of the decision, then the decisions
    of all policies on unseen prompts from one token each, and some whole calls.
    """
    data = ("--data", _data(at, "calls.jsonl"))
    out = at.out / "call"
    few = ("--limit", 40, "--validation-limit", 40, "--test-limit", 8)
    store = ("--store", at.out / "lists.db")
    fit = ("fit", *at.where, *data, "--decide", "calls-tool", "--reward", "accuracy", *store)
    judged = (*at.where, *data, "--bias", out / "bias.json", *store)
    return [
        Step("call", _words(*fit, "--max-tokens", 1, *few, "--out", out)),
        Step("calls", _words(*judged, "--prompts", 32, "--whole", 4), program=CALLS),
    ]


USES: Mapping[str, Use] = {
    "decisions": Use(
        "Decisions between labels",
        "A label for each prompt, greedy and at temperature .6. Rivals: the labels alone (all else"
        " forbidden), both calibrations, examples in the prompt, an instruction, and a classifier"
        " of words without any language model. The prompt optimiser (GEPA 0.1.4) began with the"
        ' instruction "Answer with one word." and had 400 completions, about as many as the fit in'
        " all (415). Its second model, which rewrites the instruction, was Qwen2.5-Coder-0.5B: far"
        " weaker than those that it is meant for, which limits it.",
        _decisions,
    ),
    "labels": Use(
        "Decisions, from 10 to 300 labels",
        "With 10 labels calibration, which needs none, is better than a learned bias on three of"
        " these four tasks. With 300 and at temperature .6 batch calibration is better on SST-2,"
        " and the classifier is better than the fixed bias on TREC. On RTE nothing is told apart"
        " from the base.\n\nFour public tasks, each with 10, 30, 100 and 300 labelled examples in"
        ' all; an answer is right where its first four tokens contain the label ("contains"). A'
        " bias learns from two thirds of them and is chosen on the other third; a rival has them"
        " all. Two biases: a fixed one, and from 30 labels on one that depends on the words of the"
        " prompt, which a fit declines where a fixed one does as well (the runs below say where)."
        " Rivals: the labels alone (all else forbidden), both calibrations and an instruction,"
        " which need no labelled example; four examples in the prompt; and a classifier of words"
        " without any language model. The table at temperature .6 is for 300 labels. Ten rows are"
        " too few for a fit to see by itself that their answers are labels: a first run, which did"
        " not name them, learned from samples instead (5 minutes, no evidence). A second run, of AG"
        " News alone, had 150 more labels to choose on, and its classifier always had 300: fixed"
        " biases of 10, 30, 100 and 300 labels .68, .64, .77 and .74 right, words .78, classifier"
        " .80, all level.",
        _labels,
    ),
    "openers": Use(
        "Openers and format",
        "A sentence is to be turned into one JSON object, and the model puts a Markdown fence"
        " around it, which a strict parser refuses. Rivals: an instruction, and a client that takes"
        " fences off, which costs nothing where one may change the client.",
        _openers,
    ),
    "script": Use(
        "The wrong script",
        "Korean prompts, in whose answers the model goes over into Chinese characters. An answer is"
        " right without any of them and with at least ten Korean syllables, so that an English one"
        " does not count. Rivals: a ban of every token of the vocabulary that holds a Chinese"
        " character, and an instruction. The second table asks for Chinese to be copied, where the"
        " same biases must do no harm. Korean was chosen among eight languages before the run: at T"
        " = .7 Chinese characters were in 10 % of 40 Korean answers, 5 % Vietnamese, 2.5 % Russian,"
        " none in Arabic, Thai, Hindi and Turkish; in greedy answers of ten prompts there were"
        " none, so that the use is judged at .7. It leaked less in the run than before it, so that"
        " there was little to learn. A first run of the second table was refused, since its rows"
        " had no training split; one training and one validation row were added.",
        _script,
    ),
    "shorter": Use(
        "Shorter reasoning",
        'Word problems of one or two steps, reasoned and then answered behind "Answer:", with a'
        " reward for right answers after few tokens of reasoning. Rivals: a hand list of words that"
        ' begin steps at -2, more weight on "Answer:", a hard cut after 40 tokens, no reasoning at'
        " all, and an instruction. An earlier run of the same problems, with other samples and"
        " phases, is in the [results](../results.md#shorter-reasoning): its fit learned more (2.85"
        " to 29.1), and no thinking was the best there, too.",
        _shorter,
    ),
    "school": Use(
        "Shorter reasoning, GSM8K",
        "School problems, reasoned and then answered, with a reward for right answers after few"
        " tokens: 24 problems to learn from, four samples each; 12 to choose on. Two biases of the"
        " same samples: one chosen by the reward, one (as-right) for the fewest tokens at equal"
        ' accuracy. Rivals: a hand list of words that begin steps at -2, more weight on "Answer:",'
        " a cut after 150 tokens, no reasoning at all, and an instruction. Measured before the run"
        " on 20 training problems that it does not use, greedily: 14 of 20 ended within 300 tokens,"
        ' the limit here, and 7 came to "Answer:"; 8 were right by their last number, and 2 by the'
        ' first one after "Answer:", so that the last one counts. All tokens are counted, since'
        ' this model also reasons after "Answer:". It wrote 65 tokens a second. The fits say'
        " themselves that they had too little to learn from: the rewards of 96 samples counted as 2"
        " equal completions. The run was cut off four times and took 33 minutes in all; the minutes"
        " below are those of each command's last part.",
        _school,
    ),
    "slop": Use(
        "Stock words in stories",
        "Openings of stories with fewer stock words, stock phrases and dashes, counted for each"
        " hundred words. Rivals: a hand list of the stock words and dashes, softly (-3) and as a"
        " ban (-100), and an instruction. The list has one form of each word, as a person writes it"
        ' ("whispers"). The reward also counts other forms ("whispering") and phrases, which no'
        " list of single tokens can hold. The texts are judged beside the reward, too: by counts,"
        " by their likelihood, and by Qwen2.5-Coder-0.5B as a blind judge, which is far weaker than"
        " the models that one would ask.\n\nWhat was looked at before the settings were fixed, at T"
        " = .7: 30 stories of fifteen of the training prompts and 24 paragraphs on twelve subjects,"
        " of 100 tokens each, from SmolLM2-135M and from Qwen2.5-Coder-0.5B. Of the sixteen words"
        " and phrases of a first list, a hundred words of stories held .91 by SmolLM2 and 1.22 by"
        ' Qwen ("once upon a time" and "bustling" were ten of its 25), a hundred words of'
        " paragraphs .72 and .29. Qwen declined six of the 30 stories. SmolLM2 was taken, and what"
        " its stories were full of was added to the list: with other forms 4.6 in a hundred words"
        " of them, 2.1 in those of Qwen. Dashes were in none of these texts of SmolLM2 and in one"
        " of Qwen; of 30 letters, advertisements, dialogues, reviews and diaries each, 2 and 3 had"
        " one. Models this small hardly write any, so that this page cannot show whether a bias"
        " removes them. The judge was tried on 16 of these stories beside their own words in a"
        " random order: by four forms of the question (the plain one is used, with a system prompt"
        " and two examples, without the task, and for better English), the preference for the story"
        " was .50, .50, .50 and .51, and every pair flipped; asked of single texts whether they are"
        " well written, it was surer of the story in 9 of 16. So its answers below were expected to"
        " say nothing.\n\nA first run learned from 15 prompts and rewarded the sixteen words and"
        " phrases alone, for each hundred characters: -0.21 for the base, -0.16 (-0.25 to -0.09)"
        " with the bias, NO EVIDENCE; -0.12 with the instruction; 0.00 with either hand list, which"
        " won. Its 35 prompts are the training prompts here; the others take place where no earlier"
        " one did.\n\nWhat came: the ban won over the learned bias; the soft list and the"
        " instruction had higher rewards than it, too, not told apart. No bias of the fit beat the"
        " base on the validation prompts. The one that was judged moves no token by more than .19"
        " nats, and the fit says that about 112 prompts would be needed. It wrote 1.1 stock words"
        " fewer in a hundred words, which is not beyond chance among all comparisons. Lists and"
        " bias left length, repetition and likelihood as they were. Four words of the list"
        " (creaking, crumbling, flickering, bygone) have no token of their own, so that a list of"
        " words cannot act on them. Among what learning found and the list lacks are the first"
        " pieces of two of these, words of two phrases, two other forms of listed words and a"
        " spelling of the dash.",
        _slop,
    ),
    "tools": Use(
        "To call a function or to answer",
        "A chat prompt with one function, which answers it or does not. A bias shifts the tokens"
        " that begin a call, and the same generation goes on as a call or as an answer: no second"
        " request, no token of prompt. It chooses a point on the curve and does not lift the curve:"
        " the AUC is the model's own. Rivals: an instruction, two examples, `tool_choice`, and a"
        " threshold in the client with two requests. 40 + 40 prompts to learn and to choose, and 32"
        " to judge: few, because a list took this machine, which others used at the same time,"
        " about ten seconds. A first fit had 24 prompts of each kind of split, and its verdict was"
        " NO EVIDENCE: .67 right without and .75 with the bias, on 24 test prompts.",
        _tools,
    ),
    "margins": Use(
        "Wanted shares of labels",
        "Synthetic data with given margins, at temperature 1. One-line profiles of customers begin"
        " with an age group, whose wanted shares are .2, .3, .3, .2 over all and others in each of"
        " four cities; a fixed bias, and one that depends on the city. And a random digit, in which"
        " every digit is to be as frequent as any other. The reward is minus the total variation"
        " between the first label named and the wanted shares, on shops and purposes that were not"
        " learned; a completion without a label counts as wrong. Rivals: temperature 1.5, the"
        " shares in words (each prompt asks for its own), and the label drawn in code and asked for"
        " in the prompt, which is what to do wherever the attribute is free. 24 test prompts, two"
        " completions of each, cut after the label: a busy machine of two cores had no more time,"
        " and what a bias does to the rest of the text is not on this page. A first run asked for"
        ' age groups as "18-29" and "30-44", labels of five tokens: the fit predicted a total'
        " variation of .40 from their first digits, and .99 came (base .92), since a bias on digits"
        " also acts on the rest of a label. Since then candidates for labels of several tokens are"
        " compared by completions, and the groups here are words of one token.",
        _margins,
    ),
    "limits": Use(
        "Where it does not help",
        "What depends on what the model does not know: arithmetic modulo 4, where half of all"
        " answers are 0, whether one sentence follows from another, and school problems (GSM8K). A"
        " model that is already right gains nothing, either: the second table of"
        " [openers](openers.md). What `blb check` said beforehand stands beside what came. For"
        ' numbers it was wrong: it predicted the first token, and the biased model says "0, 2". It'
        " looks past the label since 2026-11-25, and says of the same data that a fixed bias can"
        " begin 57 % of the answers right, but that answers must end there, too, and that none of"
        " the three greedy ones which begin with a label does. With `--max-tokens 1`, its remedy, a"
        " fit went from .09 to .45 right (HELPS), still no more than always saying 0, .49. A first"
        ' run rewarded numbers by `contains`, under which "0, 2" is right where 0 is wanted and'
        " where 2 is, and seemed to help, from .04 to .71; the decisions, which it told beside"
        " that, were right .45 of the time. A fit now says how many of its right answers name"
        " another label first: 21 of 80.",
        _limits,
    ),
}
