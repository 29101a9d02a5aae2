//! Pages in a browser: how wide they are, and whether their plots answer.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Scratch, browse_with};

/// Percentiles in the plots of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Percentiles {
    /// Some plot has them, to be switched on and off.
    Switched,
    /// Plots of something else.
    None,
}

/// Looks at each page, where there is a browser.
pub(crate) fn all_fit_and_answer(pages: &[String], percentiles: Percentiles, scratch: &Scratch) {
    for page in pages {
        let page = Path::new(&page);
        if !fits(page, scratch) || !answers(page, percentiles, scratch) {
            return;
        }
    }
}

/// Widths in CSS pixels.
const WIDTHS: [u32; 3] = [320, 390, 1200];

/// A page that shows another one in a frame of a width, and writes below it how wide that is, and how many maxima stand
/// where the frame shows them and where it does not.
fn frame(page: &Path, width: u32) -> String {
    let script = "const shown = document.querySelector('iframe'); \
        shown.onload = () => { \
            const inner = shown.contentDocument; \
            const maxima = [...inner.querySelectorAll('td')].filter(cell => /^(max|worst|response)/i.test(cell.dataset.label || '')); \
            const seen = maxima.filter(cell => cell.getBoundingClientRect().right <= WIDTH); \
            document.querySelector('pre').textContent = \
                `wide ${inner.documentElement.scrollWidth} maxima ${maxima.length} seen ${seen.length}`; \
        }";
    framed(page, width, script)
}

/// A page that uses the plots of another one in a frame of a width as a reader does, and writes below it how many there
/// are, how many show a value under the pointer, hide a percentile that is switched off, hide a series, and hand out
/// their data.
fn used(page: &Path, width: u32) -> String {
    let script = "const shown = document.querySelector('iframe'); \
        shown.onload = () => { \
            const inner = shown.contentDocument, view = shown.contentWindow; \
            const figures = [...inner.querySelectorAll('figure[data-plot]')]; \
            const told = { plots: figures.length, values: 0, switched: 0, percentiles: 0, series: 0, data: 0 }; \
            const isSeen = element => element.getBoundingClientRect().width > 0; \
            for (const figure of figures) { \
                const plot = [...figure.querySelectorAll('svg[data-areas]')].find(isSeen); \
                const box = plot.getBoundingClientRect(); \
                const answers = (across, up) => { \
                    const at = { clientX: box.left + box.width * across, clientY: box.top + box.height * up, bubbles: true }; \
                    plot.dispatchEvent(new view.PointerEvent('pointermove', at)); \
                    const tip = figure.querySelector('.tip'), edge = tip.getBoundingClientRect(); \
                    const isInside = edge.left >= 0 && edge.right <= WIDTH; \
                    return !tip.hidden && isInside && /[0-9]/.test(tip.textContent); \
                }; \
                const places = [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8]; \
                if (places.some(across => places.some(up => answers(across, up)))) told.values++; \
                plot.dispatchEvent(new view.PointerEvent('pointerleave')); \
                const first = figure.querySelector('.switches > button'); \
                if (first) { \
                    const own = () => [...plot.querySelectorAll('[data-group=\"' + first.textContent + '\"]')].filter(isSeen); \
                    const before = own().length; \
                    told.switched++; \
                    first.click(); \
                    if (before > 0 && own().length === 0) told.percentiles++; \
                    first.click(); \
                } \
                const isDrawn = element => isSeen(element) || element.getBoundingClientRect().height > 0; \
                const lines = entry => [...plot.querySelectorAll('[data-line=\"' + entry.dataset.line + '\"]')].filter(isDrawn).length; \
                const entries = [...figure.querySelectorAll('.legend li[data-line]')]; \
                const entry = entries.find(entry => lines(entry) > 0); \
                if (entry) entry.querySelector('button').click(); \
                if (!entries.length || (entry && lines(entry) === 0)) told.series++; \
                let kept = null; \
                view.Blob = function (parts) { kept = parts.join(''); }; \
                view.URL.createObjectURL = () => 'blob:kept'; \
                const texts = []; \
                for (const link of figure.querySelectorAll('.data a')) { \
                    link.addEventListener('click', event => event.preventDefault()); \
                    link.click(); \
                    texts.push(kept); \
                } \
                const [csv, json] = texts; \
                if (csv.split('\\r\\n').length > 2 && JSON.parse(json).series.length > 0) told.data++; \
            } \
            document.querySelector('pre').textContent = JSON.stringify(told); \
        }";
    framed(page, width, script)
}

