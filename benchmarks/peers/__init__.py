"""Fathom beside other engines; see __main__.py."""
