"""What a terminal may show."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st

from roder_trio.cli.terminal import Terminal, clean, escape_json, one_line

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31mred\x85\u202etxt.exe\u2066\u2069\x7f\r\0"
FORBIDDEN = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
}
FORBIDDEN -= {"\n", "\t"}


class Tty(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal() -> tuple[Terminal, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Terminal(out, err), out, err


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(sorted(FORBIDDEN)))))
def test_a_cleaned_text_has_lost_its_control_characters_and_nothing_else(text: str) -> None:
    assert clean(text) == "".join(letter for letter in text if letter not in FORBIDDEN)


@given(st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(sorted(FORBIDDEN)))))
def test_escaped_json_means_the_same_and_holds_no_control_character(text: str) -> None:
    line = escape_json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(line) == {"text": text}
    assert not FORBIDDEN & set(line)


def test_a_line_keeps_its_words_and_loses_its_breaks() -> None:
    assert one_line(" a\n\tb\x1b[0m\r\nc ") == "a b[0m c"


def test_no_control_character_leaves_by_any_print() -> None:
    printer, out, err = terminal()
    printer.say(EVIL)
    printer.line(EVIL)
    printer.note(EVIL)
    printer.error(EVIL)
    printer.exact(EVIL)
    printer.ask(EVIL)
    printer.table(("thread", "title"), [(EVIL, EVIL)])
    assert not FORBIDDEN & set(out.getvalue() + err.getvalue())
    assert "red" in out.getvalue()
    assert "red" in err.getvalue()


def test_an_escape_sequence_that_is_split_over_deltas_does_not_come_together() -> None:
    printer, out, _ = terminal()
    for letter in EVIL:
        printer.say(letter)
    assert not FORBIDDEN & set(out.getvalue())


def test_markup_of_a_stranger_stays_text() -> None:
    printer, out, err = terminal()
    printer.note("[red]a[/red] [link=http://example.org]b[/link]")
    printer.table(("title",), [("[bold]c[/bold]",)])
    assert "[red]a[/red] [link=http://example.org]b[/link]" in err.getvalue()
    assert "[bold]c[/bold]" in out.getvalue()


def test_only_the_styles_of_the_program_itself_reach_a_real_terminal() -> None:
    out, err = Tty(), Tty()
    printer = Terminal(out, err)
    printer.error("\x1b]52;c;aGk=\x07\x9d52")
    printer.say("\x1b]52;c;aGk=\x07")
    assert "\x1b]" not in err.getvalue()
    assert "\x9d" not in err.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_long_note_stays_one_line() -> None:
    printer, _, err = terminal()
    printer.error("word " * 200)
    assert err.getvalue().count("\n") == 1


def test_what_is_consented_to_is_one_line_with_all_its_spaces() -> None:
    printer, _, err = terminal()
    printer.hide("sk-123")
    printer.exact("  rm  -rf\n\t/ sk-123")
    assert err.getvalue() == "  rm  -rf  / ***\n"


def test_a_print_after_a_question_begins_a_line_unless_the_answer_ended_it() -> None:
    printer, out, err = terminal()
    printer.ask("sure? ")
    printer.note("no matter")
    printer.ask("sure? ")
    printer.say("yes")
    printer.ask("> ")
    printer.answered()
    printer.note("well")
    assert err.getvalue() == "sure? \nno matter\nsure? \n> well\n"
    assert out.getvalue() == "yes"


def test_a_wide_table_is_not_broken_where_no_terminal_is() -> None:
    printer, out, _ = terminal()
    printer.table(("thread", "title"), [("t" * 60, "word " * 60)])
    assert len(out.getvalue().splitlines()) == 2


def test_a_secret_is_hidden_in_notes() -> None:
    printer, _, err = terminal()
    printer.hide("sk-123")
    printer.hide(None)
    printer.error("the key sk-123 was refused")
    assert err.getvalue() == "roder-trio: the key *** was refused\n"
