"""The command `regard`: main.py finds the verb, each verb has its file."""
