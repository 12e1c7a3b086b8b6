"""The job that fills the cache with a session's tokens before the first question about them arrives."""

from dataclasses import dataclass

from speculative.engine.interface import RowOutcome, RowRequest
from speculative.engine.session import Session


@dataclass(slots=True, eq=False)
class Prefill:
    """Feeds a session's tokens and asks for nothing.

    All but the last token stay in the cache: the law behind the last one is what the next job asks for, and a law
    comes only with a token that is fed.
    """

    session: Session

    @property
    def extra_token_ids(self) -> tuple[int, ...]:
        """None."""
        return ()

    @property
    def num_rows(self) -> int:
        """None."""
        return 0

    def request(self, first_row: int) -> RowRequest:  # noqa: ARG002  # there are none
        """Never called: no rows are wanted."""
        raise ValueError("a prefill wants no rows")

    def consume(self, outcome: RowOutcome | None) -> bool:  # noqa: ARG002  # there is none
        """Done after the step that fed the last token."""
        self.session.cached_len = len(self.session.token_ids) - 1
        return True
