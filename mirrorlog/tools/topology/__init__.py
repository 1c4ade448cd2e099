"""Commands about what is declared: exchanges, bindings, virtual hosts, policies; and all of it as one document."""
