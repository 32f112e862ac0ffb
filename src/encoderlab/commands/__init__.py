"""The verbs of the command line, one thin module per area; ``encoderlab.cli.VERBS`` names them.

A verb is a function. Its keyword-only arguments are the options and their annotations the types (``typing.Annotated``
with ``cyclopts.Parameter`` where a help text or another name is needed). Its docstring is the help: a sentence, an
``Example:`` with the command in full, and a numpydoc ``Parameters`` section. It raises the errors of
``encoderlab.errors``, prints with ``encoderlab.commands.terminal.say`` and ``table``, and returns a plain dictionary,
the object that ``--json`` prints. torch is imported inside the function, never at the top, so that ``--help`` is quick.
"""
