"""The sentences of docs/RESULTS.md that say how its runs were made: rows, lengths, epochs and sizes, from the options that the
raw files record (page_tables.py says how the sentences are written).
"""

from page_tables import raw


def of(name, *options):
    """Options of a comparison; numbers of rows have commas."""
    found = raw(name)["options"]
    return [f"{found[option]:,}" if option.endswith("rows") else f"{found[option]}" for option in options]


def settings():
    novels = raw("lm-novels-cpu")["options"]
    read = novels["steps"] * novels["batch"] * novels["length"]
    return [
        ("(two layers, {} channels, four heads, learned positions, mean pooling, dropout {})", of("hkt-table-listops", "model_size", "dropout")),
        ("{} training rows from our generator (depth and arguments up to {};", of("hkt-table-listops", "train_rows", "max_depth")),
        ("2,000 for validation, 2,000 for the test; {} epochs", of("hkt-table-listops", "epochs")),
        ("## IMDB as bytes, the first {} of each review", of("hkt-table-imdb", "length")),
        ("the official 25,000 for the test; {} epochs", of("hkt-table-imdb", "epochs")),
        ("the official 10,000 for the test; {} epochs", of("hkt-table-cifar10", "epochs")),
        ("We read grey values of a JPEG copy, for {} epochs", of("hkt-table-cifar10", "epochs")),
        ("from the first {} words; {} epochs; learning rate 1e-3", of("hsa-table-imdb-words", "length", "epochs")),
        ("the first {} pieces of a review, {} rows for training, {} for validation and {} for the test",
         of("hsa-table-imdb-frozen", "length", "train_rows", "valid_rows", "test_rows")),
        ("its {} x {} means) and a sentence", of("captions", "image_side", "image_side")),
        ("Models of {} channels, rows of at most", of("captions", "model_size")),
        ("two layers, {} channels, four heads, rotary positions, no dropout, {} bytes of context, {} steps of {} windows ({} million bytes",
         [novels["model_size"], novels["length"], f"{novels['steps']:,}", novels["batch"], f"{read / 1e6:.1f}"]),
        ("The same two-layer models with {} epochs", of("best-imdb", "epochs")),
        ("the first **{}** bytes are read, as in the Long Range Arena, and a tenth of them is hidden in training (`--hide {}`)",
         of("best-imdb", "length", "hide")),
    ]


PAGES = {"docs/RESULTS.md": settings}
