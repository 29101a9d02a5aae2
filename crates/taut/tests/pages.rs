//! Pages in a browser as wide as two telephones and a desk: nothing stands beyond the edge, and of each table the
//! maxima are in sight.

use std::fs;
use std::path::Path;
use std::process::Command;

mod common;
use common::{Scratch, browse_with};

/// Widths in CSS pixels.
const WIDTHS: [u32; 3] = [320, 390, 1200];

/// A page that shows another one in a frame of a width, and writes below it how wide that is, and how many maxima stand
/// where the frame shows them and where it does not.
fn frame(page: &Path, width: u32) -> String {
    let script = "const shown = document.querySelector('iframe'); \
        shown.onload = () => { \
            const inner = shown.contentDocument; \
            const maxima = [...inner.querySelectorAll('td')].filter(cell => /^max/i.test(cell.dataset.label || '')); \
            const seen = maxima.filter(cell => cell.getBoundingClientRect().right <= WIDTH); \
            document.querySelector('pre').textContent = \
                `wide ${inner.documentElement.scrollWidth} maxima ${maxima.length} seen ${seen.length}`; \
        }";
    format!(
        "<!doctype html><meta charset=utf-8><iframe src=\"file://{}\" style=\"width:{width}px;height:2000px;border:0\">\
         </iframe><pre></pre><script>{}</script>",
        page.display(),
        script.replace("WIDTH", &width.to_string())
    )
}

/// Checks a page at each width; `false` where there is no browser.
fn fits(page: &Path, scratch: &Scratch) -> bool {
    for width in WIDTHS {
        let framed = scratch.0.join("framed.html");
        fs::write(&framed, frame(page, width)).unwrap();
        let options = [
            "--allow-file-access-from-files",
            "--virtual-time-budget=5000",
        ];
        let Some(text) = browse_with(&options, &framed, &scratch.0.join("profile")) else {
            return false;
        };
        let told = text.split("<pre>").nth(1).unwrap_or_default();
        let mut words = told.split([' ', '<']);
        let mut number = |name: &str| -> u32 {
            assert_eq!(words.next(), Some(name), "{}: {told}", page.display());
            words.next().and_then(|word| word.parse().ok()).unwrap()
        };
        let (wide, maxima, seen) = (number("wide"), number("maxima"), number("seen"));
        let at = format!("{} at {width} px", page.display());
        assert!(wide <= width, "{at} is {wide} px wide");
        assert!(maxima > 0, "{at} has no column of maxima");
        assert_eq!(seen, maxima, "{at} hides maxima");
    }
    true
}

fn taut(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(arguments)
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaints}");
}

#[test]
fn pages_fit_telephones_and_desks() {
    let scratch = Scratch::new("pages");
    let path = |name: &str| scratch.0.join(name).display().to_string();
    let demo = path("demo");
    taut(&["demo", "--unprivileged", "--seconds", "1", "--out", &demo]);
    let (lab, json, report) = (path("lab.html"), path("lab.json"), path("report.html"));
    let json_option = format!("--json={json}");
    taut(&[
        "lab",
        "run",
        "--seconds",
        "1s",
        "--html",
        &lab,
        &json_option,
    ]);
    taut(&["lab", "report", &json, &json, "--html", &report]);
    for page in [format!("{demo}/report.html"), lab, report] {
        if !fits(Path::new(&page), &scratch) {
            return;
        }
    }
}
