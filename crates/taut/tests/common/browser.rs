//! A browser that a test uses as a reader does: by the pipe of Chromium's remote debugging (the DevTools protocol),
//! whose messages are JSON with a zero byte behind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tautline_state::child::KilledOnDrop;

use serde_json::{Value, json};

/// A page in a browser. Dropped, the browser is killed.
pub(crate) struct Browser {
    child: KilledOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    /// Errors and words of the page's scripts.
    complaints: Vec<String>,
}

impl Browser {
    /// Opens an address; `None`, with a note, where there is no browser.
    pub(crate) fn open(url: &str, profile: &Path) -> Option<Browser> {
        // The browser reads its orders from descriptor 3 and answers on 4.
        let script = "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec timeout 300 chromium --headless --no-sandbox \
                      --disable-gpu --remote-debugging-pipe \"--user-data-dir=$0\" about:blank";
        let has_browser = Command::new("chromium").arg("--version").output().is_ok();
        if !has_browser {
            println!("SKIPPED: chromium is not installed");
            return None;
        }
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(script)
            .arg(profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Browser {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child: KilledOnDrop(child),
            session: None,
            number: 0,
            complaints: Vec::new(),
        };
        let targets = browser.call("Target.getTargets", json!({}));
        let targets = targets["targetInfos"].as_array().unwrap();
        let page = targets.iter().find(|one| one["type"] == "page").unwrap();
        let attached = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attached);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.call("Runtime.enable", json!({}));
        browser.call("Page.navigate", json!({ "url": url }));
        Some(browser)
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut order = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            order["sessionId"] = session.clone().into();
        }
        self.input
            .write_all(format!("{order}\0").as_bytes())
            .unwrap();
        loop {
            let mut bytes = Vec::new();
            self.output.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let mut said: Value = serde_json::from_slice(&bytes).unwrap();
            if said["id"] == self.number {
                // Between two pages there is nothing to evaluate in.
                let is_fine = said["error"].is_null() || method == "Runtime.evaluate";
                assert!(is_fine, "{method}: {said}");
                return said["result"].take();
            }
            let event = said["method"].as_str().unwrap_or_default();
            if matches!(
                event,
                "Runtime.consoleAPICalled" | "Runtime.exceptionThrown"
            ) {
                self.complaints.push(said["params"].to_string());
            }
        }
    }

    fn evaluated(&mut self, expression: &str) -> Value {
        let wish = json!({ "expression": expression, "returnByValue": true });
        self.call("Runtime.evaluate", wish)
    }

    /// Value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let mut told = self.evaluated(expression);
        assert!(told["exceptionDetails"].is_null(), "{expression}: {told}");
        told["result"]["value"].take()
    }

    /// Waits until an expression in the page is true. It may fail before: the page is not there at once.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.evaluated(expression)["result"]["value"] != true {
            let text = self.evaluated("document.body.innerText");
            assert!(
                Instant::now() < limit,
                "waited in vain for {expression}: {text}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks on the middle of an element, as a pointer does.
    pub(crate) fn click(&mut self, selector: &str) {
        let selector = Value::from(selector);
        let place = self.value(&format!(
            "(() => {{ const one = document.querySelector({selector}); one.scrollIntoView({{ block: 'center' }}); \
             const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({
                "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1,
            });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Pixels by which the page is wider than a screen of this width.
    pub(crate) fn excess(&mut self, width: u32) -> i64 {
        let screen =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", screen);
        let wide = self.value("document.documentElement.scrollWidth");
        wide.as_i64().unwrap() - i64::from(width)
    }

    /// Checks that the page's scripts have complained of nothing.
    pub(crate) fn is_content(&self) {
        assert!(self.complaints.is_empty(), "{:?}", self.complaints);
    }
}