/// A page with another one in a frame of a width, and a script that looks into it.
fn framed(page: &Path, width: u32, script: &str) -> String {
    format!(
        "<!doctype html><meta charset=utf-8><iframe src=\"file://{}\" style=\"width:{width}px;height:2000px;border:0\">\
         </iframe><pre></pre><script>{}</script>",
        page.display(),
        script.replace("WIDTH", &width.to_string())
    )
}

/// Text that a page writes below a frame; `None` where there is no browser.
fn told(framed: &str, scratch: &Scratch) -> Option<String> {
    let file = scratch.0.join("framed.html");
    fs::write(&file, framed).unwrap();
    let options = [
        "--allow-file-access-from-files",
        "--virtual-time-budget=5000",
    ];
    let text = browse_with(&options, &file, &scratch.0.join("profile"))?;
    let told = text.split("<pre>").nth(1).unwrap_or_default();
    Some(told.split("</pre>").next().unwrap_or_default().to_owned())
}

/// Uses the plots of a page; `false` where there is no browser.
fn answers(page: &Path, percentiles: Percentiles, scratch: &Scratch) -> bool {
    for width in [WIDTHS[0], WIDTHS[2]] {
        let Some(told) = told(&used(page, width), scratch) else {
            return false;
        };
        let at = format!("{} at {width} px: {told}", page.display());
        let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{at}"));
        let plots = told["plots"].as_u64().unwrap();
        assert!(plots > 0, "{at}");
        assert_eq!(told["values"], plots, "{at}");
        assert_eq!(told["series"], plots, "{at}");
        assert_eq!(told["data"], plots, "{at}");
        assert_eq!(told["percentiles"], told["switched"], "{at}");
        if percentiles == Percentiles::Switched {
            assert!(told["switched"].as_u64() > Some(0), "{at}");
        }
    }
    true
}

/// Checks a page at each width; `false` where there is no browser.
fn fits(page: &Path, scratch: &Scratch) -> bool {
    let fit = |wide: &Width| {
        assert!(wide.maxima > 0, "{} has no column of maxima", wide.at);
        assert_eq!(wide.seen, wide.maxima, "{} hides maxima", wide.at);
    };
    let widths = widths(page, scratch);
    widths.iter().flatten().for_each(fit);
    widths.is_some()
}

/// Checks that nothing of a page is cut at any width, where there is a browser.
pub(crate) fn is_not_cut(page: &Path, scratch: &Scratch) {
    widths(page, scratch);
}

/// Maxima in the tables of a page at a width: how many there are, and how many are seen.
struct Width {
    at: String,
    maxima: u32,
    seen: u32,
}

/// Shows a page at each width, where it must not be wider than that; `None` where there is no browser.
fn widths(page: &Path, scratch: &Scratch) -> Option<Vec<Width>> {
    let at_width = |width: u32| {
        let told = told(&frame(page, width), scratch)?;
        let mut words = told.split([' ', '<']);
        let mut number = |name: &str| -> u32 {
            assert_eq!(words.next(), Some(name), "{}: {told}", page.display());
            words.next().and_then(|word| word.parse().ok()).unwrap()
        };
        let (wide, maxima, seen) = (number("wide"), number("maxima"), number("seen"));
        let at = format!("{} at {width} px", page.display());
        assert!(wide <= width, "{at} is {wide} px wide");
        Some(Width { at, maxima, seen })
    };
    WIDTHS.into_iter().map(at_width).collect()
}
