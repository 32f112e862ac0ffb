"""The table of forms: the class for each name of a form.

A new form is a new module here, and its class in the table.
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

# Among forms with the same columns, a file has the first form unless another form recognises it.
FORMS: dict[str, type[Form]] = {
    form.name: form for form in (ClassificationForm, RegressionForm, MultiLabelForm, TaggingForm, SpanForm, ChoiceForm)
}

if TYPE_CHECKING:
    Settings = FormSettings
else:
    Settings = Union[FormSettings, *(form.settings_type for form in FORMS.values())]  # noqa: UP007
"""The settings of any form, as a field of a recipe: a choice by ``kind``."""


def form_named(name: str) -> type[Form]:
    """The form called ``name``.

    Raises:
        ConfigError: unknown name; the message gives the nearest one.
    """
    if name not in FORMS:
        raise ConfigError(f"unknown form {name!r}{nearest(name, FORMS)}")
    return FORMS[name]
