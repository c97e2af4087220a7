"""Rules from the name of a certificate to a principal, as Kafka's SslPrincipalMapper applies them."""

import pytest

from barnabas.common.security.principal_mapping import PrincipalMapping, PrincipalMappingRules
from barnabas.common.settings import parsed
from barnabas.protocol.errors import InvalidConfiguration

SUBJECT = "CN=Duke,OU=JavaSoft,O=Sun Microsystems,C=US"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", SUBJECT),
        ("", SUBJECT),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "Duke@JavaSoft"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L", "duke@javasoft"),
        ("RULE:^CN=(.*?),.*$/$1/U", "DUKE"),
        ("RULE:^CN=Other.*$/other/, RULE:^CN=(.*?),.*$/$1/ , DEFAULT", "Duke"),
        ("RULE:^CN=Other.*$/other/,DEFAULT", SUBJECT),
        ("RULE:^CN=Other.*$/other/", None),
        ("RULE:CN=Duke/x/", None),
        ("RULE:^.*O=(Sun.*?),.*$/a\\/b\\$1 $1/", "a/b$1 Sun Microsystems"),
        ("RULE:^CN=(.*?),.*$/$1$2$12/", "Duke$2Duke2"),
        ("RULE:^CN=(?<who>.*?),.*$/${who}/", "Duke"),
        ("RULE:.*/x/", "xx"),
        ("RULE:^CN=(\\w+),.*$/$1/", "Duke"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name(rules: str, expected: str | None) -> None:
    assert parsed("ssl.principal.mapping.rules", rules, PrincipalMappingRules()).name_of(SUBJECT) == expected


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "RULE:",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "DEFAULT,nonsense",
        "RULE:(/b/",
        "RULE:a/${b}/",
    ],
)
def test_refused_rules(rules: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"ssl\.principal\.mapping\.rules="):
        parsed("ssl.principal.mapping.rules", rules, PrincipalMappingRules())


def test_the_text_of_a_setting_comes_back() -> None:
    rules = "RULE:^CN=(.*?),.*$/$1/L, DEFAULT"
    assert str(PrincipalMapping(rules)) == rules
    assert PrincipalMapping(rules) == PrincipalMapping(rules) != PrincipalMapping()


def test_classes_of_characters_are_those_of_ascii() -> None:
    """As in Java: a rule for words must not match names that look like them."""
    assert PrincipalMapping("RULE:^CN=(\\w+)$/$1/").name_of("CN=d\u00fcke") is None
