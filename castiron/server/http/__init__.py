"""HTTP/1.1 on a socket: connections, and the exchanges of request and answer on them."""
