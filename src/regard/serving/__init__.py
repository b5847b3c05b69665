"""The page and the JSON interface: a translator behind HTTP, for this machine first.

`regard serve DIR` runs it; needs the packages of the extra `serve`.
"""
