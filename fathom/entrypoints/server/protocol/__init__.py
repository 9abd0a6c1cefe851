"""What clients send and get, as msgspec structs. docs/api.md and /openapi.json are generated from them.

A request field that is not here is refused with 400. A field with `Refused` in its type is here so that its
neutral values, which clients send by habit, do no harm; every other value is refused by name.
"""
