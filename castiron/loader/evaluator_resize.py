OPS: list = []
