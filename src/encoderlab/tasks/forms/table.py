"""The table of forms: what a task's word for its form stands for.

A new form is a module beside this one, and its class in the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from encoderlab.errors import ConfigError, nearest
from encoderlab.tasks.forms.base import Form, FormSettings
from encoderlab.tasks.forms.choice import ChoiceForm
from encoderlab.tasks.forms.classification import ClassificationForm
from encoderlab.tasks.forms.multilabel import MultiLabelForm
from encoderlab.tasks.forms.regression import RegressionForm
from encoderlab.tasks.forms.span import SpanForm
from encoderlab.tasks.forms.tagging import TaggingForm

# Of forms whose files have the same columns, the first is what a file holds unless another one recognises it.
FORMS: dict[str, type[Form]] = {
    form.name: form for form in (ClassificationForm, RegressionForm, MultiLabelForm, TaggingForm, SpanForm, ChoiceForm)
}

if TYPE_CHECKING:
    Settings = FormSettings
else:
    Settings = Union[FormSettings, *(form.settings_type for form in FORMS.values())]  # noqa: UP007
"""The settings of any form, as a field of a recipe: a choice by ``kind``."""


def form_named(name: str) -> type[Form]:
    """The form of that name.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    if name not in FORMS:
        raise ConfigError(f"form {name!r}{nearest(name, FORMS)}")
    return FORMS[name]
