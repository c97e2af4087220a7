"""The SCRAM credentials of users: the requests that list, write and remove them (KIP-554).

A password does not leave the client: the broker gets the key that the client derives from it. Belongs to the
event loop of the client.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from barnabas.client.admin.base import AdminBase, error_of, raise_errors
from barnabas.client.arguments import several
from barnabas.client.ask import ToBroker, ToController, ask
from barnabas.common.security.scram import MIN_ITERATIONS, ScramMechanism, salted_password
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.messages import authentication as wire

_SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """Adds or replaces the password of a user for one mechanism."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SHA_512
    iterations: int = MIN_ITERATIONS


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """Removes the password of a user for one mechanism."""

    user: str
    mechanism: ScramMechanism


class UserAdmin(AdminBase):
    """The methods of `Admin` for SCRAM credentials."""

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | str | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[ScramMechanism, int]]:
        """The mechanisms of each user, of all users by default, with the number of iterations.

        Users without credentials are left out. Raises a user's own error for a single user, and TopicErrors
        if some of several failed.
        """
        chosen = None if users is None else several("users", users, str)
        request = wire.DescribeUserScramCredentialsRequest(
            users=None if chosen is None else [wire.ScramUserName(name=name) for name in chosen]
        )
        response = (await self._ask(ToBroker(self._open()), request, timeout_ms)).response
        if error := error_of(response, "the users were not listed"):
            raise error
        described: dict[str, dict[ScramMechanism, int]] = {}
        errors: dict[str, ApiError] = {}
        for result in response.results:
            if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            if error := error_of(result, f"user {result.user}"):
                errors[result.user] = error
            else:
                described[result.user] = {
                    mechanism: info.iterations
                    for info in result.credential_infos
                    if (mechanism := ScramMechanism.of_number(info.mechanism)) is not None
                }
        raise_errors({**described, **errors}, len(response.results))
        return described

    async def alter_user_scram_credentials(
        self,
        changes: Iterable[ScramUpsertion | ScramDeletion] | ScramUpsertion | ScramDeletion,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Add, replace or remove passwords; all changes of one user are made together or not at all.

        Raises as `describe_user_scram_credentials`; RESOURCE_NOT_FOUND if a deleted password is missing.
        """
        given = [changes] if isinstance(changes, ScramUpsertion | ScramDeletion) else list(changes)
        upsertions = [each for each in given if isinstance(each, ScramUpsertion)]
        deletions = [each for each in given if isinstance(each, ScramDeletion)]
        if len(upsertions) + len(deletions) < len(given):
            raise TypeError("changes: expected ScramUpsertion and ScramDeletion")
        request = wire.AlterUserScramCredentialsRequest(
            deletions=[
                wire.ScramCredentialDeletion(name=each.user, mechanism=each.mechanism.number)
                for each in deletions
            ],
            upsertions=[_salted(each) for each in upsertions],
        )
        retries = self.config.make_retries(self._timeout(timeout_ms))
        answered = await ask(ToController(self._open()), request, retries)
        outcomes: dict[str, ApiError | None] = {}
        for result in answered.response.results:
            error = error_of(result, f"the credentials of {result.user} were not changed")
            is_gone = answered.is_doubtful and result.error_code == ErrorCode.RESOURCE_NOT_FOUND
            outcomes[result.user] = None if is_gone else error
        raise_errors(outcomes, len(outcomes))


def _salted(change: ScramUpsertion) -> wire.ScramCredentialUpsertion:
    mechanism, iterations, salt = change.mechanism, change.iterations, secrets.token_bytes(_SALT_BYTES)
    return wire.ScramCredentialUpsertion(
        name=change.user,
        mechanism=mechanism.number,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, change.password, salt, iterations),
    )
