"""Measurements that are run by hand; `fathom bench` is for users."""
