"""An error and what it comes from."""

from collections.abc import Iterator


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its cause or else the error in whose handling it arose, and so on, each once."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
