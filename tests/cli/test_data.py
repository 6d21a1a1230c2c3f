"""strata data as a user meets it."""

import functools
import hashlib
import http.server
import json
import os
import subprocess
import threading

from support import home, strata  # noqa: F401 (home is a fixture)


def test_data_list_make_check(home):
    assert "listops" in strata("data", "list")
    folder = strata("data", "make", "listops", "--train-rows", 100, "--valid-rows", 10, "--test-rows", 10).strip()
    manifest = json.load(open(os.path.join(folder, "manifest.json")))
    assert set(manifest["files"]) == {"train.tsv", "valid.tsv", "test.tsv"}
    checked = json.loads(strata("data", "check", "listops", "--train-rows", 100, "--valid-rows", 10, "--test-rows", 10, "--json"))
    assert checked["train"]["rows"] == 100 and checked["train"]["unusable"] == 0
    with open(os.path.join(folder, "train.tsv"), "a") as file:
        file.write("3\t[MAX 1 2 ]\n")
    assert "train.tsv" in strata("data", "check", "listops", "--train-rows", 100, "--valid-rows", 10, "--test-rows", 10, code=3)
    wrong = home / "wrong.tsv"
    wrong.write_text("2\t[MAX 1 2 ]\n3\t[MIN 1 2 ]\n" + "".join(f"{i % 10}\t{i % 10}\n" for i in range(40)))
    assert "1 unusable rows" in strata("data", "check", "listops", "--data", wrong, code=3)


def test_data_get_from_a_server(home):
    """An archive laid out like the official one, from a server of our own."""
    source = home / "www/aclImdb"
    for split in ("train", "test"):
        for side in ("pos", "neg"):
            (source / split / side).mkdir(parents=True)
            for i in range(20):
                (source / split / side / f"{i}_{9 if side == 'pos' else 2}.txt").write_text(f"a {side} review, number {i}")
    subprocess.run(["tar", "czf", "a.tar.gz", "aclImdb"], cwd=home / "www", check=True)
    digest = hashlib.sha256((home / "www/a.tar.gz").read_bytes()).hexdigest()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=home / "www"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/a.tar.gz"
    try:
        assert "expected sha256" in strata("data", "get", "imdb", "--url", url, "--digest", "sha256:" + "0" * 64, code=3)
        assert "404" in strata("data", "get", "imdb", "--url", url + "x", "--digest", "none", code=3)
        folder = strata("data", "get", "imdb", "--url", url, "--digest", "sha256:" + digest).strip()
        assert sorted(os.listdir(folder)) == ["manifest.json", "test.tsv", "train.tsv"]
        assert "in the cache" in strata("data", "list")
        assert "binary version of CIFAR-10" in strata("data", "get", "cifar10", "--url", url, "--digest", "none", code=3)
    finally:
        server.shutdown()
    checked = json.loads(strata("data", "check", "imdb", "--json"))
    assert checked["train"]["rows"] + checked["valid"]["rows"] == 40 and checked["test"]["labels"] == {"negative": 20, "positive": 20}
