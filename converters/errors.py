"""The one exception that reaches a user as a sentence."""


class UserError(Exception):
    """A mistake or a missing thing that the user can mend.

    The message is complete: what happened and what to do. Commands print it after ``error:`` without a
    traceback and exit with 1. Anything else that escapes a command is a bug of ours and keeps its traceback.
    """
