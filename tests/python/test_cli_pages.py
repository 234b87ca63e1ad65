"""What kvbridge says of itself: manual pages and shell completion, held against --help of every command."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, binary
from operations import tool


def ask(*arguments: str) -> str:
    done = subprocess.run([binary("KVBRIDGE_CLI"), *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Command:
    """A command as its --help shows it."""

    words: tuple[str, ...]
    flags: frozenset[str]
    below: tuple[str, ...]

    @property
    def page(self) -> str:
        return "-".join(("kvbridge", *self.words)) + ".1"


def helped(*words: str) -> list[Command]:
    """The command that the words name and all below."""
    text = ask(*words, "--help")
    flags = {name for line in re.findall(r"^  (-\S+)", text, re.M) for name in line.split(",")}
    _, _, listed = text.partition("\nSubcommands:\n")
    below = tuple(re.findall(r"^  (\S+)", listed, re.M))
    found = [Command(words, frozenset(flags), below)]
    for word in below:
        found += helped(*words, word)
    return found


@pytest.fixture(scope="module")
def commands() -> list[Command]:
    found = helped()
    assert len(found) > 25
    return found


def test_what_is_a_file_or_a_folder_says_so(commands):
    for command in commands:
        text = re.sub(r"\n {20,}", " ", ask(*command.words, "--help"))
        taken = re.findall(r"^  \S+ TEXT.*$", text, re.M)
        here = [line for line in taken if "on the server" not in line]
        assert [line for line in here if re.search(r"(?<!-)\b[Ff](ile|older)s?\b", line)] == [], command.words


# --- manual pages


def lint(page: Path) -> str:
    groff = [tool("groff"), "-man", "-Tutf8", "-ww", "-z", str(page)]
    return subprocess.run(groff, capture_output=True, text=True, timeout=60).stderr


def plain(page: Path) -> str:
    """As a reader sees it, on one line."""
    shown = subprocess.run([tool("groff"), "-man", "-Tascii", "-P-cbou", str(page)], capture_output=True, text=True)
    return re.sub(r"\s+", " ", shown.stdout)


def test_every_command_has_a_page_that_names_its_flags(commands, tmp_path):
    written = ask("man", "--dir", str(tmp_path)).split()
    assert {Path(page).name for page in written} == {command.page for command in commands}
    for command in commands:
        page = tmp_path / command.page
        assert lint(page) == "", command.page
        seen = plain(page)
        missing = {name for name in (*command.flags, *command.below) if name not in seen}
        assert not missing, (command.page, missing)


def test_a_page_says_what_a_flag_takes(tmp_path):
    page = tmp_path / "page.1"
    page.write_text(ask("man", "kvbridge-transfer"))
    seen = plain(page)
    assert "--plane TEXT How bytes travel: shared memory, chunks, what there is. One of auto, region, inline." in seen
    assert "kvbridge transfer --in FILE --out FILE [OPTIONS]" in seen
    assert "Exit codes: 0 ok;" in seen


def test_there_is_no_page_of_an_unknown_command():
    done = subprocess.run([binary("KVBRIDGE_CLI"), "man", "kvbridge-artifact-burn"], capture_output=True, text=True)
    assert done.returncode == 3 and "kvbridge-artifact-burn" in done.stderr


def test_the_server_has_a_page(tmp_path):
    page = tmp_path / "kvbridged.8"
    page.write_text(subprocess.check_output([binary("KVBRIDGED"), "--man-page"], text=True))
    assert lint(page) == ""
    seen = plain(page)
    for expected in ("kvbridged - Turns", "--config FILE", "--limits-max-tokens", "KVBRIDGE_LIMITS_MAX_TOKENS"):
        assert expected in seen


def test_the_build_has_written_them_for_the_install():
    built = Path(binary("KVBRIDGE_CLI")).parent
    assert (built / "man1/kvbridge-routes-set.1").read_text() == ask("man", "kvbridge-routes-set")
    for shell, name in (("bash", "kvbridge"), ("zsh", "_kvbridge"), ("fish", "kvbridge.fish")):
        assert (built / "completion" / name).read_text() == ask("completion", shell)


# --- completion


def complete(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last word; words are as readline splits them."""
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvbridge; printf "%s\\n" "${COMPREPLY[@]}"'
    source = folder.parent / "completion.bash"
    source.write_text(ask("completion", "bash"))
    done = subprocess.run(
        [tool("bash"), "--norc", "-uc", script, "bash", str(source), "kvbridge", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return set(done.stdout.split("\n")) - {""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "a folder").mkdir(parents=True)
    (work / "a file").touch()
    return work


def test_bash_offers_every_command_and_flag(commands, folder):
    (root,) = (command.flags for command in commands if not command.words)
    for command in commands:
        if command.below:
            assert complete(folder, *command.words, "") >= set(command.below), command.words
        assert complete(folder, *command.words, "-") == command.flags | root, command.words


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["rou"], {"routes"}),
        (["routes", "set", "pair", "--stage", ""], {"off", "shadow", "canary", "live"}),
        (["routes", "set", "pair", "--stage", "=", "c"], {"canary"}),
        (["routes", "set", "pair", "--stage", "="], {"off", "shadow", "canary", "live"}),
        (["--format", ""], {"table", "json"}),
        (["health", "--format", "j"], {"json"}),
        (["--format", "json", "artifact", "l"], {"load", "list"}),
        (["transfer", "--plane", "r"], {"region"}),
        (["transfer", "--in", "a"], {"a file", "a folder"}),
        (["transfer", "--artifact", "a"], {"a folder"}),
        (["transfer", "--request-id", ""], set()),
        (["transfer", "--server", "unix", ":", "/x", "--pl"], {"--plane"}),
        (["transfer", "--server", "host", ":", "1", "--artifact", ""], {"a folder"}),
        (["inspect", "a"], {"a folder"}),
        (["report", "one", "a"], {"a folder"}),
        (["artifact", "convert", "in", "out", "a"], set()),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["fit", "ac"], {"accumulate"}),
    ],
)
def test_bash_offers_what_a_value_may_be(folder, words, offered):
    assert complete(folder, *words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_scripts_name_every_command_and_flag(commands, tmp_path, shell):
    script = ask("completion", shell)
    for command in commands:
        for word in command.below:
            assert (f"-a {word} -d" if shell == "fish" else f"'{word}:") in script
        for flag in command.flags:
            long = flag.startswith("--")
            name = f" -{'l' if long else 's'} {flag.lstrip('-')} " if shell == "fish" else rf"'\*?{flag}[=\[]"
            assert re.search(name, script), (command.words, flag)
    if shutil.which(shell):
        path = tmp_path / f"script.{shell}"
        path.write_text(script)
        parsed = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=60)
        assert parsed.returncode == 0 and parsed.stderr == ""


def test_fish_offers_what_belongs_to_the_command(folder):
    fish = tool("fish")
    script = folder.parent / "completion.fish"
    script.write_text(ask("completion", "fish"))
    for line, offered in (
        ("kvbridge routes ", {"list", "set"}),
        ("kvbridge routes set pair --stage c", {"canary"}),
        ("kvbridge --format json routes set pair --stage c", {"canary"}),
        ("kvbridge transfer --in a", {"a file", "a folder/"}),
        ("kvbridge transfer --pl", {"--plane"}),
        ("kvbridge transfer --form", {"--format"}),
    ):
        ran = [fish, "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(ran, capture_output=True, text=True, cwd=folder, timeout=60)
        assert done.stderr == "", (line, done.stderr)
        assert {found.split("\t")[0] for found in done.stdout.splitlines()} == offered, line
