"""The faults that a broker injects: AlterFaultRules and DescribeFaultRules, by the native codec only.

`barnabas.common.fault_rules` has the meaning of a rule's fields and checks them.
"""

from __future__ import annotations

from barnabas.protocol import schema as s


@s.message
class FaultRuleEntry:
    """A rule as `FaultRule` has it; ``api`` is empty for every API."""

    name: str = s.string()
    api: list[str] = s.array(s.WireType.STRING, default_factory=list)
    client_id: str | None = s.string(nullable_since=0, default=None)
    topic: str | None = s.string(nullable_since=0, default=None)
    error: str | None = s.string(nullable_since=0, default=None)
    delay_ms: float = s.float64(default=0.0)
    drop: bool = s.boolean(default=False)
    disconnect: bool = s.boolean(default=False)
    truncate: bool = s.boolean(default=False)
    after: bool = s.boolean(default=False)
    nth: int | None = s.int32(nullable_since=0, default=None)
    times: int | None = s.int32(nullable_since=0, default=None)
    probability: float = s.float64(default=1.0)
    seed: int = s.int64(default=0)
    requests: str = s.string(default="clients")


@s.message
class AlterFaultRulesResponse:
    """``removed`` are the names of the rules that were there and are no more."""

    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    removed: list[str] = s.array(s.WireType.STRING, default_factory=list)


@s.request(s.ApiKey.ALTER_FAULT_RULES, versions=s.NATIVE_ONLY)
class AlterFaultRulesRequest(s.RequestOf[AlterFaultRulesResponse]):
    """Remove rules, ``removed`` None all of them, then add others at the end; all of it or nothing."""

    removed: list[str] | None = s.array(s.WireType.STRING, nullable_since=0, default_factory=list)
    added: list[FaultRuleEntry] = s.array(FaultRuleEntry, default_factory=list)


@s.message
class FaultRuleState:
    """A rule, how many requests met its conditions, and how many of these it hit."""

    rule: FaultRuleEntry = s.struct(FaultRuleEntry)
    matches: int = s.int64()
    hits: int = s.int64()


@s.message
class DescribeFaultRulesResponse:
    """``is_enabled`` tells ``fault.injection.enable``; the rules are in the order in which they are tried."""

    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    is_enabled: bool = s.boolean(default=False)
    rules: list[FaultRuleState] = s.array(FaultRuleState, default_factory=list)


@s.request(s.ApiKey.DESCRIBE_FAULT_RULES, versions=s.NATIVE_ONLY)
class DescribeFaultRulesRequest(s.RequestOf[DescribeFaultRulesResponse]):
    pass
