"""A soak: thousands of requests of every kind to a real server, with clients that go away or ask for nonsense."""
