"""Train sequence-to-sequence models and inspect or edit their attention.

There are three entry points: a layer (`regard.Attention`), a translator (`regard.Translator`) and a
command (`regard`). `__init__.pyi` declares the public names; they are imported on first use, so that
`import regard` stays fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
