"""SaslHandshake, SaslAuthenticate, the credentials of SCRAM (KIP-554) and delegation tokens (KIP-48)."""

from __future__ import annotations

from typing import Final

from barnabas.protocol import schema as s

NO_TIMESTAMP: Final = -1


@s.message
class SaslHandshakeResponse:
    error_code: int = s.int16()
    mechanisms: list[str] = s.array(s.WireType.STRING, default_factory=list)


@s.request(s.ApiKey.SASL_HANDSHAKE, versions=(0, 1))
class SaslHandshakeRequest(s.RequestOf[SaslHandshakeResponse]):
    mechanism: str = s.string()


@s.message
class SaslAuthenticateResponse:
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    auth_bytes: bytes = s.opaque(default=b"")
    session_lifetime_ms: int = s.int64(since=1, default=0)


@s.request(s.ApiKey.SASL_AUTHENTICATE, versions=(0, 2), flexible_since=2)
class SaslAuthenticateRequest(s.RequestOf[SaslAuthenticateResponse]):
    auth_bytes: bytes = s.opaque()


@s.message
class ScramCredentialInfo:
    mechanism: int = s.int8()
    iterations: int = s.int32()


@s.message
class DescribeUserScramCredentialsResult:
    user: str = s.string()
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default="")
    credential_infos: list[ScramCredentialInfo] = s.array(ScramCredentialInfo, default_factory=list)


@s.message
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default="")
    results: list[DescribeUserScramCredentialsResult] = s.array(DescribeUserScramCredentialsResult)


@s.message
class ScramUserName:
    name: str = s.string()


@s.request(s.ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), flexible_since=0)
class DescribeUserScramCredentialsRequest(s.RequestOf[DescribeUserScramCredentialsResponse]):
    """``users`` None or empty: all users."""

    users: list[ScramUserName] | None = s.array(ScramUserName, nullable_since=0)


@s.message
class AlterUserScramCredentialsResult:
    user: str = s.string()
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default="")


@s.message
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = s.int32(default=0)
    results: list[AlterUserScramCredentialsResult] = s.array(AlterUserScramCredentialsResult)


@s.message
class ScramCredentialDeletion:
    name: str = s.string()
    mechanism: int = s.int8()


@s.message
class ScramCredentialUpsertion:
    name: str = s.string()
    mechanism: int = s.int8()
    iterations: int = s.int32()
    salt: bytes = s.opaque()
    salted_password: bytes = s.opaque()


@s.request(s.ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), flexible_since=0)
class AlterUserScramCredentialsRequest(s.RequestOf[AlterUserScramCredentialsResponse]):
    deletions: list[ScramCredentialDeletion] = s.array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = s.array(ScramCredentialUpsertion)


@s.message
class TokenPrincipal:
    """A user who owns or renews tokens."""

    principal_type: str = s.string()
    principal_name: str = s.string()


@s.message
class CreateDelegationTokenResponse:
    error_code: int = s.int16()
    principal_type: str = s.string()
    principal_name: str = s.string()
    token_requester_principal_type: str = s.string(since=3, default="")
    token_requester_principal_name: str = s.string(since=3, default="")
    issue_timestamp_ms: int = s.int64(default=NO_TIMESTAMP)
    expiry_timestamp_ms: int = s.int64(default=NO_TIMESTAMP)
    max_timestamp_ms: int = s.int64(default=NO_TIMESTAMP)
    token_id: str = s.string(default="")
    hmac: bytes = s.opaque(default=b"")
    throttle_time_ms: int = s.int32(default=0)


@s.request(s.ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3), flexible_since=2)
class CreateDelegationTokenRequest(s.RequestOf[CreateDelegationTokenResponse]):
    """Without an owner, the requester gets the token."""

    owner_principal_type: str | None = s.string(since=3, nullable_since=3, default=None)
    owner_principal_name: str | None = s.string(since=3, nullable_since=3, default=None)
    renewers: list[TokenPrincipal] = s.array(TokenPrincipal)
    max_lifetime_ms: int = s.int64()


@s.message
class RenewDelegationTokenResponse:
    error_code: int = s.int16()
    expiry_timestamp_ms: int = s.int64(default=NO_TIMESTAMP)
    throttle_time_ms: int = s.int32(default=0)


@s.request(s.ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2), flexible_since=2)
class RenewDelegationTokenRequest(s.RequestOf[RenewDelegationTokenResponse]):
    hmac: bytes = s.opaque()
    renew_period_ms: int = s.int64()


@s.message
class ExpireDelegationTokenResponse:
    error_code: int = s.int16()
    expiry_timestamp_ms: int = s.int64(default=NO_TIMESTAMP)
    throttle_time_ms: int = s.int32(default=0)


@s.request(s.ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2), flexible_since=2)
class ExpireDelegationTokenRequest(s.RequestOf[ExpireDelegationTokenResponse]):
    hmac: bytes = s.opaque()
    expiry_time_period_ms: int = s.int64()


@s.message
class DescribedDelegationToken:
    principal_type: str = s.string()
    principal_name: str = s.string()
    token_requester_principal_type: str = s.string(since=3, default="")
    token_requester_principal_name: str = s.string(since=3, default="")
    issue_timestamp: int = s.int64()
    expiry_timestamp: int = s.int64()
    max_timestamp: int = s.int64()
    token_id: str = s.string()
    hmac: bytes = s.opaque()
    renewers: list[TokenPrincipal] = s.array(TokenPrincipal)


@s.message
class DescribeDelegationTokenResponse:
    error_code: int = s.int16()
    tokens: list[DescribedDelegationToken] = s.array(DescribedDelegationToken, default_factory=list)
    throttle_time_ms: int = s.int32(default=0)


@s.request(s.ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3), flexible_since=2)
class DescribeDelegationTokenRequest(s.RequestOf[DescribeDelegationTokenResponse]):
    """``owners`` None: of all owners."""

    owners: list[TokenPrincipal] | None = s.array(TokenPrincipal, nullable_since=0)
