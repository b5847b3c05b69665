"""Web page and JSON API of a translator, run by `regard serve DIR`.

Needs the packages of the extra `serve`.
"""
