"""The public data sets: where their sources are, their checksums, and who converts them.

Addresses name a commit, so that what they serve cannot change. Where the checksums come from:

Planetoid (Cora, Citeseer, PubMed): several public repositories pin the same SHA-256 of each file
of this commit (``vgl/data/public.py``, and for Cora the tests of ``modssc``). The exclusive or of
all eight of a data set, ``x`` included, is the checksum that MLDatasets.jl gives for it
(``src/datasets/graphs``). ``y`` and ``ally`` can be rebuilt to the byte from labels alone; the
tests do so.

Tolokers: digest and size are in several public audits of the files of this commit; one of them
also gives digests of the arrays, of which those of labels and training masks are known to agree.

GitHub: ``ch12.jl`` of the pinned repository checks this digest; others pin it for the same archive
at SNAP (``snap.stanford.edu/data/git_web_ml.zip``), one with the size.

Of the other files no digest has been found in public. They are converted from files that a user
has fetched by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from retexo_fl.downloads.remote_file import RemoteFile
from retexo_fl.graph.sources.named.arrays import Arrays
from retexo_fl.graph.sources.named.facebook100 import facebook100_arrays
from retexo_fl.graph.sources.named.musae import facebook_arrays, github_arrays, lastfm_arrays
from retexo_fl.graph.sources.named.planetoid import planetoid_arrays
from retexo_fl.graph.sources.named.published_npz import gnn_benchmark_arrays, heterophilous_arrays

#: Makes the arrays of a ``.npz`` data set from its name and its source files by name.
Converter = Callable[[str, Mapping[str, bytes]], Arrays]

_RAW: Final = "https://raw.githubusercontent.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset:
    """A public data set.

    Attributes:
        name: What ``--dataset`` takes.
        nodes: N.
        edges: Undirected edges, each counted once.
        features: F.
        classes: C.
        split: Nodes of the published split, ``140/500/1000``, or ``none``.
        licence: What the repository of the source states for itself.
        files: Its source.
        convert: Makes arrays of the files.
    """

    name: str
    nodes: int
    edges: int
    features: int
    classes: int
    split: str = "none"
    licence: str
    files: tuple[RemoteFile, ...]
    convert: Converter

    @property
    def downloadable(self) -> bool:
        """Whether each file of the source can be checked."""
        return all(file.sha256 is not None for file in self.files)


def _planetoid(name: str, split: str, sizes: tuple[int, ...], pins: str) -> NamedDataset:
    nodes, edges, features, classes = sizes
    base = f"{_RAW}/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
    rows = [line.split() for line in pins.strip().splitlines()]
    files = [
        RemoteFile(
            name=f"ind.{name}.{part}",
            url=f"{base}/ind.{name}.{part}",
            sha256=sha256,
            size_bytes=int(size[0]) if size else None,
        )
        for part, sha256, *size in rows
    ]
    return NamedDataset(
        name=name,
        nodes=nodes,
        edges=edges,
        features=features,
        classes=classes,
        split=split,
        licence="MIT",
        files=tuple(files),
        convert=planetoid_arrays,
    )


_CORA: Final = """
tx b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a
allx 9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543
y 94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1 4054
ty 41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad
ally 2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71 47959
graph 58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d
test.index 297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875
"""
_CITESEER: Final = """
tx 539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21
allx 2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668
y 8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924 3014
ty 55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce
ally f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95 55623
graph d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7
test.index 2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4
"""
_PUBMED: Final = """
tx 4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d
allx 508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e
y e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3 854
ty ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd
ally 0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e 224739
graph 5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9
test.index b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5
"""

_GRAPH_DATA: Final = f"{_RAW}/EdisonLeeeee/GraphData/f8022c26b917346f2a461ffec0ec5ae24b36de68"
_FACEBOOK100: Final = (
    f"{_RAW}/sisaman/pyg-datasets/9a92bf1e84f73b7b24dd745eb14f13e4d1979769/datasets/facebook100"
)
#: In the order of the union's nodes.
_SCHOOLS: Final = (
    *("Berkeley13", "Wisconsin87", "Rutgers89", "Oklahoma97"),
    *("Cornell5", "USC35", "Maryland58", "UVA16"),
)


def _gnn_benchmark(file: str) -> tuple[RemoteFile, ...]:
    base = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
    return (RemoteFile(name=file, url=f"{base}/{file}"),)


def _schools(*names: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name=f"{name}.mat", url=f"{_FACEBOOK100}/{name}.mat") for name in names)


_ALL: Final = (
    _planetoid("cora", "140/500/1000", (2708, 5278, 1433, 7), _CORA),
    _planetoid("citeseer", "120/500/1000", (3327, 4552, 3703, 6), _CITESEER),
    _planetoid("pubmed", "60/500/1000", (19717, 44324, 500, 3), _PUBMED),
    NamedDataset(
        name="tolokers",
        nodes=11758,
        edges=519000,
        features=10,
        classes=2,
        split="5879/2939/2940",
        licence="MIT",
        files=(
            RemoteFile(
                name="tolokers.npz",
                url=f"{_RAW}/yandex-research/heterophilous-graphs/"
                "a431395582e929d88271309716bea4fe24ce6318/data/tolokers.npz",
                sha256="dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
                size_bytes=1_329_769,
            ),
        ),
        convert=heterophilous_arrays,
    ),
    NamedDataset(
        name="github",
        nodes=37700,
        edges=289003,
        features=4005,
        classes=2,
        licence="MIT",
        files=(
            RemoteFile(
                name="git_web_ml.zip",
                url=f"{_RAW}/bkamins/JuliaForDataAnalysis/"
                "08c75a6a767b48532d08451b031ff915922fc89e/git_web_ml.zip",
                sha256="56c0c1c2c460dc4c7bf89357b1fec020f45e2ecebab81d131d073b10e28ec031",
                size_bytes=2_396_031,
            ),
        ),
        convert=github_arrays,
    ),
    NamedDataset(
        name="facebook_page_page",
        nodes=22470,
        edges=170823,
        features=4714,
        classes=4,
        licence="MIT",
        files=tuple(
            RemoteFile(name=file, url=f"{_GRAPH_DATA}/datasets/musae/facebook/{file}")
            for file in ("edges.csv", "features.json", "target.csv")
        ),
        convert=facebook_arrays,
    ),
    # Sizes as its authors give them; of the features, as others count them: no copy has been seen.
    NamedDataset(
        name="lastfm_asia",
        nodes=7624,
        edges=27806,
        features=7842,
        classes=18,
        licence="MIT",
        files=(
            RemoteFile(
                name="lastfm_asia.zip", url="https://snap.stanford.edu/data/lastfm_asia.zip"
            ),
        ),
        convert=lastfm_arrays,
    ),
    NamedDataset(
        name="amazon_computers",
        nodes=13752,
        edges=245861,
        features=767,
        classes=10,
        licence="MIT",
        files=_gnn_benchmark("amazon_electronics_computers.npz"),
        convert=gnn_benchmark_arrays,
    ),
    NamedDataset(
        name="coauthor_physics",
        nodes=34493,
        edges=247962,
        features=8415,
        classes=5,
        licence="MIT",
        files=_gnn_benchmark("ms_academic_phy.npz"),
        convert=gnn_benchmark_arrays,
    ),
    NamedDataset(
        name="fb100_berkeley13",
        nodes=22937,
        edges=852444,
        features=437,
        classes=6,
        licence="MIT",
        files=_schools("Berkeley13"),
        convert=facebook100_arrays,
    ),
    NamedDataset(
        name="fb100_union8",
        nodes=162955,
        edges=6492339,
        features=1289,
        classes=6,
        licence="MIT",
        files=_schools(*_SCHOOLS),
        convert=facebook100_arrays,
    ),
)

#: By name.
NAMED: Final[Mapping[str, NamedDataset]] = MappingProxyType({one.name: one for one in _ALL})
