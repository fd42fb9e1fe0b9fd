"""How Python's garbage collector works in a daemon."""

import gc

_YOUNG, _MIDDLE, _FULL = 5_000, 5, 10


def calm() -> None:
    """Leave what is there out of garbage collections from now on, and make whole ones rare.

    A whole collection looks at all objects of all sessions and stops all streams meanwhile, for
    0.1 s and more with a thousand sessions; Python makes one for every quarter that these
    objects grow by. References free nearly all there is to free, but for sessions that leave the
    memory: one in a quarter of a million new objects keeps that at some 600 of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
