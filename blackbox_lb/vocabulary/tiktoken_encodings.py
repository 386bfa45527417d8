"""OpenAI's vocabularies in tiktoken: its encodings, and how to read them without internet."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import OF_REQUESTS, check_environment
from blackbox_lb.vocabulary.tokenizer import Vocabulary, rust_errors

RANK_FILES = "https://openaipublic.blob.core.windows.net"
"""The host of tiktoken's own rank files."""


def encoding_names() -> Sequence[str]:
    """The encodings that tiktoken and its plugins (namespace ``tiktoken_ext``) define.

    Raises:
        InputError: a plugin is broken.
    """
    import tiktoken

    try:
        return tiktoken.list_encoding_names()
    except (ImportError, ValueError) as error:
        raise InputError(
            f"a plugin of tiktoken cannot be loaded: {error}; update it, or uninstall it"
        ) from error


def read_encoding(name: str) -> Vocabulary:
    """The vocabulary of tiktoken's encoding ``name``.

    Raises:
        InputError: its rank file is not in tiktoken's cache and cannot be fetched, or is damaged.
    """
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(name)
    except OSError as error:
        raise InputError(_why_unread(name, error)) from error
    except (ImportError, ValueError) as error:
        raise InputError(f"tiktoken cannot load {name}: {error}") from error
    special = {text: encoding.encode_single_token(text) for text in encoding.special_tokens_set}
    ordinary = {}
    for token in set(range(encoding.n_vocab)).difference(special.values()):
        try:
            ordinary[token] = encoding.decode_single_token_bytes(token)
        except KeyError:  # ids between the special tokens have no token
            continue
    # Of two names of one id the plainer one is first, so that no token is printed as reserved.
    ordered = dict(
        sorted(special.items(), key=lambda item: (item[1], "reserved" in item[0], item[0]))
    )

    def encode(text: str) -> list[int]:
        with rust_errors(f"tiktoken cannot encode {text[:40]!r}"):
            return encoding.encode_ordinary(text)

    return Vocabulary(name, ordinary, ordered, encoding.n_vocab, encode)


def cache_folder() -> Path | None:
    """tiktoken's folder of rank files; None where an empty variable switches its cache off."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        folder = os.environ.get(variable)
        if folder:
            return Path(folder)
        if folder == "":
            return None
    return Path(tempfile.gettempdir(), "data-gym-cache")


def cache_name(address: str) -> str:
    """The name of the file in tiktoken's cache that holds a web address."""
    return hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()


def _why_unread(name: str, error: OSError) -> str:
    """Why an encoding cannot be read, and the remedy.

    Raises:
        InputError: a variable of the network is at fault.
    """
    check_environment(RANK_FILES, OF_REQUESTS)
    address = getattr(getattr(error, "request", None), "url", None)
    if address is None and error.errno is None:  # the request could not even be made
        return f"the rank file of {name} cannot be fetched: {error}"
    if address is None:  # no failed download: the cache itself
        return (
            f"tiktoken cannot read or write its cache for {name}: {error}; TIKTOKEN_CACHE_DIR says"
            " where it is"
        )
    folder = cache_folder()
    reason = "tiktoken's cache is switched off"
    if folder is not None:
        reason = f"it is not in tiktoken's cache {folder}"
    return (
        f"{name} needs the rank file {address}: {reason}, and it cannot be fetched"
        f" ({type(error).__name__}). Fetch it on a machine with internet, save it as"
        f" {cache_name(address)} in a folder, and set TIKTOKEN_CACHE_DIR to that folder"
    )
