"""JAAS texts as Apache Kafka reads them."""

import contextlib
import re
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.common.security.jaas import (
    OAUTHBEARER_LOGIN,
    PLAIN_LOGIN,
    SCRAM_LOGIN,
    LoginModule,
    MalformedJaas,
    jaas_text,
    parse_jaas,
    parse_jaas_file,
)
from tests.support.cases import each


def test_a_text_has_a_login_module_a_flag_and_options() -> None:
    module = parse_jaas(
        f'{PLAIN_LOGIN} required username="admin" password="admin-secret" '
        'user_admin="admin-secret" user_alice="alice, \\"=;" user_bob=b0b;'
    )
    assert module.name == PLAIN_LOGIN
    assert (module.username, module.password) == ("admin", "admin-secret")
    assert module.users == {"admin": "admin-secret", "alice": 'alice, "=;', "bob": "b0b"}
    assert "secret" not in repr(module)


@each(
    [
        ("a required x=y;", {"x": "y"}),
        ("a REQUIRED;", {}),
        ("a Requisite ;", {}),
        ("'a' \"sufficient\" 'x'=\"y\" ;\n", {"x": "y"}),
        ("a optional x = y z=w;", {"x": "y", "z": "w"}),
        ("a required x=y x=z;", {"x": "z"}),
        ("a required x=one.two-three_$4é;", {"x": "one.two-three_$4é"}),
        ("a required x='it says \"no\"';", {"x": 'it says "no"'}),
        (r'a required x="a\"b\\c\td\101\7\400\q";', {"x": 'a"b\\c\tdA\x07 0q'}),
        ("a required // x=y\n z=w /* v=\n1 */;", {"z": "w"}),
        ("a required x=y/ a comment to the end\n;", {"x": "y"}),
        ('a required x="// no comment";', {"x": "// no comment"}),
        ("a required x='';", {"x": ""}),
        ("a required x='пароль';", {"x": "пароль"}),
    ],
    name=lambda case: case[0],
)
def test_words_quotes_escapes_and_comments(case: tuple[str, dict[str, str]]) -> None:
    text, options = case
    assert parse_jaas(text) == LoginModule("a", options)


@each(
    [
        ("", "one login module"),
        ("// nothing", "one login module"),
        ("a required; b required;", "one login module"),
        ("; required;", "begins with"),
        ("a", "a flag"),
        ("a mandatory;", "a flag"),
        ("a required", "semicolon"),
        ("a required password=sesame", "semicolon"),
        ("a required password;", "option 1"),
        ("a required x=y password sesame;", "option 2"),
        ("a required password=;", "option 1"),
        ("a required password=", "option 1"),
        ("a required password=12345;", "numbers"),
        ("a required password=-1;", "numbers"),
        ("a required 12345=sesame;", "option 1"),
        ('a required password="sesame;', "does not end"),
        ('a required password="sesame\n";', "does not end"),
        ('a required password="sesame\\";', "does not end"),
        ("a required password=ses=ame;", "option 2"),
        ("a required /* password=sesame;", "semicolon"),
    ],
    name=lambda case: case[0],
)
def test_other_texts_are_refused_and_not_shown(case: tuple[str, str]) -> None:
    text, reason = case
    with pytest.raises(MalformedJaas, match=reason) as raised:
        parse_jaas(text)
    told = "".join(traceback.format_exception_only(raised.value))
    assert "ses" not in told
    assert "12345" not in told


def test_a_mechanism_asks_for_its_login_module() -> None:
    assert parse_jaas(f"{SCRAM_LOGIN} required;", "SCRAM-SHA-512").name == SCRAM_LOGIN
    assert parse_jaas(f"{OAUTHBEARER_LOGIN} required;", "OAUTHBEARER").name == OAUTHBEARER_LOGIN
    with pytest.raises(MalformedJaas, match=f"of mechanism PLAIN must be {PLAIN_LOGIN}"):
        parse_jaas(f"{SCRAM_LOGIN} required;", "PLAIN")
    with pytest.raises(MalformedJaas, match="GSSAPI"):
        parse_jaas("com.sun.security.auth.module.Krb5LoginModule required;", "GSSAPI")


@given(st.dictionaries(st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]*", fullmatch=True), st.text()))
def test_a_written_text_is_read_back(options: dict[str, str]) -> None:
    module = LoginModule(SCRAM_LOGIN, options)
    assert parse_jaas(jaas_text(module), "SCRAM-SHA-256") == module


@given(st.text(alphabet="a\"'\\/*=;\n r1-.é\x80") | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"a required {text}", f"a required x={text};"):
        with contextlib.suppress(MalformedJaas):
            parse_jaas(whole)


def test_a_file_has_sections_of_login_modules() -> None:
    sections = parse_jaas_file(f"A {{ {PLAIN_LOGIN} required x=y; m optional; }};\n/* no */ a.B {{ }};")
    assert sections == {"A": (LoginModule(PLAIN_LOGIN, {"x": "y"}), LoginModule("m")), "a.B": ()}
    assert parse_jaas_file(" // nothing") == {}


@each(
    [
        ("A { m required; }", "does not end with };"),
        ("A { m required;", "does not end with };"),
        ("A m required;", "section 1 of a JAAS file does not begin with a name and {"),
        ("A { }; ; ", "section 2 of a JAAS file does not begin"),
        ("A { }; A { };", "section 2 of a JAAS file has the name of an earlier one"),
        ("A { m required password=1; };", "option 1 of a JAAS text has no value"),
    ]
)
def test_a_file_that_is_none_is_refused(case: tuple[str, str]) -> None:
    text, sentence = case
    with pytest.raises(MalformedJaas, match=re.escape(sentence)):
        parse_jaas_file(text)
