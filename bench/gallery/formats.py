"""The form of an answer: JSON without a fence around it, and one script."""

from __future__ import annotations

import json
import random

from bench.gallery.rewards import LETTERS_HAN
from bench.gallery.use import Place, Step, Use, by_completions, options, split_column
from bench.measuring import write_rows
from blackbox_lb.vocabulary import load_vocabulary

__all__ = ["OPENERS", "SCRIPT"]

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


OPENER_SPLITS = ["train"] * 30 + ["validation"] * 16 + ["test"] * 40


def _openers(place: Place) -> list[Step]:
    """Sentences to be turned into JSON; a model that was trained on chats puts a fence around
    it.
    """
    rng = random.Random(0)
    people = [(name, city) for name in PEOPLE for city in CITIES]
    rng.shuffle(people)
    rows = []
    for (name, city), split in zip(people, OPENER_SPLITS, strict=False):
        age = rng.randint(18, 80)
        prompt = (
            'Turn this sentence into JSON with the keys "name", "age" (a number) and "city":'
            f" {name} is {age} years old and lives in {city}."
        )
        answer = json.dumps({"name": name, "age": age, "city": city})
        rows.append({"prompt": prompt, "answer": answer, "split": split})
    # An answer of the data is one right text, and completions are judged by what they mean: nothing
    # is learned from it.
    task = options(
        *place.model,
        data=write_rows(place.out / "records.jsonl", rows),
        max_tokens=48,
        store=place.out / "store.db",
        seed=1,
        deploy="greedy",
    )
    strict = options(*task, reward="bench.gallery.rewards:record")
    stripped = options(*task, reward="bench.gallery.rewards:stripped_record")
    fit = options(
        "fit",
        *strict,
        learn_from="samples",
        samples_per_prompt=8,
        tau=0.25,
        validation_samples=1,
    )
    biases = (place.bias("one"), place.bias("first"))
    instruction = "Write the JSON object alone, without a code block or any other text."
    strict_eval = options("eval", *biases, *strict, rival=f"prompt:{instruction}")
    stripped_eval = options("eval", *biases, *stripped, rival=f"prompt:{instruction}")
    return [
        Step("one", options(*fit, out=place.out / "one")),
        Step("first", options(*fit, phases="first", out=place.out / "first")),
        Step("strict", options(*strict_eval, out=place.out / "strict"), "Parsed strictly"),
        Step(
            "stripped",
            options(*stripped_eval, out=place.out / "stripped"),
            "Parsed by a client that takes fences off",
        ),
        *by_completions(
            place,
            strict,
            [(10, 1), (30, 1), (30, 8)],
            tau=0.25,
            title="Parsed strictly",
            learning=options(learn_from="samples"),
            bias="one",
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


SCRIPT_SPLITS = {"train": 40, "validation": 16, "test": 40}
SMALL_SCRIPT_SPLITS = {"train": 24, "validation": 12, "test": 24}


def _script(place: Place) -> list[Step]:
    """Korean prompts, in whose answers a model that learned much Chinese leaves the script, and
    prompts that quote Chinese.
    """
    prompts = [request.format(subject) for request in REQUESTS for subject in SUBJECTS]
    random.Random(0).shuffle(prompts)
    splits = SMALL_SCRIPT_SPLITS if place.small else SCRIPT_SPLITS
    korean = (
        {"prompt": prompt, "split": split}
        for prompt, split in zip(prompts, split_column(splits), strict=False)
    )
    quotes = (
        {"prompt": f"다음 글자를 그대로 옮겨 쓰세요: {quote}", "answer": quote, "split": split}
        for quote, split in zip(HAN, ["train", "validation"] + ["test"] * len(HAN), strict=False)
    )
    training_samples, validation_samples, test_samples = (8, 4, 2) if place.small else (24, 8, 4)
    task = options(
        *place.model,
        data=write_rows(place.out / "korean.jsonl", korean),
        reward="bench.gallery.rewards:one_script",
        max_tokens=60,
        store=place.out / "store.db",
        deploy="temperature=0.7",
    )
    fit = options(
        "fit",
        *task,
        samples_per_prompt=training_samples,
        validation_samples=validation_samples,
        test_samples=test_samples,
        tau=0.25 if place.small else (0.5, 0.25, 0.1),
        out=place.out / "fit",
    )
    ban = _han_ban(place)
    evaluation = options("eval", place.bias("bias", "fit"), *task, test_samples=test_samples, **ban)
    instruction = "한국어로만 답하고 한자는 쓰지 마세요."
    copying = options(
        "eval",
        place.bias("bias", "fit"),
        *place.model,
        data=write_rows(place.out / "quotes.jsonl", quotes),
        reward="bench.gallery.rewards:quoted",
        max_tokens=40,
        store=place.out / "store.db",
        deploy="greedy",
        **ban,
    )
    title = "Korean alone"
    judged = options(*evaluation, rival=f"prompt:{instruction}", out=place.out / "eval")
    number = splits["train"]
    parts = [(number, 2), (number, 4), (number, training_samples)]
    curve_task = options(*task, test_samples=test_samples)
    return [
        Step("fit", fit),
        Step("eval", judged, title),
        Step(
            "quotes",
            options(*copying, out=place.out / "quotes"),
            "Chinese that is to be quoted",
        ),
        *by_completions(place, curve_task, parts, tau=0.25, title=title),
    ]


def _han_ban(place: Place) -> dict[str, str]:
    """A ban of every token that holds a Chinese character, where the model's file is at hand."""
    if "--model" not in place.model:
        return {}
    model = place.model[place.model.index("--model") + 1]
    if not model.endswith(".gguf"):
        return {}
    texts = (
        raw.decode(errors="replace").strip() for raw in load_vocabulary(model).ordinary.values()
    )
    banned = sorted({text for text in texts if LETTERS_HAN.search(text)})
    ban = place.out / "han.txt"
    ban.write_text("".join(f"{text}\n" for text in banned), encoding="utf-8")
    return {"rival": f"words:{ban}:-100"}


OPENERS = Use(
    "Openers and format",
    "A sentence is to be turned into one JSON object, and the model puts a Markdown fence around"
    " it, which a strict parser refuses. The reward is 1 where the whole answer is the right"
    ' object; greedy. Two biases learn from the same samples: "one" for all tokens, "first" for the'
    " first token alone. Rivals: an instruction; and a client that takes fences off, which costs"
    " nothing where one may change the client.",
    _openers,
    second_model=True,
)
SCRIPT = Use(
    "The wrong script",
    "Korean prompts, in whose answers the model goes over into Chinese characters. An answer is"
    " right without any of them and with at least ten Korean syllables; at temperature .7. Rivals:"
    " a ban of every token of the vocabulary that holds a Chinese character, and an instruction."
    " The second table asks for Chinese to be copied, greedily, where the bias must do no harm.",
    _script,
    second_model=True,
)
