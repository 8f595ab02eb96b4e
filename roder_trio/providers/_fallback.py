"""Engines that take over from each other."""

from roder_trio.ports import Fallback, InferenceEngine


def fallback(first: InferenceEngine, *others: InferenceEngine) -> Fallback:
    """Return a value for `engines` whose steps go to `first`, and to the `others` in order where that fails.

    The next engine takes over when a failure stands that is retryable (its retries spent), a spent quota, a usage limit
    or a refused key, and the step has shown nothing yet; the failure of the last one is the turn's. Each try is an
    attempt of its own, counted with its own provider and model. A model that a turn names goes to the first only, the
    others use their default; each step begins with the first again. Raises ValueError for two engines of one id.
    """
    return Fallback((first, *others))
