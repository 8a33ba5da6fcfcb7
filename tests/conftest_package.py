"""Test support as a package, imported as `h3te_tests` whatever the clone's folder is called."""
