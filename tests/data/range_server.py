"""Serves one folder over HTTP to the tests of downloads, with faults on request. The path says which:

    /NAME            the file, whole or from where a Range header says
    /cut/N/NAME      the same, but the connection ends after N bytes of the answer
    /norange/NAME    always the whole file, whatever the header says
    /moved/NAME      a redirect to /NAME

Usage: range_server.py FOLDER LOG. The port is the first line of the output; LOG gets a line per request, "path range".
The server ends when its input does, so that no test leaves it behind.
"""

import http.server
import os
import re
import sys
import threading

FOLDER, LOG = sys.argv[1:3]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range", "-")
        with open(LOG, "a") as log:
            log.write(f"{self.path} {wanted}\n")
        parts = self.path.strip("/").split("/")
        if parts[0] == "moved":
            self.send_response(302)
            self.send_header("Location", "/" + parts[-1])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = os.path.join(FOLDER, parts[-1])
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as file:
            content = file.read()
        begin = 0
        match = re.fullmatch(r"bytes=(\d+)-", wanted)
        if match and parts[0] != "norange":
            begin = int(match.group(1))
            if begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        end = begin + int(parts[1]) if parts[0] == "cut" else len(content)
        self.wfile.write(content[begin:end])
        self.close_connection = True

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.buffer.read()
