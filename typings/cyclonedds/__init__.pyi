# Of Eclipse Cyclone DDS for Python, as much as the tests use.
