"""Make the tables of a bank in which 1 % of the accounts are money mules.

A mule passes on money of shell companies. By itself it looks much like any young customer; what
gives it away is with whom it trades. Most of its partners have their accounts at other branches.
All is drawn from a seed: the same options give the same files.

    python examples/fraud/make_bank.py --out bank

With ``--typed`` the bank knows devices and merchants, too, in tables of their own. Half of its
mules then take the money out by cards: they trade as anybody does, pay at merchants that are in
league with them, and log in, as the other mules do, from devices that several of them use.

    python examples/fraud/make_bank.py --typed --out bank
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

#: Of a bank with devices and merchants: mules that take money out by cards.
BY_CARD = 0.5
RING_SIZES, RING_DEVICES, RING_USE = (3, 6), 2, 0.6
HOUSEHOLD_SHARES = (0.5, 0.3, 0.12, 0.08)
SYSTEMS = ("android", "ios", "windows", "mac", "linux")
SYSTEM_SHARES = (0.38, 0.3, 0.22, 0.08, 0.02)
CATEGORIES = ("grocery", "fuel", "restaurant", "online", "electronics", "gift cards")
CATEGORY_SHARES = (0.3, 0.1, 0.2, 0.2, 0.12, 0.08)
COLLUDING_SHARES = (0.1, 0.05, 0.15, 0.3, 0.2, 0.2)
ACCOUNTS_OF_MERCHANT, COLLUDING = 25, 0.03

TABLES = {f"{of}-{table}.csv" for of in BRANCHES for table in ("accounts", "transfers", "boundary")}
TABLES |= {"accounts.csv", "transfers.csv"}
TABLES |= {"devices.csv", "merchants.csv", "uses.csv", "pays.csv"}

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


def make_pairs(
    rng: np.random.Generator, accounts: Accounts, count: int, by_card: np.ndarray
) -> np.ndarray:
    """Draw who trades with whom; mules of ``by_card`` do not trade with shells.

    Returns:
        [P, 2] accounts, each pair once, P about ``count``.
    """
    num_accounts = len(accounts.branch)
    ordinary = np.flatnonzero(~accounts.is_shell)
    shells = np.flatnonzero(accounts.is_shell)
    pairs: list[tuple[int, int]] = []
    for mule in np.flatnonzero(accounts.is_mule).tolist():
        among = ordinary if by_card[mule] else shells
        for _ in range(rng.integers(*SHELLS_OF_MULE, endpoint=True)):
            pairs.append((mule, _partner(rng, accounts, mule, among, CROSSING_OF_MULES)))
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


@dataclass(frozen=True, slots=True)
class Beside:
    """Nodes of another type, and the edges that lead to them.

    Attributes:
        columns: By name, of its nodes.
        edges: Account and node, in the order of the days.
        days: Of the edges.
        amounts: Of the edges; None where they have none.
    """

    columns: dict[str, list[str]]
    edges: list[tuple[int, int]]
    days: list[str]
    amounts: list[str] | None


def make_devices(rng: np.random.Generator, accounts: Accounts) -> Beside:
    """Draw devices: of one person, of a household, of the public, and of a ring of mules."""
    count = len(accounts.branch)
    users: list[list[int]] = [[one] for one in np.flatnonzero(rng.random(count) < 0.95).tolist()]
    users += [[one] for one in np.flatnonzero(rng.random(count) < 0.35).tolist()]
    users += [
        [one for one in home if rng.random() < 0.8]
        for home in _groups(rng, rng.permutation(count), HOUSEHOLD_SHARES)
        if len(home) > 1 and rng.random() < 0.6
    ]
    public = max(1, count // 250)
    places = np.where(rng.random(count) < 0.08, rng.integers(0, public, count), -1)
    users += [np.flatnonzero(places == place).tolist() for place in range(public)]
    of_rings = len(users)
    smallest, largest = RING_SIZES
    sizes = [0.0] * (smallest - 1) + [1 / (largest - smallest + 1)] * (largest - smallest + 1)
    for ring in _groups(rng, rng.permutation(np.flatnonzero(accounts.is_mule)), sizes):
        for _ in range(RING_DEVICES):
            # Beside the ring those whose logins were stolen.
            others = rng.integers(0, count, rng.poisson(1)).tolist()
            users.append([one for one in ring if rng.random() < RING_USE] + others)
    of_ring = np.arange(len(users)) >= of_rings
    kept = [place for place, some in enumerate(users) if some]
    of_ring = of_ring[kept]
    pairs = [(one, at) for at, place in enumerate(kept) for one in sorted(set(users[place]))]
    number = len(kept)
    rooted = rng.random(number) < np.where(of_ring, 0.25, 0.05)
    # Where it was registered: a branch of one of its users.
    first = [users[place][0] for place in kept]
    columns = {
        "branch": [BRANCHES[accounts.branch[one]] for one in first],
        "system": [SYSTEMS[at] for at in rng.choice(len(SYSTEMS), size=number, p=SYSTEM_SHARES)],
        "rooted": ["yes" if value else "no" for value in rooted],
        "days_known": [f"{v:.0f}" for v in rng.gamma(2.0, np.where(of_ring, 200, 300))],
        "night_share": _gaps(rng, [f"{v:.3f}" for v in rng.beta(np.where(of_ring, 3, 2), 8)], 0.05),
    }
    return _dated(rng, columns, pairs, None)


def make_merchants(rng: np.random.Generator, accounts: Accounts, by_card: np.ndarray) -> Beside:
    """Draw merchants and who pays them; some are in league with the mules that pay by card."""
    count = len(accounts.branch)
    number = max(20, count // ACCOUNTS_OF_MERCHANT)
    colludes = np.zeros(number, dtype=bool)
    colludes[rng.permutation(number)[: max(2, round(number * COLLUDING))]] = True
    honest = rng.choice(len(CATEGORIES), size=number, p=CATEGORY_SHARES)
    other = rng.choice(len(CATEGORIES), size=number, p=COLLUDING_SHARES)
    columns = {
        "branch": [BRANCHES[at] for at in rng.choice(len(BRANCHES), size=number, p=BRANCH_SHARES)],
        "category": [CATEGORIES[at] for at in np.where(colludes, other, honest)],
        "country": [
            COUNTRIES[at] for at in rng.choice(len(COUNTRIES), size=number, p=COUNTRY_SHARES)
        ],
        "days_open": [f"{v:.0f}" for v in rng.gamma(2.0, np.where(colludes, 900, 1500))],
        "chargebacks": _gaps(
            rng, [f"{v:.4f}" for v in rng.beta(2, np.where(colludes, 110, 200))], 0.1
        ),
    }
    popularity = rng.pareto(1.5, number) + 1
    buyers = np.repeat(np.arange(count), rng.poisson(4, count))
    shops = rng.choice(number, size=len(buyers), p=popularity / popularity.sum())
    # Most mules that pay by card do so at several; some of the others, too.
    mules = np.flatnonzero(accounts.is_mule)
    often = np.where(
        by_card[mules], rng.integers(2, 5, len(mules)), rng.random(len(mules)) < 0.3
    ).astype(int)
    cashers = np.repeat(mules, often)
    at = rng.choice(np.flatnonzero(colludes), size=len(cashers))
    means = np.repeat((3.5, 4.5), (len(buyers), len(cashers)))
    pairs = list(
        zip([*buyers.tolist(), *cashers.tolist()], [*shops.tolist(), *at.tolist()], strict=True)
    )
    return _dated(rng, columns, pairs, np.exp(rng.normal(means, 1.0)))


def _groups(
    rng: np.random.Generator, members: np.ndarray, shares: Sequence[float]
) -> list[list[int]]:
    """Divide members into groups of 1, 2, ..., which have these shares."""
    groups, left = [], members.tolist()
    while left:
        size = 1 + int(rng.choice(len(shares), p=shares))
        groups.append(left[:size])
        left = left[size:]
    return groups


def _dated(
    rng: np.random.Generator,
    columns: dict[str, list[str]],
    pairs: list[tuple[int, int]],
    amounts: np.ndarray | None,
) -> Beside:
    days = np.sort(rng.integers(0, DAYS, len(pairs)))
    order = rng.permutation(len(pairs)).tolist()
    return Beside(
        columns=columns,
        edges=[pairs[place] for place in order],
        days=[str(FIRST_DAY + timedelta(days=int(day))) for day in days],
        amounts=None if amounts is None else [f"{amounts[place]:.2f}" for place in order],
    )


def write(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def write_bank(
    out: Path, *, accounts: int, transfers: int, labelled: float, seed: int, typed: bool
) -> str:
    """Write all tables to a folder; return what they hold, in a sentence."""
    rng, more = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    drawn = make_accounts(rng, accounts)
    columns = columns_of(rng, drawn)
    by_card = drawn.is_mule & (more.random(accounts) < BY_CARD) & typed
    pairs = make_pairs(rng, drawn, transfers // 2, by_card)
    moved = make_transfers(rng, drawn, pairs, transfers)
    is_known = rng.random(accounts) < labelled
    columns["fraud"] = [
        label if known else "" for label, known in zip(columns["fraud"], is_known, strict=True)
    ]
    names = [f"acc-{number:05d}" for number in range(accounts)]
    out.mkdir(parents=True, exist_ok=True)
    head = ("key" if typed else "account", *columns)
    rows = list(zip(names, *columns.values(), strict=True))
    write(out / "accounts.csv", head, rows)
    write(
        out / "transfers.csv",
        ("source", "target", "day", "weight"),
        ((names[one], names[two], day, amount) for one, two, day, amount in moved),
    )
    beside = ""
    if typed:
        beside = _write_beside(out, names, make_devices(more, drawn), "devices", "uses")
        beside += _write_beside(
            out, names, make_merchants(more, drawn, by_card), "merchants", "pays"
        )
    else:
        for index, branch in enumerate(BRANCHES):
            _write_branch(out, index, branch, (head, rows, names, moved, drawn.branch.tolist()))
    crossing = np.count_nonzero(drawn.branch[pairs[:, 0]] != drawn.branch[pairs[:, 1]])
    frauds = columns["fraud"].count("yes")
    return (
        f"{accounts:,} accounts ({frauds} of {sum(is_known):,} labelled ones are fraud), "
        f"{len(moved):,} transfers between {len(pairs):,} pairs, {crossing:,} of them across "
        f"branches{beside}, in {out}"
    )


def _write_beside(out: Path, accounts: list[str], beside: Beside, nodes: str, edges: str) -> str:
    """Write nodes of another type and their edges; return what they are."""
    columns = list(beside.columns.values())
    names = [f"{nodes[:3]}-{number:05d}" for number in range(len(columns[0]))]
    write(out / f"{nodes}.csv", ("key", *beside.columns), zip(names, *columns, strict=True))
    ends = [(accounts[one], names[other]) for one, other in beside.edges]
    rows = [(*pair, day) for pair, day in zip(ends, beside.days, strict=True)]
    head = ("source", "target", "day")
    if beside.amounts is None:
        write(out / f"{edges}.csv", head, rows)
    else:
        weighed = [(*row, amount) for row, amount in zip(rows, beside.amounts, strict=True)]
        write(out / f"{edges}.csv", (*head, "weight"), weighed)
    return f", {len(names):,} {nodes} ({edges}: {len(rows):,})"


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
    parser.add_argument(
        "--typed", action="store_true", help="with devices and merchants; whole tables alone"
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
            typed=given.typed,
        )
    )


if __name__ == "__main__":
    main()
