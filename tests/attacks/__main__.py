"""``python -m tests.attacks [NAME ...]``: play attacks on masked sums, and say what each reads.

Starts five real agents whose owners signed an agreement: one cohort, two of whom may work with the
server. The server asks each agent over its socket whatever it likes, adds up what is answered as it
likes, and compares what it computes with what one client holds. Prints a line for each attack:
``refused``, by which rule and in which words, or ``READ``, and what. ``as agreed`` is what owners
were told: with t = 0 they trust all of their cohort. The exit code is 1 if any other one reads a
client. Takes half a minute of CPU; nothing is left of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Before torch is imported anywhere: its own threads would share the cores with the agents.
os.environ["OMP_NUM_THREADS"] = "1"

from tests.attacks import plays
from tests.attacks.federation import Attacked, attacked

Play = Callable[[Attacked], Iterable[plays.Try]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        what: What the server does.
        rule: What stops it.
        play: How it does it.
        is_foreseen: Owners were told that it reads a client.
    """

    what: str
    rule: str
    play: Play
    is_foreseen: bool = False


#: Letters of what an agent said.
_SHOWN = 120
_COHORTS = "only whole cohorts add up"
ATTACKS = {
    "A1": Attack("another attempt over fewer clients", _COHORTS, plays.other_attempt),
    "A2": Attack("the server says what is opened", "nothing is opened", plays.said_to_be_opened),
    "A3": Attack("another purpose over fewer clients", _COHORTS, plays.other_purpose),
    "A4": Attack("one place asked twice", "one answer for each place", plays.one_place_twice),
    "A5": Attack("a round of training without one", _COHORTS, plays.rounds_of_training),
    "A6": Attack("all neighbours of one are missing", _COHORTS, plays.neighbours_missing),
    "A7": Attack("openers drawn until they collude", "nothing is opened", plays.openers_by_luck),
    "A8": Attack(
        "what is refused, and in which words", "nothing but masked numbers", plays.refusals
    ),
    "A9": Attack(
        "two who collude add zeros (t = 2 agreed)",
        "a use takes least + t members",
        plays.zeros_of_colluders,
    ),
    "A10": Attack("the state folder is put back", "keys in memory only", plays.state_put_back),
    "A11": Attack(
        "one client has another configuration",
        "the configuration is in the label",
        plays.configurations,
    ),
    "A12": Attack("bytes in the clear", "nothing but masked numbers", plays.bytes_in_the_clear),
    "A13": Attack("an exchange lacks a client", "whole exchanges", plays.missing_rows),
    # The last one: from then on the owners have agreed on t = 0.
    "A9b": Attack(
        "two who collude add zeros (t = 0 agreed)",
        "a use takes least + t members",
        plays.zeros_where_none_is_expected,
        is_foreseen=True,
    ),
}


def main() -> int:
    """Play them; return 1 where one reads a client."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="A1 to A13, A9b; all if none is given"
    )
    names = parser.parse_args().names or [*ATTACKS]
    if unknown := [name for name in names if name not in ATTACKS]:
        parser.error(f"{unknown[0]}: expected some of {', '.join(ATTACKS)}")
    # Ended from outside, it ends its agents, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    read = []
    with attacked() as agents:
        plays.check_sums(agents)
        for name in names:
            if not _played(name, agents):
                read.append(name)
    print(f"{len(names)} attacks; a client was read by {', '.join(read) or 'none'}")
    return int(bool(read))


def _played(name: str, agents: Attacked) -> bool:
    """Play one, and say how it ended; return whether nothing was read."""
    attack = ATTACKS[name]
    tries = list(attack.play(agents))
    read = [one.read for one in tries if one.read]
    told = read or [one.told for one in tries if one.told]
    shown = "; ".join(textwrap.shorten(words, _SHOWN) for words in dict.fromkeys(told))
    ended = "refused" if not read else "as agreed" if attack.is_foreseen else "READ"
    rule = "" if read else f" by {attack.rule}"
    print(f"{name:4} {ended:9} {attack.what}{rule}: {shown}", flush=True)
    return not read or attack.is_foreseen


if __name__ == "__main__":
    sys.exit(main())
