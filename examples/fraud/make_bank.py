"""Make the tables of a bank in which 1 % of the accounts are money mules.

A mule passes on money of shell companies. By itself it looks much like any young customer; what
gives it away is with whom it trades. Most of its partners have their accounts at other branches.
All is drawn from a seed: the same options give the same files.

    python examples/fraud/make_bank.py --out bank
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np

BRANCHES = ("north", "south", "west")
BRANCH_SHARES = (0.45, 0.35, 0.2)
COUNTRIES = ("AT", "DE", "CH", "IT", "HU", "SI", "CZ", "LI", "SM", "MC")
COUNTRY_SHARES = (0.55, 0.2, 0.1, 0.06, 0.04, 0.025, 0.02, 0.003, 0.0015, 0.0005)
SEGMENTS = ("private", "student", "business")
FIRST_DAY, DAYS = date(2026, 1, 1), 181
#: Shares of the accounts.
MULES, SHELLS = 0.01, 0.02
#: How many shells a mule trades with, and the share of other accounts that trade with one.
SHELLS_OF_MULE, NEAR_SHELLS = (3, 7), 0.06
#: Shares of the pairs whose accounts are at two branches.
CROSSING, CROSSING_OF_MULES = 0.3, 0.85

TABLES = {f"{of}-{table}.csv" for of in BRANCHES for table in ("accounts", "transfers", "boundary")}
TABLES |= {"accounts.csv", "transfers.csv"}

#: From, to, day, amount.
Transfer = tuple[int, int, str, str]


@dataclass(frozen=True, slots=True)
class Accounts:
    """Accounts by number.

    Attributes:
        branch: [N] index into BRANCHES.
        is_mule: [N] bool, the label.
        is_shell: [N] bool; in no table.
    """

    branch: np.ndarray
    is_mule: np.ndarray
    is_shell: np.ndarray


def make_accounts(rng: np.random.Generator, count: int) -> Accounts:
    """Draw which account is what."""
    roles = rng.permutation(count)
    mules, shells = round(count * MULES), round(count * SHELLS)
    is_mule, is_shell = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    is_mule[roles[:mules]] = True
    is_shell[roles[mules : mules + shells]] = True
    branch = rng.choice(len(BRANCHES), size=count, p=BRANCH_SHARES)
    return Accounts(branch=branch, is_mule=is_mule, is_shell=is_shell)


def columns_of(rng: np.random.Generator, accounts: Accounts) -> dict[str, list[str]]:
    """Draw what the bank knows of its accounts, as text with gaps."""
    count, mule, shell = len(accounts.branch), accounts.is_mule, accounts.is_shell
    segment = rng.choice(3, size=count, p=(0.76, 0.1, 0.14))
    segment = np.where(shell, 2, np.where(mule & (rng.random(count) < 0.25), 1, segment))
    age = np.clip(rng.normal(np.where(segment == 1, 23, 46), np.where(segment == 1, 3, 15)), 18, 95)
    age = np.where(mule, np.clip(rng.normal(33, 11, count), 18, 95), age)
    days_open = np.where(shell, rng.gamma(2.0, 120, count), rng.gamma(2.0, 1500, count))
    days_open = np.where(mule, rng.gamma(2.0, 900, count), days_open)
    turnover = np.exp(rng.normal(np.where(segment == 2, 9.3, 7.4), 0.9))
    turnover = np.where(shell, np.exp(rng.normal(10.6, 0.7, count)), turnover)
    balance = np.exp(rng.normal(np.where(shell, 6.0, 8.0), 1.3))
    income = np.exp(rng.normal(7.8, 0.45, count))
    logins = rng.poisson(np.where(mule | shell, 16, 11))
    country = rng.choice(len(COUNTRIES), size=count, p=COUNTRY_SHARES)
    return {
        "branch": [BRANCHES[place] for place in accounts.branch],
        "segment": [SEGMENTS[place] for place in segment],
        "country": _gaps(rng, [COUNTRIES[place] for place in country], 0.03),
        "age": _gaps(rng, [f"{value:.0f}" for value in age], np.where(segment == 2, 0.7, 0.05)),
        "income": _gaps(rng, [f"{value:.2f}" for value in income], 0.25),
        "balance": [f"{value:.2f}" for value in balance],
        "turnover": [f"{value:.2f}" for value in turnover],
        "days_open": [f"{value:.0f}" for value in days_open],
        "logins": [str(value) for value in logins],
        "fraud": ["yes" if value else "no" for value in mule],
    }


def _gaps(rng: np.random.Generator, texts: list[str], share: float | np.ndarray) -> list[str]:
    missing = rng.random(len(texts)) < share
    return ["" if gone else text for gone, text in zip(missing, texts, strict=True)]


def make_pairs(rng: np.random.Generator, accounts: Accounts, count: int) -> np.ndarray:
    """Draw who trades with whom.

    Returns:
        [P, 2] accounts, each pair once, P about ``count``.
    """
    num_accounts = len(accounts.branch)
    ordinary = np.flatnonzero(~accounts.is_shell)
    shells = np.flatnonzero(accounts.is_shell)
    pairs: list[tuple[int, int]] = []
    for mule in np.flatnonzero(accounts.is_mule).tolist():
        for _ in range(rng.integers(*SHELLS_OF_MULE, endpoint=True)):
            pairs.append((mule, _partner(rng, accounts, mule, shells, CROSSING_OF_MULES)))
    others = np.flatnonzero(~accounts.is_shell & ~accounts.is_mule)
    for customer in others[rng.random(len(others)) < NEAR_SHELLS].tolist():
        pairs.append((customer, _partner(rng, accounts, customer, shells, CROSSING)))
    # Some trade much more than others; each has one partner at least.
    popularity = rng.pareto(2.5, num_accounts) + 1
    popularity[accounts.is_shell] = 0
    ends = np.concatenate(
        (
            rng.permutation(num_accounts),
            rng.choice(
                num_accounts,
                size=max(0, count - len(pairs) - num_accounts),
                p=popularity / popularity.sum(),
            ),
        )
    )
    pairs += [(one, _partner(rng, accounts, one, ordinary, CROSSING)) for one in ends.tolist()]
    drawn = np.sort(np.array(pairs), axis=1)
    return np.unique(drawn[drawn[:, 0] != drawn[:, 1]], axis=0)


def _partner(
    rng: np.random.Generator, accounts: Accounts, one: int, among: np.ndarray, crossing: float
) -> int:
    """Draw a partner at another branch with a probability, else at the same."""
    elsewhere = accounts.branch[among] != accounts.branch[one]
    here = among[elsewhere] if rng.random() < crossing else among[~elsewhere]
    return int(rng.choice(here if len(here) else among))


def make_transfers(
    rng: np.random.Generator, accounts: Accounts, pairs: np.ndarray, count: int
) -> list[Transfer]:
    """Draw transfers of pairs, each pair at least once."""
    often = rng.pareto(2.0, len(pairs)) + 0.2
    more = rng.choice(len(pairs), size=max(0, count - len(pairs)), p=often / often.sum())
    chosen = rng.permutation(np.concatenate((np.arange(len(pairs)), more)))[:count]
    ends = pairs[chosen]
    ends = np.where((rng.random(len(ends)) < 0.5)[:, None], ends, ends[:, ::-1])
    # Money of shells goes to the mules.
    back = accounts.is_shell[ends[:, 1]] & accounts.is_mule[ends[:, 0]]
    ends = np.where((back & (rng.random(len(ends)) < 0.7))[:, None], ends[:, ::-1], ends)
    of_ring = accounts.is_shell[ends].any(axis=1) & accounts.is_mule[ends].any(axis=1)
    amounts = np.exp(rng.normal(np.where(of_ring, 6.7, 5.0), np.where(of_ring, 0.3, 1.2)))
    days = np.sort(rng.integers(0, DAYS, len(ends)))
    return [
        (int(one), int(two), str(FIRST_DAY + timedelta(days=int(day))), f"{amount:.2f}")
        for (one, two), day, amount in zip(ends, days, amounts, strict=True)
    ]


def write(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def write_bank(out: Path, *, accounts: int, transfers: int, labelled: float, seed: int) -> str:
    """Write all tables to a folder; return what they hold, in a sentence."""
    rng = np.random.default_rng(seed)
    drawn = make_accounts(rng, accounts)
    columns = columns_of(rng, drawn)
    pairs = make_pairs(rng, drawn, transfers // 2)
    moved = make_transfers(rng, drawn, pairs, transfers)
    is_known = rng.random(accounts) < labelled
    columns["fraud"] = [
        label if known else "" for label, known in zip(columns["fraud"], is_known, strict=True)
    ]
    names = [f"acc-{number:05d}" for number in range(accounts)]
    out.mkdir(parents=True, exist_ok=True)
    head = ("account", *columns)
    rows = list(zip(names, *columns.values(), strict=True))
    write(out / "accounts.csv", head, rows)
    write(
        out / "transfers.csv",
        ("source", "target", "day", "weight"),
        ((names[one], names[two], day, amount) for one, two, day, amount in moved),
    )
    for index, branch in enumerate(BRANCHES):
        _write_branch(out, index, branch, (head, rows, names, moved, drawn.branch.tolist()))
    crossing = np.count_nonzero(drawn.branch[pairs[:, 0]] != drawn.branch[pairs[:, 1]])
    frauds = columns["fraud"].count("yes")
    return (
        f"{accounts:,} accounts ({frauds} of {sum(is_known):,} labelled ones are fraud), "
        f"{len(moved):,} transfers between {len(pairs):,} pairs, {crossing:,} of them across "
        f"branches, in {out}"
    )


def _write_branch(
    out: Path,
    index: int,
    branch: str,
    bank: tuple[Sequence[str], list[tuple[str, ...]], list[str], list[Transfer], list[int]],
) -> None:
    """Write what one branch has: its accounts, transfers between them, and those to the others."""
    head, rows, names, moved, branch_of = bank
    own = [row for row, at in zip(rows, branch_of, strict=True) if at == index]
    write(out / f"{branch}-accounts.csv", head, own)
    inner, boundary = [], []
    for one, two, day, amount in moved:
        here, there = branch_of[one], branch_of[two]
        if here == there == index:
            inner.append((names[one], names[two], day, amount))
        elif here == index:
            boundary.append((names[one], names[two], BRANCHES[there], "out", day, amount))
        elif there == index:
            boundary.append((names[two], names[one], BRANCHES[here], "in", day, amount))
    write(out / f"{branch}-transfers.csv", ("source", "target", "day", "weight"), inner)
    write(
        out / f"{branch}-boundary.csv",
        ("own", "foreign", "peer", "direction", "day", "weight"),
        boundary,
    )


def main() -> None:
    """Read the options and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="new folder for the tables")
    parser.add_argument("--accounts", type=int, default=10_000)
    parser.add_argument("--transfers", type=int, default=40_000)
    parser.add_argument(
        "--labelled", type=float, default=1.0, help="share of accounts whose label is known"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="replace tables of this script")
    given = parser.parse_args()
    there = {path.name for path in given.out.iterdir()} if given.out.is_dir() else set()
    is_ours = given.out.is_dir() and there <= TABLES
    if given.out.exists() and not (given.overwrite and is_ours):
        parser.error(
            f"--out: {given.out} exists; expected a new folder, or --overwrite and no file there "
            "but this script's"
        )
    if not (given.accounts >= 100 and 0 < given.labelled <= 1 and given.seed >= 0):
        parser.error("expected at least 100 accounts, a share in (0, 1] and a seed from 0")
    print(
        write_bank(
            given.out,
            accounts=given.accounts,
            transfers=given.transfers,
            labelled=given.labelled,
            seed=given.seed,
        )
    )


if __name__ == "__main__":
    main()
