"""Byte counts: parsing, printing, checking."""

from __future__ import annotations

import decimal

import numpy as np
import pytest

from vramsel.units import MAX_BYTES, as_bytes, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("12", 12),
        ("12B", 12),
        ("2GiB", 2 << 30),
        ("2GB", 2 * 10**9),
        ("2GB ", 2 * 10**9),
        ("2 gib", 2 << 30),
        (" 2\tGiB", 2 << 30),
        ("1.5 KiB", 1536),
        ("1.1GiB", 1181116006),
        ("0.5B", 1),
        ("1kB", 1000),
        ("1KB", 1000),
        ("15.5EiB", 31 << 59),
        ("18446744073709551615", MAX_BYTES),
        ("9007199254740993", 2**53 + 1),
        ("1TiB", 1 << 40),
        ("3PB", 3 * 10**15),
    ],
)
def test_parse(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a size"),
        ("GiB", "not a size"),
        ("1e32", "not a size"),
        ("1e9", "not a size"),
        ("-1", "negative"),
        ("- 2 GiB", "negative"),
        ("2G", "ambiguous"),
        ("2k", "ambiguous"),
        ("2gi", "ambiguous"),
        ("2 GiBs", "unit"),
        ("2 bananas", "unit"),
        ("1,5GiB", "not a size"),
        ("0x10", "not a size"),
        ("nan", "not a size"),
        ("inf", "not a size"),
        ("16EiB", "above"),
        ("1" * 60, "above"),
        ("18446744073709551616", "above"),
        ("1 2", "not a size"),
        ("\u0663GiB", "not a size"),
        ("1.GiB", "not a size"),
        ("2GiB\n3", "not a size"),
    ],
)
def test_bad_text(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse_bytes(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**30, "1.0 GiB"),
        (1181116006, "1.1 GiB"),
        (MAX_BYTES, "16.0 EiB"),
        (2**40 - 2**28, "1023.8 GiB"),
    ],
)
def test_format(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


def test_sizes_do_not_depend_on_the_decimal_context() -> None:
    with decimal.localcontext(decimal.Context(prec=6, traps=[decimal.Inexact])):
        assert parse_bytes("9007199254740993") == 2**53 + 1
    assert parse_bytes("18446744073709551615.4") == MAX_BYTES
    assert parse_bytes("1" + "0" * 18 + "." + "9" * 60) == 10**18 + 1
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes("9" * 1_000_001)
    with pytest.raises(TypeError, match="string"):
        parse_bytes(None)


def test_letters_of_other_alphabets_are_not_ours() -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes("1\u212aiB")  # the Kelvin sign, which lower() makes a k


def test_as_bytes() -> None:
    assert as_bytes(5, "x") == 5
    assert as_bytes(np.uint64(MAX_BYTES), "x") == MAX_BYTES
    assert type(as_bytes(np.int16(3), "x")) is int
    assert as_bytes("1KiB", "x") == 1024
    for bad, error in (
        (-1, ValueError),
        (True, TypeError),
        (np.True_, TypeError),
        (10**5000, ValueError),
        (-(10**5000), ValueError),
        (2**64, ValueError),
        (1e32, TypeError),
        (1.0, TypeError),
        (None, TypeError),
        ([1], TypeError),
        (b"1", TypeError),
        ("x", ValueError),
    ):
        with pytest.raises(error, match=r"^free of it"):
            as_bytes(bad, "free of it")
