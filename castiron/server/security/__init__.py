"""Who may do what: tokens, rights, TLS, the admin listener and its audit log."""
