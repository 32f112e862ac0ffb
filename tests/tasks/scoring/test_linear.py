from __future__ import annotations

import numpy as np
import pytest

from encoderlab.tasks.forms.baselines import words
from encoderlab.tasks.scoring.linear import LogisticRegression, TfIdf
from tests.tasks.forms.test_baselines import corpus


def test_features_and_regression_equal_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    texts, labels = corpus()
    reference = text.TfidfVectorizer(sublinear_tf=True, min_df=2, token_pattern=r"\w+", lowercase=True)
    expected = reference.fit_transform(texts).toarray()
    ours = TfIdf([words(t) for t in texts])
    rows = ours([words(t) for t in texts])
    dense = np.zeros(expected.shape)
    for i, (columns, values) in enumerate(rows):
        dense[i, columns] = values
    assert np.allclose(dense, expected)
    assert list(TfIdf(iter([["a", "b"], ["a", "b"], ["a", "c"]]), most=1).index) == ["a"]
    names = sorted(set(labels))
    target = np.array([names.index(label) for label in labels])
    model = LogisticRegression(3, steps=500).fit(rows, target)
    theirs = linear.LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(expected, target)
    a = model.scores(rows) - model.scores(rows).mean(1, keepdims=True)
    b = theirs.decision_function(expected)
    assert np.abs(a - (b - b.mean(1, keepdims=True))).max() < 2e-3
