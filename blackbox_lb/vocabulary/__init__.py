"""Vocabularies: from bytes to token ids, for providers that give a token's bytes and not its id.

A vocabulary comes from tiktoken (OpenAI's models) or from a ``tokenizer.json``. A ``.gguf`` file
has the texts of its tokens alone (``gguf``).
"""

import os
from functools import cache, lru_cache
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import explained
from blackbox_lb.safety.untrusted import open_regular
from blackbox_lb.vocabulary.tokenizer import Vocabulary

__all__ = ["Vocabulary", "load_vocabulary", "vocabulary_of_model"]


def load_vocabulary(name: str | os.PathLike[str]) -> Vocabulary:
    """Load a vocabulary.

    It is read once in a process; a changed file is read again. A vocabulary that cannot encode is
    refused, because without a fingerprint a bias could not name its tokenizer.

    Args:
        name: a tiktoken encoding (plugins' included), or the path of a tokenizer.json.

    Raises:
        InputError: no such encoding or file, a rank file that is neither cached nor reachable, a
            file of another kind or with a tokenizer that this package cannot read, or the extra
            ``hf`` is missing for a file.
    """
    from blackbox_lb.vocabulary.tokenizer_files import encoding_names

    text = os.fspath(name)
    if text in encoding_names():
        return _of_encoding(text)
    try:
        path = Path(text).expanduser()
        stat = path.stat()
    except (OSError, ValueError, RuntimeError) as error:  # no such file, no path, no such home
        raise InputError(_no_such(text)) from error
    if path.is_dir():
        raise InputError(f"{text} is a folder; name the tokenizer.json in it")
    return _of_file(path.resolve(), stat.st_mtime_ns, stat.st_size)


def vocabulary_of_model(model: str) -> str | None:
    """The name of an OpenAI model's encoding; None if it is not known.

    Dated names, Azure's ``gpt-35-turbo``, fine-tuned models (``ft:gpt-4o-mini-2024-07-18:org::id``)
    and names under ``openai/`` are understood. The name of an Azure deployment is not; give the
    name of the model behind it.
    """
    import tiktoken.model

    # Ask for the base model of a fine-tuned one. tiktoken reads the name of the latter by its first
    # letters, and takes ft:gpt-4.1... for a gpt-4.
    base = model.removeprefix("openai/").removeprefix("ft:").partition(":")[0]
    try:
        return tiktoken.model.encoding_name_for_model(base)
    except KeyError:
        return None


@cache
def _of_encoding(name: str) -> Vocabulary:
    from blackbox_lb.vocabulary.tokenizer_files import read_encoding

    return _checked(read_encoding(name))


@lru_cache(maxsize=4)
def _of_file(path: Path, modified: int, size: int) -> Vocabulary:
    """Read a file; ``modified`` and ``size`` are in the cache's key, so a change is noticed."""
    from blackbox_lb.vocabulary.tokenizer_files import read_tokenizer_json

    with explained(f"read {path}", "give another ``tokenizer``"), open_regular(path) as file:
        head = file.read(64)
    if head.lstrip().startswith(b"{"):
        return _checked(read_tokenizer_json(path))
    raise InputError(_foreign(path, head))


def _checked(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary, which can encode: its fingerprint is computed here."""
    _ = vocabulary.fingerprint
    return vocabulary


def _foreign(path: Path, head: bytes) -> str:
    if path.suffix == ".tiktoken":
        return (
            f"{path} holds ranks only, without the splitting pattern and the special tokens: name"
            f" the encoding instead, as in {path.stem}, and let TIKTOKEN_CACHE_DIR say where"
            " tiktoken finds the file"
        )
    if head.startswith(b"GGUF"):
        return (
            f"{path} is a .gguf file, which does not say how a text is split into tokens; give the"
            " tokenizer.json of the same model"
        )
    return (
        f"{path} is no tokenizer.json: it begins with {head[:8]!r}; give one: a SentencePiece"
        " .model is saved as tokenizer.json by transformers' save_pretrained"
    )


def _no_such(text: str) -> str:
    from blackbox_lb.vocabulary.tokenizer_files import encoding_names

    encoding = vocabulary_of_model(text)
    if encoding is not None:
        return f"{text!r} is a model and not a vocabulary; its vocabulary is {encoding}"
    names = ", ".join(sorted(encoding_names()))
    return (
        f"no file {text!r}, and it is no tiktoken encoding: give the path of a tokenizer.json, or"
        f" one of {names}"
    )
