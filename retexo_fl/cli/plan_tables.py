"""What `retexo plan` shows beside its own tables: profiles, and the time on links."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.api.plan_cohorts import is_not_enough
from retexo_fl.api.plan_network import message_s
from retexo_fl.api.plan_profiles import MESSAGE_S
from retexo_fl.cli.tables import figures
from retexo_fl.simulation.deployment_time import OPENED
from retexo_fl.units import UNKNOWN, format_bytes, format_count, format_counted

if TYPE_CHECKING:
    from rich.table import Table

#: Columns of a sentence.
_WIDTH: Final = 80
PROFILE_NOTE: Final = (
    "Payload and messages if no stage ends before its last round, with the options\n"
    f"given here. Deployed, a message takes {MESSAGE_S[0]} to {MESSAGE_S[1]} s of polling."
)


def profile_table(facts: Mapping[str, Mapping[str, Any] | None]) -> Table:
    """Return the cost of each profile; None for one that does not go with the options."""
    table = figures("profile", "rounds", "payload, at most", "messages", "deployed, minutes")
    for name, one in facts.items():
        if one is None:
            table.add_row(name, *[UNKNOWN] * 4)
            continue
        least, most = one["deployed_minutes"]
        table.add_row(
            name,
            format_count(one["rounds"]),
            format_bytes(one["payload_at_most"]),
            format_count(one["messages"]),
            f"{least:.0f} to {most:.0f}",
        )
    return table


def rows_sentence(facts: Mapping[str, int | None]) -> str:
    """Say what peers get at most by what ``second-rows`` says; empty where one cannot be chosen."""
    full, none = facts["full"], facts["none"]
    if full is None or none is None:
        return ""
    of_class = facts["class"]
    other = "" if of_class is None else f", with class {format_bytes(of_class)}"
    return (
        f"Clients send each other at most {format_bytes(full)}, of which peers read links inside\n"
        f"a part; with --second-rows none {format_bytes(none)}{other}, of which they\n"
        "read little that edges across do not tell."
    )


def masked_table(facts: Mapping[str, Any]) -> Table:
    """Return what masked sums move, by what it is for."""
    table = figures("masked sums", "payload")
    for name, key in _MASKED.items():
        if facts[key]:
            table.add_row(name, format_bytes(facts[key]))
    return table


def features_sentence(facts: Mapping[str, int]) -> str:
    """Say how many features have a single contributor."""
    few, every = format_count(facts["of_one_client"]), format_count(facts["all"])
    return f"Features that one client alone adds to: {few} of {every}."


def warning_sentences(warnings: Sequence[str]) -> list[str]:
    """Return what owners should know, in lines of a table's width."""
    return ["\n".join(textwrap.wrap(f"Warning: {one}.", _WIDTH)) for one in warnings]


def cohort_table(facts: Mapping[str, Any]) -> Table:
    """Return how many clients are in a round's sums, by how much their machines are up."""
    ups = [f"up {float(up):.0%}" for up in facts["share"]]
    table = figures("cohorts", "clients in each", *ups)
    least, most = min(facts["sizes"]), max(facts["sizes"])
    each = str(least) if least == most else f"{least} to {most}"
    table.add_row(format_count(len(facts["sizes"])), each, *_shares(facts), style="bold")
    for share, one in facts["unknown"].items():
        name = f"{float(share):.0%} unknown"
        if one is None:
            table.add_row(name, "too few", *[UNKNOWN] * len(ups))
        else:
            table.add_row(name, str(one["size"]), *_shares(one))
    return table


def cohort_sentences(facts: Mapping[str, Any]) -> str:
    """Say what the shares are, and where masks alone are not enough."""
    text = (
        "Share of the clients that are in a round's sums, by how much of the time each\n"
        "machine is up: a cohort is in them if all of it is. A sum hides a client among\n"
        f"three honest ones if {facts['tolerated']} of its cohort (--tolerated) work with the "
        "server;\nbelow: if so many of all owners do, nobody knows which, in cohorts that large."
    )
    for use, count in facts["lost"].items():
        clients = format_counted(count, "client")
        text += f"\nIn no sum: {use} data of {clients}; too few of their cohorts have some."
    if is_not_enough(facts):
        text += (
            "\nWarning: if a tenth of the owners may work with the server, nobody knows who,\n"
            "and machines are up 90% of the time, masks alone are not enough here."
        )
    return text


def members_sentence(masked: Mapping[str, Any]) -> str:
    """Say how many train nodes hide one of them; nothing where no sum is of any, or has noise."""
    fewest = masked.get("fewest_train_nodes", 0)
    if not fewest:
        return ""
    return (
        f"Fewest train nodes in a sum: {format_count(fewest)}. The fewer, the better the server "
        "finds\nout which nodes were trained on (docs/masked-sums.md)."
    )


def _shares(facts: Mapping[str, Any]) -> list[str]:
    return [f"{share:.2f}" for share in facts["share"].values()]


_MASKED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "updates up": "updates_up",
        "counts, losses, bytes": "beside",
        "keys": "keys",
        "signatures, if deployed": "signatures",
    }
)
MASKED_NOTE: Final = (
    "Of the chosen algorithm, if no stage ends early and no client is missing: with\n"
    "secure-aggregation masked the server gets sums of whole numbers."
)


def network_table(network: dict[str, Any]) -> Table:
    """Return what `links` adds: the network time of a deployment."""
    table = figures("network time", "times", "bytes", "seconds each", "seconds")
    for one in network["exchanges"]:
        size = format_bytes(one["payload_bytes"])
        known = size if one["is_exact"] else f"<= {size}"
        _add(table, f"exchange {one['stage']}", one["count"], known, (one["seconds"],))
    for one in network["messages"]:
        moved = (one["down_bytes"] or 0) + (one["up_bytes"] or 0)
        is_first_round = one["first"] and one["purpose"] == "train"
        name = "first" if is_first_round else one["purpose"]
        name += "" if one["stage"] < 0 else f" {one['stage']}"
        each = (message_s(one, OPENED[0]), message_s(one, OPENED[-1]))
        _add(table, name, one["count"], format_bytes(moved), each)
    total = network["seconds"]
    sums = (total["all"], total["exchanges"] + total["messages_most"])
    table.add_row("all", "", "", "", _range(sums), style="bold")
    return table


NETWORK_NOTE: Final = (
    "Network time of a deployment on these links: for exchanges that of the slowest\n"
    "pair, for Flower's messages that of the slowest client. Expect the lower times\n"
    "if a ClientApp answers within 4 s. Flower closes connections after 5 s idle;\n"
    "the higher times are for messages that each open a new one. First is a stage's\n"
    "first round together with its exchange. Few bits a value take those bytes at\n"
    "most; a stage that patience ends has fewer rounds. Computing, Flower's sleeps\n"
    "and packet loss are not included (docs/links.md)."
)


def _add(table: Table, name: str, count: int, size: str, each_s: tuple[float, ...]) -> None:
    table.add_row(name, str(count), size, _range(each_s), _range([count * s for s in each_s]))


def _range(seconds: Sequence[float]) -> str:
    shown = [f"{one:.2f}" for one in (seconds[0], seconds[-1])]
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)
