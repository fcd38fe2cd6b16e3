//! A headless Chromium, driven by its DevTools protocol over a pipe: messages end with a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one tab.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    events: Vec<Value>,
    session: Option<String>,
    calls: u64,
    _profile: TempDir,
}

/// Width in pixels, colour scheme.
#[derive(Clone, Copy)]
pub struct Screen {
    pub width: u32,
    pub dark: bool,
}

impl Browser {
    /// `None`, with a printed reason, where there is no Chromium.
    pub fn start() -> Option<Browser> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let exists = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
        let Some(name) = names.into_iter().find(exists) else {
            eprintln!("skipped: there is no chromium, chromium-browser or google-chrome on this machine");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // Chromium reads commands from descriptor 3 and writes answers to 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null", name])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let events = Vec::new();
        let mut browser = Browser { process, input, messages, events, session: None, calls: 0, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().unwrap().into());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Opens a page in a window of this size.
    pub fn open(&mut self, url: &str, screen: Screen) {
        let Screen { width, dark } = screen;
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 640 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [scheme] }));
        self.call("Page.navigate", json!({ "url": url }));
        self.wait_for("document.readyState === 'complete'");
    }

    /// The value of a JavaScript expression; promises are awaited.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let arguments = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", arguments);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// The text of the first element that a selector finds.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector({selector:?})?.innerText ?? 'no such element'"));
        text.as_str().unwrap().into()
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.evaluate(&format!("Boolean({expression})")) != json!(true) {
            let body = "document.body?.innerText";
            assert!(start.elapsed() < PATIENCE, "never: {expression}\n{}", self.evaluate(body));
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Chooses files in a file input.
    pub fn choose(&mut self, selector: &str, files: &[&Path]) {
        let found =
            self.call("Runtime.evaluate", json!({ "expression": format!("document.querySelector({selector:?})") }));
        let object = &found["result"]["objectId"];
        self.call("DOM.setFileInputFiles", json!({ "files": files, "objectId": object }));
    }

    /// Moves the pointer to the centre of an element.
    pub fn hover(&mut self, selector: &str) {
        let centre = format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{ block: 'center' }}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let at = self.evaluate(&centre);
        self.call("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": at[0], "y": at[1] }));
    }

    /// Presses a key: `Tab`, `Enter`, `Escape`, `ArrowDown`.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowDown" => 40,
            _ => panic!("the code of {key}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// The parameters of all events of a kind until now.
    pub fn events(&mut self, method: &str) -> Vec<Value> {
        self.evaluate("0");
        self.events.iter().filter(|event| event["method"] == method).map(|event| event["params"].clone()).collect()
    }

    /// Waits for an event, which is then forgotten.
    pub fn event(&mut self, method: &str) -> Value {
        let start = Instant::now();
        loop {
            if let Some(index) = self.events.iter().position(|event| event["method"] == method) {
                return self.events.remove(index)["params"].take();
            }
            assert!(start.elapsed() < PATIENCE, "no event {method}");
            thread::sleep(Duration::from_millis(30));
            self.evaluate("0");
        }
    }

    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.input.write_all(&[message.to_string().as_bytes(), b"\0"].concat()).unwrap();
        loop {
            let mut message = match self.messages.recv_timeout(PATIENCE) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no answer of the browser"),
                Err(RecvTimeoutError::Disconnected) => panic!("{method}: the browser has ended"),
            };
            if message["id"] == self.calls {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let close = json!({ "id": 0, "method": "Browser.close" }).to_string();
        let asked = self.input.write_all(&[close.as_bytes(), b"\0"].concat());
        let start = Instant::now();
        while asked.is_ok() && start.elapsed() < Duration::from_secs(5) {
            if matches!(self.process.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
