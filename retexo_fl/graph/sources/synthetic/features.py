"""Features that depend weakly on a node's class: Gaussian clouds, or words of a topic."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.features import Features
from retexo_fl.graph.seeding import seeded_generator
from retexo_fl.graph.sources.synthetic.spec import SyntheticSpec

#: Values drawn in one go. Chosen; not tuned. Another number would draw other features.
_CHUNK_VALUES: Final = 2**23
#: A class's topic is so large a part of all words; at least one.
_TOPIC_SHARE: Final = 0.1
#: Common words are drawn by the cube of a uniform number: the rank of the n-th word falls as a
#: power, and half of all draws are an eighth of the words.
_COMMON_WORDS_POWER: Final = 3


def make_features(spec: SyntheticSpec, labels: np.ndarray) -> Features:
    """Return features of the kind that is asked for.

    Args:
        spec: Sizes, signal and seed.
        labels: [N] classes.

    Returns:
        [N, F] float32: dense, or CSR with sorted columns and 1 for each word.
    """
    return _bags_of_words(spec, labels) if spec.words else _clouds(spec, labels)


def _clouds(spec: SyntheticSpec, labels: np.ndarray) -> np.ndarray:
    """Return unit Gaussian noise around class means that are ``signal`` away from the origin."""
    generator = seeded_generator(spec.seed, "synthetic clouds")
    means = generator.standard_normal((spec.classes, spec.features), dtype=np.float32)
    means *= spec.signal / np.linalg.norm(means, axis=1, keepdims=True)
    features = np.empty((spec.nodes, spec.features), dtype=np.float32)
    step = max(1, _CHUNK_VALUES // spec.features)
    for first in range(0, spec.nodes, step):
        rows = features[first : first + step]
        generator.standard_normal(dtype=np.float32, out=rows)
        rows += means[labels[first : first + step]]
    return features


def _bags_of_words(spec: SyntheticSpec, labels: np.ndarray) -> csr_array:
    """Return which words each node has, of ``words`` that are drawn with repetition."""
    generator = seeded_generator(spec.seed, "synthetic words")
    topic_size = max(1, int(spec.features * _TOPIC_SHARE))
    topics = np.stack(
        [
            generator.choice(spec.features, topic_size, replace=False).astype(np.int32)
            for _ in range(spec.classes)
        ]
    )
    by_rank = generator.permutation(spec.features).astype(np.int32)
    step = max(1, _CHUNK_VALUES // spec.words)
    columns, counts = [], []
    for first in range(0, spec.nodes, step):
        of_rows = labels[first : first + step]
        shape = (len(of_rows), spec.words)
        from_topic = generator.random(shape, dtype=np.float32) < spec.signal
        topical = topics[of_rows[:, None], generator.integers(0, topic_size, shape)]
        ranks = generator.random(shape) ** _COMMON_WORDS_POWER * spec.features
        words = np.where(from_topic, topical, by_rank[ranks.astype(np.int32)])
        words.sort(axis=1)
        new = np.ones(shape, dtype=bool)
        np.not_equal(words[:, 1:], words[:, :-1], out=new[:, 1:])
        columns.append(words[new])
        counts.append(new.sum(axis=1))
    indices = np.concatenate(columns)
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    ones = np.ones(len(indices), dtype=np.float32)
    return csr_array((ones, indices, indptr), shape=(spec.nodes, spec.features))
