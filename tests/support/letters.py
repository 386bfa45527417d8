"""``python -m tests.support.letters decisions``: bench.gallery with one small page, whose letters an
exact model knows.
"""

from __future__ import annotations

from unittest.mock import patch

from bench.gallery import __main__ as program
from bench.gallery.use import Use

PAGE = Use(
    {
        "title": "Letters",
        "intro": "Letters of an exact model.",
        "parts": {
            "task": "@model --data OUT/letters.jsonl --reward contains --max-tokens 4"
            " --store OUT/store.db --deploy temperature=1",
        },
        "rows": [
            {
                "file": "letters.jsonl",
                "by": "crossed",
                "cross": ["frame", "number", "letter"],
                "answer": "letter",
                "blocks": [
                    {
                        "frame": [f"Letter of {split} {{number}}? It is near {{letter}}."],
                        "number": [str(number) for number in range(3)],
                        "letter": ["a", "b"],
                        "splits": {split: 6},
                    }
                    for split in ("train", "validation", "test")
                ],
            }
        ],
        "steps": [
            {
                "name": "fit",
                "run": "fit @task --learn-from samples --samples-per-prompt 16 --tau 0.5"
                " --out OUT/fit",
            },
            {
                "name": "eval",
                "title": "Letters",
                "run": "eval bias=OUT/fit/bias.json @task --go-on --test-samples 2"
                " --rival 'prompt:Be brief.' --out OUT/eval",
            },
        ],
    }
)

if __name__ == "__main__":
    with patch.object(program, "USES", {"decisions": PAGE}):
        program.main()
